"""Rollouts in the simulator: the product's `choose` on simulated pods."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.rollout import Strategy
from argosy_law.sim import cli
from argosy_law.sim.replay import static
from argosy_law.sim.rollout import Plan
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.colocated import ColocatedWorld
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Revision, Setup
from tests.sim.fleets import MACHINE, poisson, setup
from tests.sim.test_simulate import arguments, refused, simulated

GPUS = MACHINE.gpus


def steady(rate: float = 2.0, seconds: float = 120.0, seed: int = 1) -> Trace:
    return poisson(rate, int(rate * seconds), 200, 20, seed)


@settings(max_examples=60, deadline=None)
@given(
    roles=st.sampled_from([("colocated",), ("prefill", "decode")]),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    surge=st.sampled_from([None, 0, 1, 2, 4, 16]),
    rate=st.floats(0.2, 20.0),
    cold_s=st.floats(0.5, 30.0),
    speed=st.sampled_from([0.5, 1.0, 2.0]),
    fails=st.booleans(),
    order=st.sampled_from(["fifo", "deadline"]),
    seed=st.integers(0, 9),
)
def test_a_rollout_loses_no_request_pairs_no_two_revisions_and_keeps_within_its_gpus(
    roles: tuple[str, ...],
    sizes: list[int],
    surge: int | None,
    rate: float,
    cold_s: float,
    speed: float,
    fails: bool,
    order: str,
    seed: int,
) -> None:
    of = setup(cold_s=cold_s, sigma=0.3, order=order, resumes=True, seed=seed)  # type: ignore[arg-type]
    wanted = dict(zip(roles, sizes, strict=False))
    plan = Plan(5.0, Strategy("Paced", surge), Revision(speed, not fails))
    run = static(of, steady(rate, 40.0, seed), wanted, plan)  # type: ignore[arg-type]
    assert run.world.finished
    assert (run.world.killed, run.world.crossed) == (0, 0)
    assert run.rollout is not None
    allowed = GPUS * len(wanted) if surge is None else surge
    assert run.rollout.most_over <= allowed
    if fails:
        assert run.rollout.ended_at == inf
        assert all(
            any(pod.revision == 0 and pod.ready_at < inf for pod in run.world.wanted(role))
            for role in run.world.roles
        )


@pytest.mark.parametrize(
    ("strategy", "over"),
    [
        (Strategy(), 2 * GPUS),
        (Strategy("Paced", 0), 0),
        (Strategy("BlueGreen"), 4 * GPUS),
        (Strategy("Recreate"), 0),
    ],
)
def test_each_strategy_ends_with_the_new_revision_alone(strategy: Strategy, over: int) -> None:
    run = static(
        setup(order="deadline", resumes=True),
        steady(),
        {"prefill": 2, "decode": 2},
        Plan(20.0, strategy),
    )
    assert run.rollout is not None
    assert (run.rollout.most_over, run.world.killed) == (over, 0)
    states = [turn.state for turn in run.rollout.turns]
    begins = "OldPodsLeave" if over == 0 else "NewPodsStart"
    assert (states[0], states[-1]) == (begins, "NoOldRevision")
    assert run.rollout.ended_at < 120.0
    for role in run.world.roles:
        assert [pod.revision for pod in run.world.wanted(role)] == [1, 1]


def test_a_surge_below_a_set_leaves_the_last_one_alone_and_says_so() -> None:
    run = static(
        setup(order="deadline", resumes=True),
        steady(),
        {"colocated": 1},
        Plan(20.0, Strategy("Paced", 1)),
    )
    assert run.rollout is not None
    assert [turn.state for turn in run.rollout.turns] == ["SurgeTooSmall"]
    assert f"maxSurgeGPUs: {GPUS}" in run.rollout.turns[0].message
    assert not run.world.killed


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_pods_of_a_revision_compute_at_its_speed(speed: float) -> None:
    of, requests = setup(), poisson(0.1, 4, 100, 50)
    plain, other = World(of, requests), World(of, requests)
    other.edit(Revision(speed))
    for world in (plain, other):
        for role in world.roles:
            world.scale(role, 1, warm=True)
        world.advance(inf)
    for one, two in zip(
        [last - at for last, at in zip(plain.last, requests.arrival, strict=True)],
        [last - at for last, at in zip(other.last, requests.arrival, strict=True)],
        strict=True,
    ):
        assert two == pytest.approx(one / speed)


@pytest.mark.parametrize("roles", [("colocated",), ("prefill", "decode")])
@pytest.mark.parametrize("left", [True, False])
def test_an_answer_that_began_goes_on_at_its_revision_alone(
    roles: tuple[str, ...], left: bool
) -> None:
    of, requests = setup(drain_s=2.0, resumes=True), poisson(10.0, 1, 100, 1000)
    world = _world(roles, of, requests)
    for role in world.roles:
        world.scale(role, 2 if left else 1, warm=True)
    world.edit(Revision())
    for role in world.roles:
        world.scale(role, 1, warm=True)
    world.advance(3.0)
    for role in world.roles:
        world.scale(role, 1 if left else 0, revision=0)
    world.advance(inf)
    assert world.killed == (0 if left else 1)


def _world(roles: tuple[str, ...], of: Setup, requests: Trace) -> World:
    return (ColocatedWorld if "colocated" in roles else World)(of, requests)


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"rollout_at": "soon"}, "--rollout-at soon: write a number"),
        ({"rollout_at": "-1"}, "--rollout-at -1: write a number"),
        ({"rollout_at": "99999"}, "write an earlier second"),
        ({"surge": "0"}, "write --rollout-at"),
        ({"strategy": "Recreate"}, "write --rollout-at"),
        ({"rollout_speed": "2"}, "write --rollout-at"),
        ({"rollout_fails": "yes"}, "write --rollout-at"),
        ({"rollout_at": "100", "surge": "-1"}, "--surge -1: write a whole number"),
        ({"rollout_at": "100", "surge": "2", "strategy": "BlueGreen"}, "leave it out"),
        ({"rollout_at": "100", "strategy": "paced"}, "write one of Paced, BlueGreen, Recreate"),
        ({"rollout_at": "100", "rollout_speed": "0"}, "--rollout-speed 0: write a number"),
        ({"rollout_at": "100", "role_flip": "yes"}, "leave one of them out"),
    ],
)
def test_flags_of_a_rollout_that_cannot_be_used_say_what_to_write(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: dict[str, str], says: str
) -> None:
    assert says in refused(capsys, tmp_path, **flags)


def test_a_rollout_has_figures_and_is_told_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    flags = {"policy": "static:2,2", "static": "1,1", "static_same_engine": "1,1"}
    words = arguments(out, rollout_at="70", surge="0", report=str(page), **flags)
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    for word in ("Paced, maxSurgeGPUs 0", "OldPodsLeave", "NoOldRevision", "no request was lost"):
        assert word in said
    assert '"rollout_gpus_over": 0' in out.read_text()
    assert "rollout_attainment_without" in page.read_text()


@pytest.mark.slow
def test_a_run_without_a_rollout_says_nothing_of_one(tmp_path: Path) -> None:
    found = simulated(tmp_path / "out.json", static="1,1", static_same_engine="1,1")
    assert {found[name] for name in found if name.startswith("rollout_")} == {None}
