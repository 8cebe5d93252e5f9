"""`slo.firstToken: Auto`: what the law chooses reaches the gateways, and outlives the operator."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_law.state import FirstTokens
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.scaling import known
from tests.support.model import Model, converged

SLO: dict[str, Any] = {"ttft": {"target": "1s"}, "tpot": {"target": "60ms"}, "firstToken": "Auto"}
HAVE: known.Have = {"prefill": 1, "decode": 1}


def begun(**spec: Any) -> Model:
    model = converged(mode="disaggregated", **{"slo": SLO, **spec})
    assert not holds(model)
    return model


def chosen(model: Model, holds: bool = True) -> None:
    """The law changes its choice."""
    scaling = replace(model.memory.scaling, first_tokens=FirstTokens(holds))
    model.memory = replace(model.memory, scaling=scaling)


def decided(model: Model) -> None:
    """A round in which the law has metrics, and the next one."""
    model.now = max(model.now, model.memory.decide_at)
    model.metrics = known.metrics(model.now, 1.0, HAVE)
    for _ in range(2):
        model.round()
        model.tick()


def holds(model: Model) -> bool:
    return "within-target" in model.settings_of_gateways()


def holding() -> Model:
    model = begun()
    decided(model)
    chosen(model)
    model.converge()
    assert holds(model)
    return model


def test_running_gateways_follow_the_choice_and_no_pod_is_replaced() -> None:
    model = begun()
    decided(model)
    before = set(model.pods)
    for choice in (True, False):
        chosen(model, choice)
        model.converge()
        assert holds(model) is choice
    assert set(model.pods) == before


@pytest.mark.parametrize("written", [True, False])
def test_an_operator_that_dies_after_a_change_goes_on_from_what_gateways_do(written: bool) -> None:
    """What the law had learnt was written before the change, or never."""
    model = holding()
    if not written:
        model.children.pop(("ConfigMap", "chat-learnt"), None)
    model.memory = LoopMemory()
    model.metrics = None
    model.converge()
    assert holds(model)
    decided(model)
    assert holds(model)
    assert model.memory.scaling.first_tokens.holds


def test_an_operator_that_dies_before_gateways_know_of_the_change_decides_again() -> None:
    model = begun()
    decided(model)
    chosen(model)
    model.round(crash_after=0)
    decided(model)
    assert not holds(model)
    assert not model.memory.scaling.first_tokens.holds


@pytest.mark.parametrize(
    "edit",
    [{"autoscaling": {"policy": "None"}}, {"autoscaling": {"advisory": True}}],
    ids=["policy None", "advisory"],
)
def test_where_the_law_does_not_decide_first_tokens_leave_at_once(edit: dict[str, Any]) -> None:
    model = holding()
    model.edit(**edit)
    model.converge()
    assert not holds(model)


def test_an_edit_to_auto_leaves_the_gateways_as_they_are_until_the_law_decides() -> None:
    model = converged(mode="disaggregated", slo={**SLO, "firstToken": "WithinTarget"})
    assert holds(model)
    decided(model)
    model.edit(slo=SLO)
    model.converge()
    assert holds(model)
