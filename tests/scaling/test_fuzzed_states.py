"""Whatever numbers a state has, with whatever numbers are seen, the law answers."""

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.observe import FleetMetrics, Observations
from argosy_law.record import from_json, to_json
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, supply
from tests.scaling.test_safety import METRICS
from tests.scaling.test_state import play, taught

pytestmark = pytest.mark.slow

Place = tuple[dict[str, Any] | list[Any], str | int]
NUMBERS = (
    st.floats()
    | st.sampled_from((0.0, -1.0, 1e-300, 1e300, -1e9, START + 1e6))
    | st.integers(-3, 10**12)
)


def numbers(found: Any) -> Iterator[Place]:
    """Where a state, as JSON, has a number."""
    inside = enumerate(found) if isinstance(found, list) else found.items()
    for key, value in inside:
        if isinstance(value, dict | list):
            yield from numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield found, key


def learnt() -> str:
    state, _ = play(ScalingState(), START - 80, 40)
    return json.dumps(to_json(state))


LEARNT = learnt()
COUNT = sum(1 for _ in numbers(json.loads(LEARNT)))


@settings(max_examples=200, deadline=None)
@given(
    spoilt=st.dictionaries(st.integers(0, COUNT - 1), NUMBERS, min_size=1, max_size=4),
    seen=METRICS | st.just(taught(START)),
)
def test_no_numbers_in_a_state_make_the_law_raise(
    spoilt: dict[int, float], seen: FleetMetrics
) -> None:
    written = json.loads(LEARNT)
    places = list(numbers(written))
    for index, value in spoilt.items():
        holder, key = places[index]
        whole = isinstance(holder[key], int)
        if not whole or isfinite(value):
            holder[key] = int(value) if whole else value
    state: ScalingState = from_json(ScalingState, written)
    for tick in range(3):
        now = START + 2 * tick
        state, decision = decide(state, Observations(seen, supply(3, 3)), GOALS, now)
        assert all(type(t.replicas) is int and 1 <= t.replicas <= 4 for t in decision.targets)


def test_the_state_has_numbers_in_every_part() -> None:
    assert COUNT > 100
