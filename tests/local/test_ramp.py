"""What the demo's figures say of a ramp on a product that is broken in one way.

Records and readings of a good run are made by hand; each row changes one thing of them and names
the targets that must miss then. No row may leave all targets met.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.demo import ramp
from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.traffic.plan import arrivals
from local.demo.traffic.score import Limits, Seen
from local.demo.traffic.watch import Reading, Records, Watch

LIMITS = Limits(ttft_s=1.0, tpot_s=0.04)
Change = Callable[[list[Seen]], list[Seen]]
Look = Callable[[list[Reading]], list[Reading]]


def good_records() -> list[Seen]:
    """Each request of the plan was answered after 0.2 s, with 30 ms between tokens."""
    return [
        Seen(
            due_s=due.at_s,
            phase=due.phase,
            outcome="ok",
            ttft_s=0.2,
            tpot_s=0.03,
            tokens=due.output_tokens,
            ended_s=due.at_s + 2,
            prefill_pod="p-1",
            decode_pod="d-1",
        )
        for due in arrivals()
    ]


def good_readings() -> list[Reading]:
    """Three prefill replicas for the surge, two decode replicas for the other mix, of 4 GPUs."""

    def reading(at: int) -> Reading:
        prefill = 3 if 50 <= at < 100 else 1
        decode = 2 if 100 <= at < 150 else 1
        sizes = {"prefill": (prefill, prefill), "decode": (decode, decode)}
        gpus = 4 * (prefill + decode)
        return Reading(float(at), "phase", 1.0, 1.0, **sizes, gpus=gpus, cpu_share=0.5, decision="")

    return [reading(at) for at in range(1, 182)]


def judged(records: list[Seen], readings: list[Reading]) -> DemoFigures:
    nothing: Any = None
    watch = Watch(nothing, "demo", "f", "", Records(Path("none")), LIMITS, print, readings)
    watch.names = {"prefill": {"p-1"}, "decode": {"d-1"}}
    figures = DemoFigures(0.0)
    ramp.judge(figures, records, LIMITS, watch)
    return figures


def missed(figures: DemoFigures) -> set[str]:
    return {name for name in figures.missed() if name in figures.values}


def test_a_good_ramp_misses_nothing():
    figures = judged(good_records(), good_readings())
    assert missed(figures) == set()
    # 180 s at 8 GPUs, 50 s at 8 more, 50 s at 4 more
    assert figures.values["gpu_hours"] == (180 * 8 + 50 * 8 + 50 * 4) / 3600
    assert (figures.values["prefill_replicas_max"], figures.values["decode_replicas_max"]) == (3, 2)
    assert figures.values["requests_lost"] == 0
    assert figures.values["attainment_after_settling"] == 1


def every(number: int, **changed: Any) -> Change:
    """Every so-manieth record has these fields instead."""
    return lambda records: [
        replace(r, **changed) if n % number == 0 else r for n, r in enumerate(records)
    ]


FAILED = {"ttft_s": None, "tpot_s": None, "tokens": 0}
MISS = {"attainment_after_settling"}
REQUESTS: list[tuple[str, Change, set[str]]] = [
    ("one_answer_in_a_hundred_is_lost", every(100, outcome="lost", **FAILED), {"requests_lost"}),
    (
        "every_answer_is_lost",
        every(1, outcome="lost", **FAILED),
        {"requests_lost", "answers_from_both_pods"} | MISS,
    ),
    (
        "no_gateway_accepts_a_connection",
        every(1, outcome="refused", **FAILED),
        {"requests_refused", "answers_from_both_pods"} | MISS,
    ),
    ("one_connection_is_refused", every(1022, outcome="refused", **FAILED), {"requests_refused"}),
    (
        "the_gateway_sheds_everything",
        every(1, outcome="shed", **FAILED),
        {"answers_from_both_pods"} | MISS,
    ),
    ("a_fifth_is_shed", every(5, outcome="shed", **FAILED), MISS),
    ("a_fifth_waits_for_its_first_token", every(5, ttft_s=1.01), MISS),
    ("a_fifth_is_slow_between_tokens", every(5, tpot_s=0.041), MISS),
    ("answers_come_in_one_piece", every(1, tpot_s=None), MISS),
    ("decode_pods_compute_the_prompts", every(1, prefill_pod=""), {"answers_from_both_pods"}),
    ("answers_name_no_pod", every(1, decode_pod=""), {"answers_from_both_pods"}),
    ("pods_of_another_fleet_answer", every(1, decode_pod="d-9"), {"answers_from_both_pods"}),
    (
        "the_last_phase_never_settles",
        lambda records: [replace(r, ttft_s=9.0) if r.phase == 3 else r for r in records],
        MISS,
    ),
    ("a_request_has_no_record", lambda records: records[1:], {"requests_lost"}),
    (
        "a_request_has_two_records_and_another_none",
        lambda records: [records[1], *records[1:]],
        {"requests_lost"},
    ),
    (
        "a_phase_was_not_played",
        lambda records: [r for r in records if r.phase != 2],
        {"requests_lost", "scored_requests_per_phase_min", "attainment_after_settling"},
    ),
]


@pytest.mark.parametrize(
    ("change", "misses"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
def test_requests_of_a_broken_product_miss_a_target(change: Change, misses: set[str]):
    assert missed(judged(change(good_records()), good_readings())) == misses


def always(**changed: Any) -> Look:
    return lambda readings: [replace(r, **changed) for r in readings]


PODS: list[tuple[str, Look, set[str]]] = [
    (
        "nothing_is_scaled",
        always(prefill=(1, 1), decode=(1, 1), gpus=8),
        {"prefill_replicas_max", "decode_replicas_max"},
    ),
    (
        "more_is_desired_and_no_pod_becomes_ready",
        always(prefill=(1, 4), decode=(1, 4), gpus=8),
        {"prefill_replicas_max", "decode_replicas_max"},
    ),
    ("only_prefill_is_scaled", always(decode=(1, 1)), {"decode_replicas_max"}),
    (
        "all_replicas_run_all_the_time",
        always(prefill=(4, 4), decode=(4, 4), gpus=32),
        {"gpu_hours"},
    ),
    ("the_peak_runs_all_the_time_and_one_more", always(gpus=24), {"gpu_hours"}),
]


@pytest.mark.parametrize(("look", "misses"), [row[1:] for row in PODS], ids=[r[0] for r in PODS])
def test_pods_of_a_broken_product_miss_a_target(look: Look, misses: set[str]):
    assert missed(judged(good_records(), look(good_readings()))) == misses


UNSEEN: list[tuple[str, Look]] = [
    ("none", lambda _: []),
    ("the_first_ten_seconds_are_missing", lambda readings: readings[10:]),
    ("they_end_at_170_s", lambda readings: readings[:170]),
    ("six_seconds_of_the_surge", lambda readings: [r for r in readings if not 60 < r.at_s < 66]),
]


@pytest.mark.parametrize("look", [row[1] for row in UNSEEN], ids=[row[0] for row in UNSEEN])
def test_readings_that_do_not_cover_the_ramp_fail_the_run(look: Look):
    with pytest.raises(DemoError, match="the fleet's pods were not read"):
        judged(good_records(), look(good_readings()))


def test_a_ramp_without_records_fails_the_run():
    with pytest.raises(DemoError, match="no request of the ramp ended"):
        judged([], good_readings())


def fleet(*sizes: tuple[str, int, int]) -> Any:
    """A stand-in for the API server: (role, Ready pods, replicas asked for)."""

    class Server:
        def get(self, path: str, **query: str) -> dict:
            labels = {role: {"serving.argosy.dev/role": role} for role, _, _ in sizes}
            if path.endswith("/deployments"):
                return {
                    "items": [
                        {"metadata": {"labels": labels[role]}, "spec": {"replicas": desired}}
                        for role, _, desired in sizes
                    ]
                }
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            return {
                "items": [
                    {
                        "metadata": {"name": f"{role}-{n}", "uid": n, "labels": labels[role]},
                        "spec": {"containers": []},
                        "status": ready,
                    }
                    for role, pods, _ in sizes
                    for n in range(pods)
                ]
            }

    return Server()


@pytest.mark.parametrize(
    ("sizes", "back"),
    [
        ((("prefill", 1, 1), ("decode", 1, 1)), True),
        ((("prefill", 2, 1), ("decode", 1, 1)), False),
        ((("prefill", 1, 1), ("decode", 2, 2)), False),
        ((("prefill", 1, 2), ("decode", 1, 1)), False),
        ((("prefill", 0, 1), ("decode", 1, 1)), False),
        ((("prefill", 0, 0), ("decode", 0, 0)), False),
    ],
    ids=["one_each", "a_pod_stays", "decode_stays", "another_is_asked", "none_ready", "gone"],
)
def test_replicas_are_back_when_the_pods_are_and_no_more_are_asked_for(sizes, back):
    minimum = {"prefill": 1, "decode": 1}
    assert ramp.await_minimum(fleet(*sizes), "f", minimum, 0) is back
