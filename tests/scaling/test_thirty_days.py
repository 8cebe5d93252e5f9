"""What the law learns about a replica stays usable for thirty days, at every cadence and load.

Time is virtual. The learner takes one row of steps a round; `decide` is asked a few times a day
with what was learnt until then.
"""

from math import isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.estimate import capacity
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Windows
from argosy_law.observe import (
    FleetMetrics,
    Idle,
    RoleMetrics,
    StepDelta,
)
from argosy_law.signals.validity import validated
from argosy_operator.api.v1alpha1 import RoleName

TRUE = PRESETS["llama-70b-h100-tp4"]
OBJECTIVE = SLO(ttft_s=1.0, tpot_s=0.04)
START, DAY = 1e6, 86_400.0

PROMPT, OUTPUT = 1500.0, 200.0


def row(role: RoleName, at: float, rate: float, dice: Random, slower: float = 1.0) -> StepDelta:
    """One replica's steps of ten seconds at its half of `rate`, timed to one per cent."""
    noise = slower * (1 + 0.01 * dice.gauss(0, 1))
    if role == "prefill":
        steps, tokens = 5 * rate, 5 * rate * PROMPT
        seconds = TRUE.prefill_base_s * steps + TRUE.per_prompt_token_s * tokens
        return StepDelta(at, noise * seconds, steps, tokens, steps)
    n, context = 2.2 * rate, PROMPT + OUTPUT / 2
    step = TRUE.decode_base_s + n * (TRUE.per_sequence_s + context * TRUE.per_context_token_s)
    steps = 10 / step
    return StepDelta(
        at,
        noise * step * steps,
        steps,
        decode_sequences=n * steps,
        context_tokens=n * context * steps,
    )


ROWS = st.builds(
    StepDelta,
    at=st.floats(0, 1e9),
    seconds=st.floats(1e-6, 1e15),
    steps=st.floats(1, 1e15),
    prefill_tokens=st.floats(0, 1e15),
    prefill_requests=st.floats(0, 1e15),
    decode_sequences=st.floats(0, 1e15),
    context_tokens=st.floats(0, 1e15),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=30),
    known=st.booleans(),
    role=st.sampled_from(("prefill", "decode")),
)
def test_no_rows_of_counters_make_what_is_learnt_unusable(
    rows: list[StepDelta], known: bool, role: RoleName
) -> None:
    """The bound holds after any valid row, so it holds after any number of them."""
    estimate = capacity.begin(role, TRUE if known else None, OBJECTIVE)
    for given_row in sorted(rows, key=lambda r: r.at):
        metrics = FleetMetrics(0.0, Idle(0.0), roles=(RoleMetrics(role, 1, (given_row,)),))
        estimate = capacity.learn(estimate, validated(metrics).role(role).steps, Windows())
        assert all(isfinite(t) and t >= 0 for t in estimate.theta)
        assert capacity.sound(estimate)
