"""One round's choice of a GPU type, with the clock set forward instead of rounds in between."""

from typing import Any

import pytest

from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import AnnotateRole, Event, EventReason
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.steps.draft import StepReason
from tests.core.steps.test_gpu_types import (
    A100,
    GOODPUT,
    H100,
    MI300,
    prices,
    remember,
    spec,
    until,
)
from tests.support.model import Model, converged

AFTER_S = 30.0


def waiting(*types: dict[str, Any]) -> Model:
    """A new fleet whose pods of the first type found no node from their start on."""
    fleet = converged(**spec(*types, autoscaling={"gpuTypeFallback": f"{AFTER_S:.0f}s"})).fleet
    model = Model(fleet, room={"h100": 0})
    until(model, 4)
    return model


def began(model: Model) -> float:
    return min(pod.created_at for pod in model.snapshot().pods if pod.unschedulable is not None)


def choice(planned: Plan) -> tuple[StepReason, str]:
    (step,) = (s for s in planned.draft.steps if s.name == "choose_gpu_types")
    return StepReason(step.reason), step.message


def notes(planned: Plan) -> list[AnnotateRole]:
    return [action for action in planned.actions if isinstance(action, AnnotateRole)]


def said(planned: Plan) -> list[Event]:
    return [event for event in planned.draft.events if event.reason == EventReason.GPU_TYPE]


def full(model: Model, name: str) -> str:
    """As it is noted of a type that had no room a minute ago."""
    return f"{name}={rfc3339(model.now - 60)}"


def test_a_fleet_without_types_has_no_choice() -> None:
    planned = plan(converged(roles={"colocated": {"replicas": {"min": 1}}}).snapshot())
    assert choice(planned) == (StepReason.ANY_GPU, "no role has gpuTypes")


@pytest.mark.parametrize("left_s", [1.0, 20.0])
def test_the_next_round_comes_when_the_wait_is_over(left_s: float) -> None:
    model = waiting(H100, A100)
    model.now = began(model) + AFTER_S - left_s
    planned = plan(model.snapshot())
    assert choice(planned) == (StepReason.GPU_TYPES_STAY, "colocated h100")
    assert (notes(planned), planned.wake_s <= left_s) == ([], True)


def test_at_the_end_of_the_wait_the_next_type_is_noted_with_the_one_that_is_full() -> None:
    model = waiting(H100, A100)
    model.now = began(model) + AFTER_S
    planned = plan(model.snapshot())
    (action,), (event,) = notes(planned), said(planned)
    assert action.name == "chat-colocated"
    assert action.values[names.GPU_TYPE].startswith("a100 1970-01-")
    assert action.values[names.GPU_TYPES_FULL].startswith("h100=1970-01-")
    assert (event.warning, planned.wake_s) == (True, 0.0)
    assert event.message.startswith("colocated goes on with GPU type a100: pod chat-colocated-")
    assert " found no node with h100 for 30 s: 0/3 nodes" in event.message
    assert choice(planned) == (StepReason.GPU_TYPES_CHANGE, event.message)


def test_a_type_that_is_full_too_is_passed_over() -> None:
    model = waiting(H100, A100, MI300)
    live = model.children["ServingRole", "chat-colocated"]["metadata"]["annotations"]
    model.now = began(model) + AFTER_S
    live[names.GPU_TYPES_FULL] = full(model, "a100")
    (action,) = notes(plan(model.snapshot()))
    assert action.values[names.GPU_TYPE].startswith("mi300 ")
    assert action.values[names.GPU_TYPES_FULL].count("=") == 2
    live[names.GPU_TYPES_FULL] += "," + full(model, "mi300")
    planned = plan(model.snapshot())
    message = "colocated stays on h100: none of its gpuTypes has room"
    assert choice(planned) == (StepReason.NO_GPU_TYPE_HAS_ROOM, message)
    assert (notes(planned), said(planned)) == ([], [])


def test_a_cheaper_type_is_noted_and_what_it_saves_is_said() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    remember(model, prices(model, h100=12.3, a100=9.0))
    planned = plan(model.snapshot())
    (action,), (event,) = notes(planned), said(planned)
    why = "colocated goes to GPU type a100: 9.00 instead of 12.30 per hour for the same SLO"
    assert action.values[names.GPU_TYPE].startswith("a100 ")
    assert action.values[names.GPU_TYPES_FULL] == ""
    assert (event.warning, event.message, planned.wake_s) == (False, why, 0.0)
    assert choice(planned) == (StepReason.GPU_TYPES_CHANGE, why)


def test_without_a_serving_role_nothing_is_noted() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    remember(model, prices(model, h100=12.3, a100=9.0))
    del model.children["ServingRole", "chat-colocated"]
    planned = plan(model.snapshot())
    assert choice(planned) == (StepReason.GPU_TYPES_STAY, "colocated has no ServingRole yet")
    assert (notes(planned), said(planned)) == ([], [])
