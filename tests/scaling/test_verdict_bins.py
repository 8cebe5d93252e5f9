"""Verdicts by scrape interval, as the error budget counts them."""

import pytest

from argosy_law.goals import Windows
from argosy_law.signals.samples import Round, Series, assemble
from argosy_law.slo import Errors, Verdicts, taken

WINDOWS = Windows(scrape_s=15.0, rate_s=60.0)
START = 1_700_000_010.0
"""A whole multiple of the scrape interval."""


def verdicts(pod: str, per_scrape: float, scrapes: int, **labels: str) -> Series:
    named = {"pod": pod, "role": "gateway", **labels}
    samples = tuple((START + 15 * n, 100 + per_scrape * n) for n in range(scrapes + 1))
    return Series("argosy_slo_requests_total", named, samples)


def read(scrapes: int) -> tuple[Verdicts, ...]:
    series = [
        verdicts(pod, count, scrapes, ttft=ttft, tpot=tpot)
        for pod in ("a", "b")
        for ttft, tpot, count in (
            ("ok", "ok", 6.0),
            ("ok", "miss", 2.0),
            ("miss", "ok", 1.0),
            ("miss", "miss", 1.0),
        )
    ]
    return assemble(Round(START + 15 * scrapes, tuple(series), 2, 2), WINDOWS).verdicts


def test_each_scrape_interval_has_its_judged_requests_and_those_that_met_both_limits() -> None:
    assert read(3) == tuple(
        Verdicts(START + 15 * n, pytest.approx(12.0), pytest.approx(20.0)) for n in (1, 2, 3)
    )


def test_rounds_whose_windows_overlap_count_each_request_once() -> None:
    errors = Errors()
    for scrapes in range(1, 30):
        errors = taken(errors, read(scrapes)[-8:], 15.0)
    ended = sum(slot[2] for slot in errors.slots[0])
    assert ended == pytest.approx(29 * 20.0)


def test_reasons_of_misses_are_counted_over_all_gateways_the_most_frequent_first() -> None:
    def counted(pod: str, reason: str, per_scrape: float) -> Series:
        samples = tuple((START + 15 * n, 7 + per_scrape * n) for n in range(5))
        labels = {"pod": pod, "role": "gateway", "reason": reason}
        return Series("argosy_slo_misses_total", labels, samples)

    series = (
        verdicts("a", 10.0, 4, ttft="ok", tpot="ok"),
        counted("a", "queue", 1.0),
        counted("b", "queue", 2.0),
        counted("a", "prompt", 4.0),
        counted("b", "shed", 0.0),
    )
    seen = assemble(Round(START + 60, series, 2, 2), WINDOWS)
    assert seen.misses == (("prompt", pytest.approx(16.0)), ("queue", pytest.approx(12.0)))
