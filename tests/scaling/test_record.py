"""Records of decisions: what is written as JSON, and what is said of one that cannot be read."""

from typing import Any

import pytest

from argosy_law.decision import Decision, Rule
from argosy_law.goals import SLO
from argosy_law.observe import Idle, Observations, RoleSupply, Unknown, Value
from argosy_law.record import from_json, parse_json, to_json
from tests.scaling import known

OBSERVED = Observations(
    known.metrics(known.START, 4.0, {"prefill": 2, "decode": 3}),
    (RoleSupply("prefill", 2, 2, gpus_per_replica=4), RoleSupply("decode", 3, 3)),
)


def test_signals_are_written_by_their_kind() -> None:
    assert to_json(Value(1.5, 2.0)) == {"value": 1.5, "at": 2.0}
    assert to_json(Idle(2.0)) == {"idle": 2.0}
    assert to_json(Unknown("why")) == {"unknown": "why"}
    assert to_json({"a": (Rule.HOLD, None, True, 3)}) == {"a": ["Hold", None, True, 3]}
    with pytest.raises(TypeError, match=r"^object has no JSON form in a decision record$"):
        to_json(object())


@pytest.mark.parametrize(
    ("field", "data", "message"),
    [
        ("metrics", [], "Observations.metrics: expected an object"),
        ("supply", {}, "Observations.supply: expected a list"),
        ("front", {"in_flight": "x"}, "Observations.front.in_flight: expected <class 'int'>"),
        ("front", {"idle_s": "x"}, "Observations.front.idle_s: expected a number"),
        ("front", {"unheard_s": True}, "Observations.front.unheard_s: expected a number"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_by_its_field(
    field: str, data: object, message: str
) -> None:
    written = to_json(OBSERVED)
    assert isinstance(written, dict)
    assert from_json(Observations, written) == OBSERVED
    with pytest.raises(ValueError, match="Observations") as caught:
        from_json(Observations, {**written, field: data})  # type: ignore[dict-item]
    assert str(caught.value) == message


def test_fields_of_a_newer_operator_are_left_alone() -> None:
    assert from_json(SLO, {"ttft_s": 1.0, "tpot_s": 0.04, "newer": 3}) == SLO(1.0, 0.04)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([], "Decision.numbers: expected an object"),
        ({"bins": "x"}, "Decision.numbers.bins: expected a number"),
    ],
)
def test_numbers_that_cannot_be_read_are_named(numbers: Any, message: str) -> None:
    decision = Decision(1.0, (), Rule.HOLD, "", True, True, {"bins": 4.0})
    written = to_json(decision)
    assert isinstance(written, dict)
    assert from_json(Decision, written) == decision
    with pytest.raises(ValueError, match="Decision") as caught:
        from_json(Decision, {**written, "numbers": numbers})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1e999",
        "[-1e999]",
        "NaN",
        '{"a": Infinity}',
        "9" * 5000,
        str(2**63),
        "1" + "0" * 400,
        "{",
        "",
        b"\xff\xfe",
    ],
    ids=lambda text: str(text)[:12],
)
def test_text_of_others_that_arithmetic_cannot_take_is_no_json(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
