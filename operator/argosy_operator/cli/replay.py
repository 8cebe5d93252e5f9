"""Whether the record of a decision is whole: deciding again from it gives the same answer.

`explanation.py` asks it of `status.autoscaling.lastDecision`, which an account with the right to
patch the status subresource can edit. Pure.
"""

from collections.abc import Mapping
from typing import Any

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.goals import Goals
from argosy_law.observe import Observations
from argosy_law.record import from_json, to_json
from argosy_law.state import ScalingState


def replayed(record: Mapping[str, Any]) -> Decision:
    """Decide again from the record's inputs. Raises ValueError if they are not readable."""
    try:
        state = from_json(ScalingState, record["state"])
        seen = from_json(Observations, record["observations"])
        goals = from_json(Goals, record["goals"])
        return decide(state, seen, goals, float(record["now"]))[1]
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def difference(last: Mapping[str, Any]) -> str | None:
    """Where the decision and its record disagree, as a sentence; None if they agree.

    `last` is `status.autoscaling.lastDecision`. It disagrees after an edit by hand, and when
    another version of the law made it.
    """
    record = last.get("record")
    if not record:
        return None
    try:
        again = replayed(record)
    except ValueError as error:
        return f"the record's inputs cannot be read ({error})"
    moved = {target.role: target.replicas for target in again.targets}
    if moved != dict(last.get("to", {})):
        said = ", ".join(f"{role} {count}" for role, count in moved.items())
        return f"deciding again from the record gives {said}"
    if to_json(again) != record.get("decision"):
        return "deciding again from the record gives other numbers"
    return None
