"""What the engine loop writes to the log about its work: at regular times, and once of a limit."""

import logging

import pytest

from argosy_engine.core.step_time import Terms, longer_step
from argosy_engine.runtime.reports import Reports
from tests.engine.core.test_scheduler import ask, make, step

SLOW = Terms(0.1, 0.01, 0.002)
"""At 90 prompt tokens a step has nine tenths of the highest rate."""


class Watched:
    """A scheduler whose steps take a second each, and what is written of them."""

    def __init__(self, caplog, **more):
        caplog.set_level(logging.INFO, "argosy_engine.runtime.reports")
        self.caplog, self.now = caplog, 100.0
        self.scheduler = make(**more)
        self.reports = Reports(self.scheduler, lambda: self.now)

    def turn(self):
        """A turn of the loop; it has a step if there is work."""
        self.now += 1.0
        scheduled, emissions = step(self.scheduler, now=self.now)
        for victim in scheduled.preempted:
            self.reports.preempted(victim)
        if scheduled.plan is not None:
            self.reports.step(scheduled.plan, len(emissions))
        self.reports.tick()

    def lines(self, word):
        return [r.getMessage() for r in self.caplog.records if word in r.getMessage()]


def test_every_10_s_a_line_has_the_work_of_that_time_and_none_while_idle(caplog):
    engine = Watched(caplog, seqs=1, blocks=20)
    for _ in range(25):
        engine.turn()
    assert engine.lines("Running") == []
    engine.scheduler.add(ask("long", 96, max_tokens=8))
    engine.scheduler.add(ask("next", 10, max_tokens=400))
    for _ in range(5):
        engine.turn()
    (line,) = engine.lines("Running")
    assert line == (
        "Avg prompt throughput: 9.6 tokens/s, Avg generation throughput: 0.5 tokens/s, "
        "Running: 1 reqs, Waiting: 1 reqs, KV cache usage: 35.0%, Preemptions: 0"
    )
    for _ in range(10):
        engine.turn()
    assert engine.lines("Running")[1].startswith(
        "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
        "Running: 1 reqs, Waiting: 0 reqs"
    )
    engine.scheduler.abort("next")
    for _ in range(30):
        engine.turn()
    assert len(engine.lines("Running")) == 2


def test_a_fixed_limit_below_the_saturation_is_one_warning_with_what_to_write(caplog):
    engine = Watched(caplog, tokens=32)
    engine.scheduler.step_time.terms = SLOW
    engine.scheduler.add(ask("short", 20, max_tokens=2))
    engine.turn()
    assert engine.lines("saturation") == []  # the limit did not cut it
    engine.scheduler.add(ask("long", 300, max_tokens=2))
    engine.turn()
    engine.turn()
    (line,) = engine.lines("saturation")
    assert line == (
        "--max-num-batched-tokens 32 is below argosy_saturation_tokens (90): steps of 32 prompt "
        "tokens compute 76 of them a second on this machine, and steps of 90 compute 90, so that "
        "first tokens come later: write --max-num-batched-tokens auto, or 90"
    )


@pytest.mark.parametrize(
    ("tokens", "limit_s", "instead"),
    [(89, 0.0, 90), (90, 0.0, None), (32, 0.5, None), (32, 0.625, 40), (32, 9.0, 90)],
)
def test_a_step_should_be_longer_up_to_the_saturation_or_the_tpot_limit(tokens, limit_s, instead):
    assert longer_step(SLOW, tokens, limit_s) == instead
