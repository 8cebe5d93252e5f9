"""A simulated fleet goes to zero when nobody uses it, and starts with the next request."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import pytest

from argosy_law.goals import SLO, Goals, RoleGoal, Serving
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.sim import cli, figures
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import ROLES, TOGETHER, Run, replay
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.supply import PoolName
from tests.sim.fleets import setup, started, trace
from tests.sim.test_simulate import arguments, refused

STEADY = [(float(at), 100, 5) for at in range(200)]
"""Used until 199.29 s: 0.2 s of prompt, and four steps."""
COLD_S, AFTER_S = 30.0, 300.0
LONG = setup(order="deadline", resumes=True, cold_s=COLD_S, queue_timeout_s=30.0)


def played(
    rows: Sequence[tuple[float, int, int]],
    *,
    wait_s: float = 120.0,
    of: Setup = LONG,
    roles: Sequence[PoolName] = ROLES,
    windows: tuple[Window, ...] = (),
) -> Run:
    goals = Goals(
        mode="disaggregated" if len(roles) > 1 else "colocated",
        roles=tuple(RoleGoal(role, 1, 10) for role in roles),
        slo=SLO(of.ttft_s, of.tpot_s),
        prior=of.replica.profile,
        serving=Serving("deadline"),
        zero_after_s=AFTER_S,
    )
    of = replace(of, wake_timeout_s=wait_s)
    return replay(of, trace(rows), LAWS["goodput"], goals, dict.fromkeys(roles, 1), windows)


def lives(run: Run, role: PoolName) -> list[tuple[float, float, float]]:
    """(created, ready, gone) of each pod."""
    return [(pod.created_at, pod.ready_at, pod.gone_at) for pod in run.world.pods[role]]


@pytest.mark.parametrize("roles", [ROLES, TOGETHER])
def test_all_pods_go_after_the_idle_time_and_come_with_the_next_request(
    roles: Sequence[PoolName],
) -> None:
    run = played([*STEADY, (1500.4, 100, 5)], roles=roles)
    # idle from 199.25 s on, so the decision at 510 s is the first after 300 s without a request
    # the operator asks at zero once a second: it hears of the request at 1501 s
    for role in roles:
        before = [life for life in lives(run, role) if life[0] < 510.0]
        assert max(gone for _, _, gone in before) == 510.0
        assert lives(run, role)[len(before) :] == [(1501.0, 1531.0, inf)]
    assert run.world.first[-1] == pytest.approx(1531.0 + 0.2)
    assert figures.ttft_longest_s(run.world, 0.0) == pytest.approx(1531.2 - 1500.4)
    assert run.world.refused == 0
    assert figures.gpu_hours(run.world, 510.0, 1500.4) == 0.0


def test_a_fleet_that_is_used_keeps_its_pods() -> None:
    run = played([(float(at), 100, 5) for at in range(0, 3000, 290)])
    assert all(target.replicas >= 1 for one in run.decisions for target in one.targets)


def test_an_answer_counts_as_use_until_its_last_token() -> None:
    # 8,000 steps of 11 ms and a bit more for the growing context: about 400 s
    run = played([(0.0, 100, 8000), (2000.0, 10, 2)])
    ended = run.world.last[0]
    assert ended > AFTER_S
    gone = lives(run, "decode")[0][2]
    assert ended + AFTER_S <= gone <= ended + AFTER_S + 15.0


def test_who_waits_longer_than_the_start_may_take_is_refused() -> None:
    rows = [*STEADY, (1500.4, 100, 5), (1525.0, 100, 5)]
    run = played(rows, wait_s=30.0)  # ready after 30.6 s
    assert (run.world.refused, isnan(run.world.last[-2])) == (1, True)
    assert run.world.first[-1] == pytest.approx(1531.2)
    assert played(rows, wait_s=31.0).world.refused == 0


def test_the_longer_wait_is_for_requests_that_come_while_no_pods_serve() -> None:
    of = replace(LONG, wake_timeout_s=120.0, queue_timeout_s=30.0)
    world = started(of, trace([(5.0, 100, 5), (6.0, 100, 5)]), prefill=0, decode=1)
    world.advance(5.5)
    world.scale("prefill", 1)  # ready after 30 s
    world.advance(inf)
    assert (world.refused, world.first[0]) == (0, pytest.approx(35.7))
    short = replace(of, wake_timeout_s=None)
    world = started(short, trace([(5.0, 100, 5), (6.0, 100, 5)]), prefill=0, decode=1)
    world.advance(5.5)
    world.scale("prefill", 1)
    world.advance(inf)
    assert (world.refused, world.first[1]) == (1, pytest.approx(35.7))


def test_who_comes_after_the_start_is_refused_before_those_that_waited_for_it() -> None:
    world = World(
        replace(LONG, wake_timeout_s=200.0, queue_timeout_s=10.0),
        trace([(float(n) / 10, 2000, 2) for n in range(40)]),  # 2.1 s of prefill each
    )
    world.scale("decode", 1, warm=True)
    world.scale("prefill", 1)  # ready at 30 s, when 40 prompts wait for up to 200 s
    world.advance(inf)
    assert world.refused == 0
    late = [(float(n) / 10, 2000, 2) for n in range(40)] + [(60.0, 2000, 2)] * 3
    world = World(replace(LONG, wake_timeout_s=200.0, queue_timeout_s=10.0), trace(late))
    world.scale("decode", 1, warm=True)
    world.scale("prefill", 1)
    world.advance(inf)
    assert world.refused == 3
    assert all(not isnan(last) for last in world.last[:40])


def test_a_schedule_starts_a_fleet_at_zero_and_keeps_it() -> None:
    window = Window(
        "morning", "20 0 * * *", 600.0, "UTC", tuple(Bounds(role, 2, None) for role in ROLES)
    )
    run = played([*STEADY, (3000.0, 100, 5)], windows=(window,))
    created = [at for at, _, _ in lives(run, "decode")]
    assert created[0] == 0.0
    assert 1200 - 120 <= created[1] <= created[2] <= 1200 - COLD_S
    gone = [gone for _, _, gone in lives(run, "decode")]
    assert gone[0] == 510.0
    assert 1800.0 <= gone[1] <= 1830.0


def test_a_fleet_at_zero_starts_without_metrics() -> None:
    of: Setup = replace(LONG, outage=(1000.0, 3000.0))
    run = played([*STEADY, (1500.4, 100, 5), (3100.0, 100, 5)], of=of)
    assert (1501.0, 1531.0) in {(made, ready) for made, ready, _ in lives(run, "prefill")}


def test_the_flag_gives_back_what_a_quiet_time_costs(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.csv"
    rows = [*range(400), *range(2400, 2800)]
    quiet.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},500,20\n" for at in rows)
    )
    flags = {"trace": str(quiet), "policy": "goodput", "static": "1,1", "static_same_engine": "1,1"}
    results = []
    for more in ({}, {"scale_to_zero": "5m,2m"}):
        out = tmp_path / "out.json"
        assert cli.main(arguments(out, **flags, **more)) == 0
        results.append(json.loads(out.read_text()))
    without, with_zero = results
    # both pods are gone from about 705 s to 2400 s
    saved = without["gpu_hours"] - with_zero["gpu_hours"]
    assert saved == pytest.approx(2 * 4 * (2400 - 705) / 3600, rel=0.02)
    assert with_zero["ttft_longest_s"] == pytest.approx(60.06, abs=0.01)
    assert without["ttft_longest_s"] < 1.0
    assert with_zero["attainment"] < without["attainment"] == 1.0
    assert with_zero["requests_refused"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"scale_to_zero": "10"}, "--scale-to-zero 10: "),
        ({"scale_to_zero": "10m,x"}, "--scale-to-zero 10m,x: "),
        ({"scale_to_zero": "10m,59s"}, "less than a cold start of 60 s; write a longer wait, such "
         "as 10m,120s"),
        ({"scale_to_zero": "10m", "policy": "hpa"}, "write --policy goodput and --order deadline"),
        ({"scale_to_zero": "10m", "policy": "static:1,1"}, "write --policy goodput"),
        ({"scale_to_zero": "10m", "order": "fifo"}, "write --policy goodput and --order deadline"),
    ],
)  # fmt: skip
def test_what_no_fleet_can_do_is_refused(
    flags: dict[str, str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert words in refused(capsys, tmp_path, **({"policy": "goodput"} | flags))


def test_the_wait_is_that_of_the_spec_if_it_is_left_out() -> None:
    flags = arguments(Path("x"), policy="goodput", scale_to_zero="10m")
    options = cli.parse(flags)
    assert (options.goals.zero_after_s, options.setup.wake_timeout_s) == (600.0, 300.0)
    plain = cli.parse(arguments(Path("x"), policy="goodput"))
    assert (plain.goals.zero_after_s, plain.setup.wake_timeout_s) == (None, None)
