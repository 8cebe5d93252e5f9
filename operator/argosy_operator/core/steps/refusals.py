"""Steps: the history of revisions, and the mark that a revision of the spec is not run.

The mark is `status.refused`, written by `kubectl argosy rollout undo`: a revision of the history
runs in place of the spec's. It counts only once it is in the live status, so an operator that dies
before or after it was written goes on from what it finds. `shell.gather` renders the fleet
`as_it_runs`. For all steps the revision of the history is then the one that comes, and the refused
one an old one that leaves.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import (
    ServingDeployment,
    ServingDeploymentSpec,
    ServingDeploymentStatus,
)
from argosy_operator.core.snapshot.actions import (
    Apply,
    Delete,
    Event,
    EventReason,
    Refuse,
    key_of,
    keys_of,
)
from argosy_operator.core.snapshot.history import KIND, Past, Refusal
from argosy_operator.core.snapshot.objects import digest
from argosy_operator.core.snapshot.snapshot import Snapshot, inputs
from argosy_operator.core.steps.draft import Draft, StepReason

KEPT = 10
"""Revisions in the history."""


def inputs_of(fleet: ServingDeployment, default_image: str) -> str:
    """Return a digest of what a spec, as it is written, asks its pods to be. It is the same for
    every operator version, whichever GPU type was chosen and whatever was fetched. `default_image`
    counts for a fleet that follows it."""
    bare = fleet.model_copy(update={"status": ServingDeploymentStatus()})
    image = default_image if fleet.spec.image_updates == "Follow" else ""
    return digest(inputs(bare, engine_image=image))


def read_refusal(
    fleet: ServingDeployment, asked: str, default_image: str, history: Iterable[Past]
) -> Refusal | None:
    """Return what comes of the mark of a fleet whose spec asks for the revision `asked`; None
    without a mark.

    Others may write status, so nothing in it is trusted. If the history has lost the revision that
    is to run, the newest other one takes its place.
    """
    mark = fleet.status.refused
    if mark is None:
        return None
    asks = inputs_of(fleet, default_image)
    if mark.inputs not in (None, asks) or (mark.inputs is None and mark.revision != asked):
        return Refusal(mark, asked, asks, None, "the spec asks for another revision now")
    others = [past for past in history if past.revision not in (mark.revision, asked)]
    for past in sorted(others, key=lambda past: past.revision != mark.runs):
        if past.spec is not None:
            return Refusal(mark, asked, asks, past)
    why = f"the history has no revision {mark.runs or 'to run'}, nor another one that can be run"
    return Refusal(mark, asked, asks, None, why)


def as_it_runs(fleet: ServingDeployment, refusal: Refusal | None) -> ServingDeployment:
    """Return the fleet with the pods of the revision that runs in place of the spec's, and with the
    spec's own values of all that changes without new pods."""
    spec = None if refusal is None or refusal.runs is None else refusal.runs.spec
    if spec is None:
        return fleet
    whole = fleet.model_copy(update={"spec": spec.model_copy(update={"paused": fleet.spec.paused})})
    try:
        mixed = ServingDeploymentSpec.model_validate(_mix(dump(spec), dump(fleet.spec)))
    except ValidationError:  # such as a budget of now that is less than its pods need
        return whole
    found = fleet.model_copy(update={"spec": mixed})
    return found if _made_of(found) == _made_of(whole) else whole


def _made_of(fleet: ServingDeployment) -> object:
    return inputs(fleet, engine_image="")


_OF_PODS = ("model", "engine", "mode", "gpuTypes", "kvTransfer", "security", "template")
"""Sections of the spec that the pods of a revision are made of."""


def _mix(old: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of now with the pods of the old one."""
    mixed = {key: value for key, value in now.items() if key not in _OF_PODS}
    mixed |= {key: old[key] for key in _OF_PODS if key in old}
    roles = {name: dict(role) for name, role in old["roles"].items()}
    for name, role in now["roles"].items():
        roles[name]["replicas"] = role["replicas"]
    flip = {"roleFlip": old["autoscaling"]["roleFlip"]}
    return mixed | {"roles": roles, "autoscaling": now["autoscaling"] | flip}


def heed_refusal(snapshot: Snapshot, draft: Draft) -> Draft:
    """Take away a mark that has no effect any more, and complete one that a person wrote."""
    refusal = snapshot.refusal
    if refusal is None:
        return draft.step(StepReason.NOTHING_REFUSED, "status.refused is not set")
    version, mark = snapshot.fleet.metadata.resource_version, refusal.mark
    if refusal.runs is None:
        drop = Refuse(snapshot.fleet.name, snapshot.fleet.metadata.uid, version, None)
        why = f"status.refused of revision {mark.revision} is dropped: {refusal.why_not}"
        event = Event(EventReason.REFUSAL_DROPPED, why, after=frozenset({key_of(drop)}))
        return draft.event(event).act(drop).within(0.0).step(StepReason.REFUSAL_DROPPED, why)
    if (mark.inputs, mark.runs) != (refusal.inputs, refusal.runs.revision):
        whole = {**dump(mark), "inputs": refusal.inputs, "runs": refusal.runs.revision}
        draft = draft.act(Refuse(snapshot.fleet.name, snapshot.fleet.metadata.uid, version, whole))
    message = f"revision {refusal.runs.revision} runs in place of {refusal.asked}: {mark.message}"
    return draft.step(StepReason.REVISION_REFUSED, message)


def record_history(snapshot: Snapshot, draft: Draft) -> Draft:
    """Write the revision that runs into the history, once it is alone and a set of it serves."""
    history = snapshot.history
    newest = history[0].revision if history else "none"
    if snapshot.retired() or not _serves(snapshot, draft) or snapshot.past is None:
        return draft.step(StepReason.HISTORY_WAITS, f"the newest revision in it is {newest}")
    live = next((past for past in history if past.revision == snapshot.revision), None)
    number = 1 + (history[0].number if history else 0)
    if live is None:
        draft = draft.act(Apply({**snapshot.past, "revision": number}))
    elif live.spec is None:  # what it holds cannot be changed, so it is made again
        draft = draft.act(Delete(KIND, live.live["metadata"]["name"], live.live["metadata"]["uid"]))
    elif live is not history[0]:
        data = {"data": live.live["data"], "revision": number}
        draft = draft.act(Apply({**snapshot.past, **data}, live.live["metadata"]["uid"]))
    runs = None if snapshot.refusal is None else snapshot.refusal.runs
    others = [past for past in history if past.revision != snapshot.revision and past is not runs]
    for past in others[KEPT - 1 :]:
        meta = past.live["metadata"]
        draft = draft.act(Delete(KIND, meta["name"], meta["uid"]))
    written = [a for a in draft.actions if _about_history(a)]
    if written:
        return draft.step(StepReason.RECORDING_HISTORY, keys_of(written))
    return draft.step(StepReason.HISTORY_KEPT, f"{len(history)} revisions, the newest {newest}")


def _about_history(action: object) -> bool:
    match action:
        case Apply(obj):
            return bool(obj["kind"] == KIND)
        case Delete(kind):
            return kind == KIND
    return False


def _serves(snapshot: Snapshot, draft: Draft) -> bool:
    """Whether a complete set of the revision serves."""
    roles = [role for role, wanted in draft.targets.items() if wanted > 0]
    return bool(roles) and all(any(p.serving for p in snapshot.current(role)) for role in roles)
