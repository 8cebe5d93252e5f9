"""Steps: the children of the fleet exist and look as rendered.

A missing child is created. A field of ours that another writer changed is changed back, with an
Event that names the writer. What others add to an object stays. An object of another owner that has
the name of a child is reported and not touched.

A gateway reads its ConfigMap every five seconds (designs/0028), so an edit of the SLO, of the names
or of the routing is in effect some seconds after it was written, and no pod shows it. The plan
looks again soon until `RolledOut` is True of the spec's generation.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1.status import Condition
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    Action,
    Apply,
    Create,
    Delete,
    Event,
    EventReason,
    KeepReplicas,
    Outcome,
    key_of,
    keys_of,
)
from argosy_operator.core.snapshot.objects import (
    APPLIED,
    ChildKey,
    Object,
    applied_at,
    changed_by,
    child_key,
    differences,
    digest,
    only_applied_replicas,
    owner_of_replicas,
    readable,
    replicas_of,
    signed,
    value_at,
)
from argosy_operator.core.snapshot.pods import Pod, gateways_to_ask
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot, role_of
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.failures import LOOK_AT_TAKEN_NAMES_S

LOOK_AT_DELETED_S = 2.0
"""How soon to look whether a child that is being deleted is gone and can be created again."""


def apply_children(snapshot: Snapshot, draft: Draft) -> Draft:
    """Apply what does not depend on the number of pods, and the Deployments that exist already."""
    for wanted in snapshot.wanted:
        if wanted["kind"] != "ServingRole" or child_key(wanted) in snapshot.children:
            draft = _apply_child(snapshot, draft, wanted)
    for wanted in snapshot.engines.values():
        if child_key(wanted) in snapshot.children:
            draft = _apply_child(snapshot, draft, wanted)
    draft = _delete_unused(snapshot, draft)
    if draft.actions:
        return draft.step(StepReason.APPLYING_CHILDREN, keys_of(draft.actions))
    if draft.foreign:
        taken = ", ".join(f"{kind}/{name}" for kind, name in draft.foreign)
        return draft.step(StepReason.NAME_TAKEN, f"of another owner: {taken}")
    message = f"{len(snapshot.children)} children are as rendered"
    return draft.step(StepReason.CHILDREN_UP_TO_DATE, message)


def create_workloads(snapshot: Snapshot, draft: Draft) -> Draft:
    """Create ServingRoles and Deployments that do not exist, with their numbers of pods."""
    roles = [obj for obj in snapshot.wanted if obj["kind"] == "ServingRole"]
    created = list[Action]()
    for wanted in (*roles, *snapshot.engines.values()):
        if child_key(wanted) not in snapshot.children:
            obj = signed(wanted)
            replicas = next(
                target if wanted["kind"] == "ServingRole" else draft.replicas(role)
                for role, target in draft.targets.items()
                if role == role_of(wanted)
            )
            create = Create({**obj, "spec": {**obj["spec"], "replicas": replicas}})
            draft = _event_recreated(snapshot, draft, wanted, create).act(create)
            created.append(create)
    if created:
        return draft.step(StepReason.CREATING_WORKLOADS, keys_of(created))
    return draft.step(StepReason.WORKLOADS_EXIST, f"of {', '.join(draft.targets)}")


def learn_accepted_drift(memory: LoopMemory, outcomes: tuple[Outcome, ...]) -> LoopMemory:
    """Accept differences that the API server or a webhook makes again after our apply.

    They are accepted until one side changes. Otherwise the operator and the webhook would write in
    turns without end.
    """
    accepted: dict[ChildKey, str] = dict(memory.accepted_drift)
    for outcome in outcomes:
        if isinstance(outcome.action, Apply) and outcome.applied is not None:
            wanted = outcome.action.obj
            accepted.pop(child_key(wanted), None)
            if next(differences(wanted, outcome.applied), None) is not None:
                accepted[child_key(wanted)] = drift_digest(wanted, outcome.applied)
    return replace(memory, accepted_drift=accepted)


def drift_digest(wanted: Object, live: Object) -> str:
    """Changes when the rendered object changes, or the live one differs from it in other fields or
    by other values."""
    found = {readable(path): value_at(live, path) for path in differences(wanted, live)}
    return digest([sorted(found.items()), wanted])


def _apply_child(snapshot: Snapshot, draft: Draft, wanted: Object) -> Draft:
    """Add the action, if one is needed, that makes a child look as rendered."""
    key, obj = child_key(wanted), signed(wanted)
    live = snapshot.children.get(key)
    if live is None:
        new = _first(snapshot, obj)
        return _event_recreated(snapshot, draft, wanted, new).act(new)
    if not snapshot.is_ours(live):
        return replace(draft, foreign=(*draft.foreign, key)).within(LOOK_AT_TAKEN_NAMES_S)
    if "deletionTimestamp" in live["metadata"]:
        return draft.within(LOOK_AT_DELETED_S)
    found = list(differences(obj, live))
    if not found or snapshot.memory.accepted_drift.get(key) == drift_digest(obj, live):
        return draft
    if _scaled_by_others(obj) and only_applied_replicas(live):
        # Alone in its round: if it fails, the apply that depends on it is not made.
        meta = live["metadata"]
        keep = KeepReplicas(key[1], meta["uid"], replicas_of(live), meta["resourceVersion"])
        return draft.act(keep)
    changed = [path for path in found if APPLIED not in path]
    rendered_same = not any(APPLIED in path for path in found)
    apply = Apply(obj, live["metadata"]["uid"])
    if changed and rendered_same:
        who = changed_by(live, changed[0])
        message = (
            f"{who} changed {readable(changed[0])} of {key[0]} {key[1]}; it was put back. "
            f"{_instead(wanted, changed[0])}"
        )
        draft = draft.event(Event(EventReason.PUT_BACK, message, True, frozenset({key_of(apply)})))
    return draft.act(apply)


def _scaled_by_others(wanted: Object) -> bool:
    """Is this the Deployment of gateways that are rendered without their number?"""
    gateway = (wanted["kind"], role_of(wanted)) == ("Deployment", names.GATEWAY_ROLE)
    return gateway and "replicas" not in wanted["spec"]


def _first(snapshot: Snapshot, obj: Object) -> Apply:
    """What makes a child that does not exist. Gateways that others scale are applied with their
    first number, which `KeepReplicas` gives up before the next apply. A plain create would own
    every field by another operation, and no apply could remove one."""
    if not _scaled_by_others(obj):
        return Apply(obj)
    replicas = snapshot.fleet.spec.routing.first_gateways
    return Apply({**obj, "spec": {**obj["spec"], "replicas": replicas}})


def _instead(wanted: Object, path: tuple[str, ...]) -> str:
    """What the writer of a field of ours does instead."""
    if path == ("spec", "replicas") and role_of(wanted) == names.GATEWAY_ROLE:
        return (
            "Change spec.routing.replicas of the ServingDeployment instead, or write "
            "spec.routing.autoscaling.policy: External, and the number is left to others"
        )
    return "Change the ServingDeployment instead"


def _delete_unused(snapshot: Snapshot, draft: Draft) -> Draft:
    """Delete ServingRoles and disruption budgets of roles that run no pods any more, and a
    NetworkPolicy or a HorizontalPodAutoscaler that the spec turned off.

    Under policy External the number in a ServingRole is of its writer. It is needed again when the
    mode changes back, so a ServingRole that another writer has scaled stays.
    """
    external = snapshot.fleet.spec.autoscaling.is_by_others
    wanted = {child_key(obj) for obj in snapshot.wanted}
    running = {role_of(child) for child in snapshot.retired()}
    kinds = ("ServingRole", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler")
    for kind in kinds:
        for name, child in snapshot.owned(kind).items():
            theirs = external and owner_of_replicas(child) not in (None, names.FIELD_MANAGER)
            if kind == "ServingRole" and theirs:
                continue
            if (kind, name) not in wanted and role_of(child) not in running:
                draft = draft.act(Delete(kind, name, child["metadata"]["uid"]))
    return draft


def _event_recreated(snapshot: Snapshot, draft: Draft, wanted: Object, action: Action) -> Draft:
    """Add an event for a child that was deleted and is created again.

    A fleet that has never been reconciled at this generation creates its children for the first
    time, and so does a revision that status does not show yet.
    """
    known = snapshot.fleet.status.observed_generation == snapshot.fleet.metadata.generation
    revision = (wanted["metadata"].get("labels") or {}).get(names.REVISION)
    if not known or (revision and revision not in _revisions_in_status(snapshot)):
        return draft
    message = f"{wanted['kind']} {wanted['metadata']['name']} was gone; it was created again"
    event = Event(EventReason.CREATED_AGAIN, message, True, frozenset({key_of(action)}))
    return draft.event(event)


def _revisions_in_status(snapshot: Snapshot) -> set[str]:
    roles = snapshot.fleet.status.roles
    return {r.revision for r in (roles.prefill, roles.decode, roles.colocated) if r is not None}


UNHEARD_S = 30.0
"""Seconds after the settings were written in which a gateway without an answer holds RolledOut up.
Gateways read them five times in that time, at most 6 s apart. An operator outside of the cluster's
network reaches no gateway, and its fleets must be rolled out, too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gateway that goes on with older settings, because it cannot use those of the spec."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class InUse:
    """The Ready gateways that may not use the settings of the spec, by name of the pod."""

    ready: int = 0
    """Ready gateways, those that use them included."""
    age_s: float | None = None
    """Since when the object has these settings. None: it has not, or does not say since when."""
    pending: tuple[str, ...] = ()
    """They use older ones."""
    refusing: tuple[Refusal, ...] = ()
    unknown: tuple[str, ...] = ()
    """They did not answer, and are waited for."""
    silent: tuple[str, ...] = ()
    """They did not answer, and are not waited for any more."""


def is_rolled_out(before: Iterable[Condition], generation: int) -> bool:
    """The conditions before this round say so of this generation."""
    return any(
        (c.type, c.status) == (ConditionType.ROLLED_OUT, "True")
        and c.observed_generation == generation
        for c in before
    )


def in_use(snapshot: Snapshot) -> InUse:
    """By the answers of this round. A gateway that was not asked, and an older one that does not
    say what it uses, counts as one that uses them."""
    key = ("ConfigMap", names.settings(snapshot.fleet.name))
    rendered = next((obj for obj in snapshot.wanted if child_key(obj) == key), None)
    if rendered is None:  # a fleet without gateways
        return InUse()
    ready = sorted(
        (pod for pod in gateways_to_ask(snapshot.pods) if pod.alive and pod.ready),
        key=lambda pod: pod.name,
    )
    live = snapshot.owned("ConfigMap").get(key[1])
    if live is None or _text(live) != _text(rendered):
        return InUse(len(ready), pending=tuple(pod.name for pod in ready))
    written = applied_at(live)
    age_s = None if written is None else snapshot.now - written
    answers = snapshot.gateway_loads
    asked = [pod for pod in ready if pod.name in answers]
    mute = [p.name for p in asked if answers[p.name] is None and not _is_newer(p, written)]
    waited_for = age_s is None or age_s < UNHEARD_S
    heard = [(pod.name, answer) for pod in asked if (answer := answers[pod.name]) is not None]
    said = [(name, answer.settings) for name, answer in heard if answer.settings is not None]
    digest = _digest(_text(rendered))
    return InUse(
        len(ready),
        age_s,
        pending=tuple(name for name, read in said if read.digest != digest),
        refusing=tuple(
            Refusal(name, read.refused)
            for name, read in said
            if read.digest == digest and read.refused
        ),
        unknown=tuple(mute) if waited_for else (),
        silent=() if waited_for else tuple(mute),
    )


def _is_newer(pod: Pod, written: float | None) -> bool:
    """Whether the pod was made after the settings were written: it was not Ready before it had read
    them."""
    return written is not None and pod.created_at >= written


def _text(settings: Object) -> str:
    """The settings themselves; others may add keys to the object."""
    return str((settings.get("data") or {}).get(names.SETTINGS_KEY))


def _digest(text: str) -> str:
    """As a gateway computes it from what it reads (designs/0001-seams.md)."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


LOOK_S = 2.0
"""Gateways read their settings every five seconds, and no event says that they have."""


def await_settings(snapshot: Snapshot, draft: Draft) -> Draft:
    """Ends when all gateways use the settings of this generation. They are not asked after that."""
    fleet, found = snapshot.fleet, in_use(snapshot)
    if is_rolled_out(fleet.status.conditions, fleet.metadata.generation):
        return draft.step(StepReason.SETTINGS_IN_USE, "RolledOut is True of this generation")
    age_s = found.age_s or 0.0
    if found.pending:
        # A gateway that has not taken them by then cannot read them, and a person must act.
        draft = draft.within(LOOK_S if age_s < UNHEARD_S else UNHEARD_S)
    if found.unknown:
        draft = draft.within(max(LOOK_S, UNHEARD_S - age_s))
    if found.pending or found.unknown:
        waiting = ", ".join((*found.pending, *found.unknown))
        return draft.step(StepReason.SETTINGS_PENDING, f"waits for {waiting}")
    if found.refusing:
        named = ", ".join(f"{each.pod}: {each.why}" for each in found.refusing)
        return draft.step(StepReason.SETTINGS_REFUSED, named)
    message = f"none of {found.ready} Ready gateways says that it uses others"
    return draft.step(StepReason.SETTINGS_IN_USE, message)
