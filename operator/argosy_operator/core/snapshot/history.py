"""The fleet's history: a ControllerRevision for each revision whose rollout was completed."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from argosy_operator.api.v1alpha1 import ServingDeploymentSpec
from argosy_operator.api.v1alpha1.status import RefusedStatus
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, is_owned, seconds

KIND = "ControllerRevision"


@dataclass(frozen=True)
class Past:
    """A revision of the history."""

    revision: str
    number: int
    """Grows with every rollout that is completed; a revision that comes back gets a new one."""
    made_at: float | None
    """When it was first written, in seconds since the epoch."""
    live: Object
    """The ControllerRevision."""

    @cached_property
    def spec(self) -> ServingDeploymentSpec | None:
        """What it was made of; None if this operator cannot read it."""
        data = self.live.get("data")
        try:
            return ServingDeploymentSpec.model_validate(data["spec"]) if data else None
        except (ValidationError, KeyError, TypeError):
            return None


def history_of(children: Iterable[Object], uid: str) -> tuple[Past, ...]:
    """Return the revisions of the fleet with this uid, the newest first."""
    found = list[Past]()
    for child in children:
        meta = child["metadata"]
        revision = (meta.get("labels") or {}).get(names.REVISION)
        if child["kind"] == KIND and revision and is_owned(child, uid):
            number, made = child.get("revision"), seconds(meta.get("creationTimestamp"))
            found.append(Past(revision, number if isinstance(number, int) else 0, made, child))
    return tuple(sorted(found, key=lambda past: (-past.number, past.revision)))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What comes of the mark `status.refused`."""

    mark: RefusedStatus
    asked: str
    """The revision that the spec asks for."""
    inputs: str
    """The digest of what the spec asks its pods to be."""
    runs: Past | None
    """What runs in place of the spec's revision; None: the mark has no effect."""
    why_not: str = ""
    """Why it has none."""
