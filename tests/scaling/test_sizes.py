"""A size follows from what engines and gateways count, and not from means that hide the tail."""

from dataclasses import replace

import pytest

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import FleetMetrics, RoleMetrics, StepDelta
from argosy_operator.core.scaling.signals import lengths
from argosy_operator.core.scaling.size.decode import decode_model
from argosy_operator.core.scaling.size.work import Replica, Work
from argosy_operator.core.scaling.state import Lengths
from tests.scaling import known

LLAMA = Replica(28.8e-3, 0.1066e-3, 0.2825e-3, 9.4e-8)
WINDOWS = Windows()


def counted(sequences: float, context: float) -> FleetMetrics:
    """A round in which the steps of two decode pods had so many sequences and tokens of context."""
    row = StepDelta(known.START, 1.0, 20, decode_sequences=sequences, context_tokens=context)
    seen = known.metrics(known.START, 5.0, {"prefill": 1, "decode": 2})
    return replace(seen, roles=(RoleMetrics("decode", steps=(row, row)),))


def test_the_context_of_a_step_is_what_engines_count() -> None:
    """Half of the requests are 100 + 10 tokens, half 1,000 + 1,000. A step holds mostly the long
    ones: its mean context is (10 · 105 + 1,000 · 1,500)/1,010 = 1,486. Means of all requests give
    550 + 505/2 = 802."""
    context = (10 * 105 + 1000 * 1500) / 1010
    after = lengths.updated(Lengths(), counted(1010, 1010 * context), WINDOWS)
    work = lengths.work(replace(after, prompt=550.0, output=505.0), counted(0, 0))
    assert work.context == pytest.approx(1486, abs=0.2)
    assert Work(550, 550**2, 505).context == 802.5
    limit = decode_model(LLAMA, work, 0.06).batch_limit
    assert limit == pytest.approx((0.06 - 28.8e-3) / (0.2825e-3 + 9.4e-8 * context))


def test_a_context_is_averaged_over_as_long_as_lengths_are() -> None:
    before = lengths.updated(Lengths(), counted(10, 10 * 1000.0), WINDOWS)
    assert before.context == 1000.0
    after = before
    for _ in range(12):  # 12 · 15 s is one window of 180 s
        after = lengths.updated(after, counted(10, 10 * 2000.0), WINDOWS)
    assert after.context == pytest.approx(1000 + 1000 * (1 - 0.36788), abs=0.1)


@pytest.mark.parametrize("sequences", [0.0, 0.4])
def test_a_round_without_decode_steps_keeps_the_last_context(sequences: float) -> None:
    before = Lengths(context=700.0)
    assert lengths.updated(before, counted(sequences, 10.0), WINDOWS).context == 700.0
    assert lengths.updated(Lengths(), counted(sequences, 10.0), WINDOWS).context is None
