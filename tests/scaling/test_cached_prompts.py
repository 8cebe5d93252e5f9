"""Prompt tokens that a prefix cache has are no work of prefill."""

from dataclasses import replace

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Idle, Signal, Unknown, Value
from argosy_law.signals import lengths, validity
from argosy_law.signals.samples import (
    ENGINE_CACHED,
    ENGINE_PROMPTS,
    Round,
    Series,
    assemble,
)
from argosy_law.size.work import Work
from argosy_law.state import Lengths
from tests.scaling.known import Have, goals, metrics, play, target, times

WINDOWS = Windows()
NOW = 1000.0


def counters(role: str, prompts: float, cached: float) -> tuple[Series, Series]:
    """Growth of a pod's counters within the last minute."""
    labels = {"role": role, "pod": f"{role}-0"}
    return (
        Series(ENGINE_PROMPTS, labels, ((NOW - 60, 500.0), (NOW, 500.0 + prompts))),
        Series(ENGINE_CACHED, labels, ((NOW - 60, 100.0), (NOW, 100.0 + cached))),
    )


def taken(*series: Series) -> FleetMetrics:
    return assemble(Round(NOW, series, 1, 1), WINDOWS)


def test_a_share_of_no_prompts_is_idle_and_one_without_counters_unknown() -> None:
    assert taken(*counters("prefill", 0.0, 0.0)).cached_share == Idle(NOW)
    assert isinstance(taken().cached_share, Unknown)
    assert isinstance(taken(*counters("decode", 100.0, 50.0)).cached_share, Unknown)


def test_a_share_above_1_is_none() -> None:
    seen = metrics(NOW, 5.0, {"prefill": 1, "decode": 1})

    def valid(share: float) -> Signal:
        return validity.validated(replace(seen, cached_share=Value(share, NOW))).cached_share

    assert valid(1.0) == Value(1.0, NOW)
    assert isinstance(valid(1.01), Unknown)
    assert isinstance(valid(-0.01), Unknown)


def test_a_share_that_is_not_known_now_stays_and_one_that_never_was_is_0() -> None:
    seen = metrics(NOW, 5.0, {"prefill": 1, "decode": 1})
    assert lengths.work(lengths.update_lengths(Lengths(), seen, WINDOWS), seen).cached == 0.0
    known = lengths.update_lengths(Lengths(), replace(seen, cached_share=Value(0.3, NOW)), WINDOWS)
    later = lengths.update_lengths(known, seen, WINDOWS)
    assert lengths.work(later, seen).cached == 0.3


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert Work(1000.0, 1e6, 10.0, cached=1.0).computed == 1.0
    assert Work(1000.0, 1e6, 10.0, cached=0.25).computed == 750.0


def replicas(rate: float, have: Have, cached: float, **signals: float) -> list[int]:
    rounds = [
        (replace(metrics(now, rate, have, **signals), cached_share=Value(cached, now)), have)
        for now in times(60)
    ]
    _, decision = play(goals(), rounds)
    return [target(decision, role).demanded for role in have]


def test_a_pool_that_computes_half_of_its_prompts_is_sized_for_prompts_of_half_the_length() -> None:
    """What a decode step has of context does not get less by a cache."""
    have: Have = {"prefill": 8, "decode": 8}
    whole = replicas(30.0, have, 0.0)
    half = replicas(30.0, have, 0.5)
    short = replicas(30.0, have, 0.0, prompt_tokens=500.0)
    assert half[0] == short[0] < whole[0]
    assert half[1] == whole[1]
