"""The numbers of status by hand: when a text changes, and what is counted as what."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from argosy_law.observe import FleetMetrics, Idle, Value
from argosy_operator.core.snapshot.pods import Start, StartPhases
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.status.numbers import (
    damped,
    damped_duration,
    goodput_status,
    roles_status,
)
from argosy_operator.core.steps.draft import Draft
from tests.core.status.worlds import (
    GATEWAY,
    NOW,
    World,
    leaving,
    pod,
    round_of,
    snapshot_of,
    unready,
)

SLO = {"slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}}


@pytest.mark.parametrize(
    ("old", "new", "step", "digits", "text"),
    [
        (None, 0.9534, 0.01, 3, "0.953"),
        ("0.950", 0.96, 0.0101, 3, "0.950"),
        ("8.0", 8.5, 0.5, 1, "8.0"),
        ("8.0", 8.6, 0.5, 1, "8.6"),
        ("8.0", 7.4, 0.5, 1, "7.4"),
        ("eight", 8.0, 0.5, 1, "8.0"),
        ("", 8.0, 0.5, 1, "8.0"),
    ],
)
def test_a_number_keeps_its_text_until_it_moves_by_more_than_a_step(
    old: str | None, new: float, step: float, digits: int, text: str
) -> None:
    assert damped(old, new, step, digits) == text


@pytest.mark.parametrize(
    ("old", "new_s", "text"),
    [
        (None, 0.0412, "41ms"),
        (None, 0.9994, "999ms"),
        (None, 1.0, "1.00s"),
        (None, 1.617, "1.62s"),
        ("40ms", 0.044, "40ms"),
        ("40ms", 0.045, "45ms"),
        ("40ms", 0.036, "36ms"),
        ("1.00s", 1.1, "1.00s"),
        ("1.00s", 1.2, "1.20s"),
        ("950ms", 1.0, "950ms"),
        ("1.00s", 0.95, "1.00s"),
        ("40s", 0.04, "40ms"),
        ("soon", 1.0, "1.00s"),
    ],
)
def test_a_duration_keeps_its_text_until_it_moves_by_more_than_a_tenth(
    old: str | None, new_s: float, text: str
) -> None:
    assert damped_duration(old, new_s) == text


FIGURES = {
    "attainment": "0.950",
    "offeredRps": "8.0",
    "rps": "7.6",
    "perGPU": "1.90",
    "ttftP90": "1.62s",
    "tpotP90": "41ms",
}
FOUR_GPUS = (
    pod("colocated", gpus=2),
    leaving("colocated", 2, gpus=2),
    pod("colocated", 3, gpus=8, phase="Failed"),
    GATEWAY,
)


def measured(
    rate: float = 8.0, attained: float = 0.95, ttft_s: float = 1.617, tpot_s: float = 0.0412
) -> FleetMetrics:
    return FleetMetrics(
        NOW,
        Value(rate, NOW),
        attainment=Value(attained, NOW),
        ttft_p90_s=Value(ttft_s, NOW),
        tpot_p90_s=Value(tpot_s, NOW),
    )


QUIET = FleetMetrics(NOW, Idle(NOW), attainment=Idle(NOW))


def figures(
    metrics: FleetMetrics, old: Mapping[str, str] | None = None, *, due: bool = True
) -> dict[str, Any] | None:
    world = World(SLO, FOUR_GPUS, metrics=metrics, status={"goodput": old})
    return goodput_status(snapshot_of(world, LoopMemory(), NOW), due=due)


@pytest.mark.parametrize(
    ("words", "metrics", "changes"),
    [
        ("nothing moved", measured(), {}),
        ("attainment moved by a point", measured(attained=0.9599), {}),
        ("attainment fell by two points", measured(attained=0.93), {"attainment": "0.930"}),
        ("attainment rose by two points", measured(attained=0.97), {"attainment": "0.970"}),
        ("the rate rose by 8 %", measured(rate=8.7), {}),
        (
            "the rate rose by a quarter",
            measured(rate=10.0),
            {"offeredRps": "10.0", "rps": "9.5", "perGPU": "2.38"},
        ),
        (
            "half of the requests miss",
            measured(attained=0.5),
            {"attainment": "0.500", "rps": "4.0", "perGPU": "1.00"},
        ),
        ("the first token is later", measured(ttft_s=1.9), {"ttftP90": "1.90s"}),
        ("tokens are slower", measured(tpot_s=0.06), {"tpotP90": "60ms"}),
        (
            "few requests: a tenth of a request per second is no change",
            measured(rate=7.95),
            {},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_figures_that_moved_change(
    words: str, metrics: FleetMetrics, changes: Mapping[str, str]
) -> None:
    assert figures(metrics, FIGURES) == FIGURES | changes, words


@pytest.mark.parametrize(
    ("words", "metrics", "found"),
    [
        ("all is measured", measured(), FIGURES),
        ("no request arrives", QUIET, None),
        (
            "requests arrive, and none ended",
            replace(measured(), attainment=Idle(NOW)),
            {"offeredRps": "8.0"},
        ),
        (
            "requests end, and none arrives",
            replace(measured(), arrivals=Idle(NOW)),
            {"attainment": "0.950", "ttftP90": "1.62s", "tpotP90": "41ms"},
        ),
        (
            "no answer has a second token",
            replace(measured(), tpot_p90_s=Idle(NOW)),
            {name: text for name, text in FIGURES.items() if name != "tpotP90"},
        ),
        (
            "no time of a first token",
            replace(measured(), ttft_p90_s=Idle(NOW)),
            {name: text for name, text in FIGURES.items() if name != "ttftP90"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("old", [None, FIGURES], ids=["new", "measured before"])
def test_a_figure_that_is_not_measured_is_absent(
    old: Mapping[str, str] | None,
    words: str,
    metrics: FleetMetrics,
    found: Mapping[str, str] | None,
) -> None:
    assert figures(metrics, old) == found, words


@pytest.mark.parametrize(
    ("words", "metrics", "old", "is_new"),
    [
        ("only numbers changed", measured(rate=16.0), FIGURES, False),
        ("the goal is missed now", measured(attained=0.5), FIGURES, True),
        ("the goal is at risk now", measured(attained=0.9), FIGURES, True),
        ("nothing stood there", measured(), None, True),
        ("nothing is measured any more", QUIET, FIGURES, True),
        ("a figure disappears", replace(measured(), tpot_p90_s=Idle(NOW)), FIGURES, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_before_figures_are_due_only_a_new_verdict_or_figure_is_written(
    words: str, metrics: FleetMetrics, old: Mapping[str, str] | None, is_new: bool
) -> None:
    expected = figures(metrics, old) if is_new else old
    assert expected != old or not is_new
    assert figures(metrics, old, due=False) == expected, words


def test_pods_are_counted_by_state_and_those_that_serve_or_drain_over_all_revisions() -> None:
    spec = {"roles": {"colocated": {"replicas": {"min": 3, "max": 8}}}}
    pods = (
        pod("colocated", 1, gpus=1),
        pod("colocated", 2, gpus=1),
        unready("colocated", 3, gpus=1),
        unready("colocated", 4, gpus=1, unschedulable="0/3 nodes"),
        leaving("colocated", 5, gpus=1),
        replace(leaving("colocated", 6, gpus=1), ready=False),
        pod("colocated", 7, gpus=1, terminating=True),
        pod("colocated", 8, gpus=1, phase="Succeeded"),
        pod("colocated", 1, "old", gpus=2),
        replace(leaving("colocated", 9, gpus=2), revision="old"),
        unready("colocated", 2, "old", gpus=2),
        pod("gateway", revision="", gpus=16),
    )
    snapshot, planned, _ = round_of(World(spec, pods))
    assert roles_status(snapshot, planned.draft) == {
        "colocated": {
            "desired": 3,
            "ready": 3,
            "serving": 3,
            "pending": 2,
            "unschedulable": 1,
            "draining": 3,
            "gpus": 12,
            "revision": snapshot.revision,
            "timeToReady": None,
            "startPhases": None,
        }
    }


@pytest.mark.parametrize(
    ("words", "starts", "old", "shown"),
    [
        ("none was measured", {}, None, None),
        ("none was measured since a restart", {}, "41s", "41s"),
        ("one was measured", {"a": ("colocated", 41.4)}, None, "41s"),
        ("another role's", {"a": ("prefill", 41.4)}, None, None),
        (
            "the middle of three",
            {"a": ("colocated", 90.0), "b": ("colocated", 30.0), "c": ("colocated", 60.0)},
            None,
            "60s",
        ),
        (
            "of two, the longer one",
            {"a": ("colocated", 30.0), "b": ("colocated", 90.0)},
            None,
            "90s",
        ),
        ("within a fifth of the old one", {"a": ("colocated", 50.0)}, "41s", "41s"),
        ("more than a fifth away", {"a": ("colocated", 60.0)}, "41s", "60s"),
        ("within a second", {"a": ("colocated", 2.0)}, "3s", "3s"),
        ("more than a second away", {"a": ("colocated", 2.0)}, "4s", "2s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_time_to_ready_is_the_median_of_the_measured_starts(
    words: str, starts: Mapping[str, Any], old: str | None, shown: str | None
) -> None:
    before = {"roles": {"colocated": {"timeToReady": old}}}
    snapshot = snapshot_of(World(status=before), LoopMemory(), NOW)
    of_pods = {uid: Start(*start, snapshot.revision) for uid, start in starts.items()}
    draft = Draft(memory=LoopMemory(starts=of_pods), targets={"colocated": 1})
    assert roles_status(snapshot, draft)["colocated"]["timeToReady"] == shown, words


def shown_phases(starts: Sequence[StartPhases | None], old: Any) -> Any:
    """`startPhases` in status after these starts."""
    snapshot = snapshot_of(
        World(status={"roles": {"colocated": {"startPhases": old}}}), LoopMemory(), NOW
    )
    memory = LoopMemory(
        starts={
            f"pod-{n}": Start("colocated", 60.0, snapshot.revision, phases)
            for n, phases in enumerate(starts)
        }
    )
    draft = Draft(memory=memory, targets={"colocated": 1})
    return roles_status(snapshot, draft)["colocated"]["startPhases"]


def test_status_says_the_median_of_each_phase_of_a_start() -> None:
    first, cached = StartPhases(90.0, 4.0, 200.0, 50.0), StartPhases(1.0, 2.0, 0.0, 60.0)
    assert shown_phases([first, cached, cached], None) == {
        "scheduling": "1s", "files": "2s", "images": "0s", "load": "60s",
    }  # fmt: skip


def test_phases_stay_while_they_move_little_or_none_is_known() -> None:
    old = {"scheduling": "1s", "files": "2s", "images": "180s", "load": "60s"}
    moved = StartPhases(2.0, 1.0, 0.0, 65.0)
    assert shown_phases([moved], old) == old | {"images": "0s"}
    assert shown_phases([], old) == old
    assert shown_phases([None], old) == old, "an earlier operator measured it"
    assert shown_phases([None], None) is None


PRICED = {
    "gpuTypes": [{"name": "l4", "costPerHour": "1.25"}],
    "roles": {"colocated": {"gpuTypes": ["l4"]}},
}
TYPED_GPUS = tuple(replace(pod, gpu_type="l4") for pod in FOUR_GPUS)


def priced(metrics: FleetMetrics, old: Mapping[str, str] | None = None, **more: Any) -> Any:
    """The costs in status of a fleet with four GPUs of 1.25 per hour each."""
    world = World(SLO | PRICED, more.get("pods", TYPED_GPUS), metrics=metrics)
    world = replace(world, status={"goodput": old})
    found = goodput_status(snapshot_of(world, LoopMemory(), NOW)) or {}
    return {name: text for name, text in found.items() if name.startswith("cost")}


def test_status_says_what_the_pods_tokens_and_good_requests_cost() -> None:
    """Four GPUs cost 5 an hour: 28,800 requests of 40 tokens, 27,360 of them good."""
    fives = replace(measured(), output_tokens=Value(40.0, NOW))
    costs = {"costPerHour": "5.00", "costPerMillionTokens": "4.34", "costPerThousandGood": "0.18"}
    assert priced(fives) == costs
    assert priced(replace(fives, arrivals=Value(8.3, NOW)), costs) == costs, "within a tenth"
    halved = priced(replace(fives, arrivals=Value(4.0, NOW)), costs)
    assert halved == costs | {"costPerMillionTokens": "8.68", "costPerThousandGood": "0.37"}


def test_pods_of_no_type_leave_all_costs_unknown() -> None:
    """Pods from before the fleet had types run until the rollout ends."""
    assert priced(measured(), pods=(*TYPED_GPUS, pod("prefill", gpus=1))) == {}
