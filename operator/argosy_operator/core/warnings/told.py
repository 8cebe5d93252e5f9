"""What the API server is told about a write of a fleet: lines for the client, never a refusal."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.core.warnings.carried import carried
from argosy_operator.core.warnings.floors import learnt_steps
from argosy_operator.core.warnings.forecast import predicted
from argosy_operator.core.warnings.spec import warnings

LONGEST, LONGEST_TOGETHER = 256, 4096
"""Characters that the API server passes on of one warning, and of all warnings of a call."""
MORE = "there are more warnings: kubectl argosy lint shows them"
SLO = ("spec", "slo")
_COMPUTES = ("model", "engine", "mode", "roles")
"""The parts of the spec on which the time of an engine step depends."""


def told(
    new: Mapping[str, Any], old: Mapping[str, Any] | None, *, dry_run: bool
) -> tuple[str, ...]:
    """The lines about an object that is about to be stored as `new`, in the place of `old`.

    An update that leaves the spec alone, such as one of labels, is told nothing, unless it is a dry
    run. Nor is one whose object this version does not understand.
    """
    if not dry_run and old is not None and old.get("spec") == new.get("spec"):
        return ()
    fleet = _fleet(new)
    if fleet is None:
        return ()
    said = [predicted(fleet.spec)]
    found = list(warnings(fleet, _learnt(fleet, new, old)))
    if not any(tuple(one.place[:2]) == SLO for one in found):
        said += carried(fleet.spec)
    return tuple(_fitting(one.text() for one in (*said, *found)))


def _fleet(of: Mapping[str, Any]) -> ServingDeployment | None:
    """The fleet without its status, which another version may have written; None if it is not
    valid here."""
    metadata = of.get("metadata")
    named = {"name": "new"} | (metadata if isinstance(metadata, dict) else {})
    try:
        return ServingDeployment.model_validate({"metadata": named, "spec": of.get("spec")})
    except ValidationError:
        return None


def _learnt(
    fleet: ServingDeployment, new: Mapping[str, Any], old: Mapping[str, Any] | None
) -> dict[RoleName, float]:
    """What the fleet's engines showed, if they go on computing in the same way."""
    before = None if old is None else _fleet(old)
    if before is None or _computing(before) != _computing(fleet):
        return {}
    return learnt_steps(new.get("status"))


def _computing(fleet: ServingDeployment) -> dict[str, Any]:
    """What the time of an engine step depends on: no names, and no numbers of pods."""
    spec = fleet.spec.model_dump(include=set(_COMPUTES))
    spec["model"].pop("served_names", None)
    for role in spec["roles"].values():
        role.pop("replicas")
    return spec


def _fitting(lines: Iterable[str]) -> Iterator[str]:
    """As many lines as the API server passes on, each no longer than it takes."""
    room = LONGEST_TOGETHER - len(MORE)
    for line in lines:
        short = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
        room -= len(short)
        if room < 0:
            yield MORE
            return
        yield short
