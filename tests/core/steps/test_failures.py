"""An action that failed waits, longer after each attempt, and so does what needs it."""

from dataclasses import replace

import pytest

from argosy_operator.core.plan import conclude, plan
from argosy_operator.core.snapshot.actions import (
    Action,
    Apply,
    Delete,
    ErrorKind,
    HastenDrain,
    Outcome,
    key_of,
)
from argosy_operator.core.snapshot.snapshot import Failure
from argosy_operator.core.steps.failures import learn_failures, list_failures
from tests.support.model import Model, converged

DELETE = Delete("PodDisruptionBudget", "old", "uid")
KEY = "Delete PodDisruptionBudget/old"


def learnt(
    model: Model, error: ErrorKind | None, message: str = "no", action: Action = DELETE
) -> dict[str, Failure]:
    """What is known of failures after the action ended so, kept for the next attempt."""
    failed = learn_failures(
        model.snapshot(), model.memory.failed, [Outcome(action, error, message)]
    )
    model.memory = replace(model.memory, failed=failed)
    return failed


PAUSES = {
    ErrorKind.FAILED: [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60, 60],
    ErrorKind.CONFLICT: [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60, 60, 60, 60, 60],
    ErrorKind.EXISTS: [0.2, 0.4, 0.8],
    ErrorKind.NOT_FOUND: [0.2, 0.4, 0.8],
    ErrorKind.GONE: [0.2, 0.4, 0.8],
    ErrorKind.FORBIDDEN: [10, 20, 40, 60, 60],
    ErrorKind.QUOTA: [10, 20, 40, 60, 60],
    ErrorKind.TERMINATING: [10, 20, 40, 60, 60],
    ErrorKind.INVALID: [10, 20, 40, 60, 60],
}
"""Seconds before the second, third, … attempt. A race is over soon; a refusal is not."""


@pytest.mark.parametrize("error", PAUSES)
def test_each_pause_is_twice_as_long_as_the_one_before_and_at_most_a_minute(
    error: ErrorKind,
) -> None:
    model = converged()
    pauses = []
    for _ in PAUSES[error]:
        failure = learnt(model, error)[KEY]
        pauses.append(round(failure.retry_at - model.now, 3))
        model.now += 100
    assert pauses == PAUSES[error]


@pytest.mark.parametrize(
    "error",
    [
        ErrorKind.NOT_LEADER,
        ErrorKind.THROTTLED,
        ErrorKind.TRANSPORT,
        ErrorKind.UNAUTHORIZED,
        ErrorKind.FOREIGN,
    ],
)
def test_errors_of_the_server_and_taken_names_are_no_failures_of_the_action(
    error: ErrorKind,
) -> None:
    assert learnt(converged(), error) == {}


@pytest.mark.parametrize(
    ("error", "message", "kept"),
    [
        (ErrorKind.FAILED, "no answer from port 4711 in 10 s", "no answer from port 80 in 9 s"),
        (ErrorKind.FAILED, "another webhook", "another webhook"),
        (ErrorKind.INVALID, "no answer from port 4711 in 10 s", "no answer from port 4711 in 10 s"),
    ],
)
def test_a_message_stays_while_only_its_numbers_change(
    error: ErrorKind, message: str, kept: str
) -> None:
    model = converged()
    learnt(model, ErrorKind.FAILED, "no answer from port 80 in 9 s")
    assert learnt(model, error, message)[KEY].message == kept


def failure(error: ErrorKind, times: int = 1, since: float = 0.0, what: str = "a") -> Failure:
    return Failure(what, False, error, "", since, times, 0.0, 1)


def test_a_race_is_shown_from_its_fourth_attempt_and_another_error_at_once() -> None:
    races = [ErrorKind.CONFLICT, ErrorKind.EXISTS, ErrorKind.NOT_FOUND, ErrorKind.GONE]
    for error in races:
        assert list_failures({"k": failure(error, 3)}) == []
        assert len(list_failures({"k": failure(error, 4)})) == 1
    assert len(list_failures({"k": failure(ErrorKind.FORBIDDEN)})) == 1


def without(model: Model, *keys: tuple[str, str]) -> None:
    for key in keys:
        del model.children[key]


def failing(model: Model, *objects: str, error: ErrorKind = ErrorKind.FAILED) -> None:
    """A round in which the actions on these objects fail, and the others are not carried out."""
    snapshot = model.snapshot()
    planned = plan(snapshot)
    about = [a for a in planned.actions if key_of(a).split()[1] in objects]
    assert len(about) == len(objects)
    outcomes = tuple(Outcome(action, error, "no") for action in about)
    model.memory = conclude(snapshot, planned, outcomes).memory


def test_what_failed_waits_then_comes_last_and_the_rest_goes_on() -> None:
    model = converged()
    without(model, ("ServiceAccount", "chat-gateway"), ("Service", "chat"))
    account, service = "Apply ServiceAccount/chat-gateway", "Apply Service/chat"
    order = [key_of(a) for a in plan(model.snapshot()).actions]
    assert order == [account, service]
    failing(model, "ServiceAccount/chat-gateway")
    planned = plan(model.snapshot())
    assert [key_of(a) for a in planned.actions] == [service]
    assert planned.memory.failed == model.memory.failed, "it is not forgotten while it waits"
    model.now += 0.999
    assert [key_of(a) for a in plan(model.snapshot()).actions] == [service]
    model.now += 0.001
    assert [key_of(a) for a in plan(model.snapshot()).actions] == [service, account]


def test_what_needs_a_failed_action_waits_with_it_and_comes_after_it() -> None:
    model = converged()
    without(model, ("Role", "chat-gateway"), ("RoleBinding", "chat-gateway"))
    role, binding = "Apply Role/chat-gateway", "Apply RoleBinding/chat-gateway"
    failing(model, "Role/chat-gateway")
    planned = plan(model.snapshot())
    assert planned.actions == ()
    said = next(s for s in planned.draft.steps if s.name == "back_off_failed_actions")
    assert said.message == f"{role}, {binding}; the next attempt is in 1 s"
    model.now += 1
    planned = plan(model.snapshot())
    assert [key_of(a) for a in planned.actions] == [role, binding]
    said = next(s for s in planned.draft.steps if s.name == "back_off_failed_actions")
    assert said.message == f"{role}, {binding}"


def test_an_edit_of_the_spec_ends_the_wait() -> None:
    model = converged()
    without(model, ("Service", "chat"))
    failing(model, "Service/chat", error=ErrorKind.FORBIDDEN)
    assert plan(model.snapshot()).actions == ()
    model.edit(drain={"timeout": "100s"})
    assert "Apply Service/chat" in [key_of(a) for a in plan(model.snapshot()).actions]


def test_a_failure_whose_action_is_no_longer_wanted_is_forgotten() -> None:
    model = converged()
    live = model.children["Service", "chat"]
    without(model, ("Service", "chat"))
    failing(model, "Service/chat")
    assert list(model.memory.failed) == ["Apply Service/chat"]
    model.children["Service", "chat"] = live
    model.round()
    assert model.memory.failed == {}


def test_a_pod_whose_mark_was_refused_is_not_told_to_drain() -> None:
    model = converged(
        roles={"colocated": {"replicas": {"min": 1, "max": 4}}},
        autoscaling={"policy": "External"},
    )
    model.scale_role("colocated", 2)
    model.converge()
    model.scale_role("colocated", 1)
    model.memory = replace(model.memory, ask_loads=True)
    told = [a for a in plan(model.snapshot()).actions if isinstance(a, HastenDrain)]
    assert len(told) == 1
    snapshot = model.snapshot()
    planned = plan(snapshot)
    mark = planned.actions[0]
    refused = Outcome(mark, ErrorKind.FORBIDDEN, "no")
    model.memory = replace(conclude(snapshot, planned, (refused,)).memory, ask_loads=True)
    assert plan(model.snapshot()).actions == ()


def test_applied_objects_are_what_a_plan_learns_of() -> None:
    model = converged()
    without(model, ("Service", "chat"))
    snapshot = model.snapshot()
    planned = plan(snapshot)
    (apply,) = planned.actions
    assert isinstance(apply, Apply)
    ended = conclude(snapshot, planned, (Outcome(apply, applied=apply.obj),))
    assert ended.memory.accepted_drift == {}
