"""A simulated fleet goes to zero when nobody uses it, and starts with the next request."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import pytest

from argosy_law.goals import SLO, Goals, RoleGoal, Serving
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.sim import figures
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import ROLES, TOGETHER, Run, replay
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.supply import PoolName
from tests.sim.fleets import setup, started, trace
from tests.sim.test_simulate import refused

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
