"""The status of a fleet: its conditions from the truth table, and its numbers.

`Findings` → `facts_of` and `messages_of` → `conditions_of`. A number changes only when it moved by
more than a step (numbers.py), so a quiet fleet writes nothing.
"""

from collections.abc import Mapping
from typing import Any

from argosy_law.decision import not_judged
from argosy_operator.api.conditions import ConditionType, Reason, upsert
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1.status import Condition, ServingDeploymentStatus
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Outcome
from argosy_operator.core.snapshot.objects import Object, rfc3339
from argosy_operator.core.snapshot.snapshot import Snapshot, role_of
from argosy_operator.core.status.facts import (
    Fact,
    Facts,
    Findings,
    Overdue,
    Standing,
    facts_of,
    facts_of_standing,
)
from argosy_operator.core.status.numbers import (
    autoscaling_status,
    error_budget_status,
    gpus_of,
    printer_columns,
    role_status,
    roles_status,
    rollout_status,
    slo_column,
)
from argosy_operator.core.status.table import FOREIGN, ROLE_TABLE, conditions_of, messages_of
from argosy_operator.core.steps.canary import promoted_revision
from argosy_operator.core.steps.draft import Draft


def status_of(
    snapshot: Snapshot, draft: Draft, outcomes: tuple[Outcome, ...]
) -> ServingDeploymentStatus:
    """The status to write; equal to the old one when nothing changed."""
    fleet = snapshot.fleet
    findings = Findings.of(snapshot, draft, outcomes)
    facts = facts_of(findings)
    conditions = upsert(
        [c.model_dump(mode="json", by_alias=True) for c in fleet.status.conditions],
        conditions_of(facts, messages_of(findings)),
        generation=fleet.metadata.generation,
        now=rfc3339(snapshot.now),
    )
    roles = roles_status(snapshot, draft)
    slo = slo_column(snapshot, findings.goodput, not_judged(findings.decision))
    refused = None if fleet.status.refused is None else dump(fleet.status.refused)
    # Clients that follow status.url would reach a Service of another owner.
    reachable = Fact.SERVICE_NAME_TAKEN not in facts
    return ServingDeploymentStatus.model_validate(
        {
            "observedGeneration": fleet.metadata.generation,
            "url": names.url(fleet.name, fleet.namespace) if reachable else None,
            "mode": fleet.spec.mode,
            "revision": snapshot.revision,
            "conditions": conditions,
            "roles": roles,
            "rollout": rollout_status(snapshot, draft),
            "refused": refused,
            "promoted": promoted_revision(snapshot, draft.trial, alone=draft.split is None),
            "images": dict(snapshot.images) or None,
            "newerImages": dict(snapshot.newer_images) or None,
            "model": _model(snapshot, draft),
            "goodput": findings.goodput,
            "errorBudget": error_budget_status(snapshot, findings.draft),
            "autoscaling": autoscaling_status(snapshot, draft),
            "columns": printer_columns(
                roles, gpus_of(snapshot), slo, _reason_column(conditions, facts)
            ),
        }
    )


def _model(snapshot: Snapshot, draft: Draft) -> Mapping[str, object] | None:
    """The model that was fetched last; of an earlier one while another is fetched."""
    known = snapshot.fleet.status.model
    if draft.model is not None or known is None or snapshot.fleet.spec.model.fetch is None:
        return draft.model
    return dump(known)


def role_status_of(snapshot: Snapshot, draft: Draft, live: Object) -> dict[str, Any]:
    """The status of a ServingRole: its pods, and whether the spec's bounds limit what it asks."""
    role, spec, generation = role_of(live), snapshot.fleet.spec, live["metadata"].get("generation")
    selector = names.selector_text(snapshot.fleet.name, role)
    given = next((n for name, n in draft.targets.items() if name == role), 0)
    serving = sum(pod.serving for pod in snapshot.pods if pod.role == role)
    messages = {Reason.STARTING: f"{serving} of {given} pods serve"}
    facts = {Fact.ROLE_LACKS_PODS} if serving < given else set[Fact]()
    asked = live["spec"].get("replicas", given)
    if spec.autoscaling.is_by_others and role in draft.targets and asked != given:
        more = asked > given
        facts.add(Fact.OUT_OF_BOUNDS)
        messages[Reason.OUT_OF_BOUNDS] = (
            f"{asked} pods asked for, {given} given: "
            f"spec.roles.{role}.replicas.{'max' if more else 'min'} is {given}"
        )
    conditions = upsert(
        (live.get("status") or {}).get("conditions") or (),
        conditions_of(frozenset(facts), messages, ROLE_TABLE),
        generation=generation or 0,
        now=rfc3339(snapshot.now),
    )
    counts = role_status(snapshot, role, selector)
    return {"observedGeneration": generation or 0, "conditions": conditions} | counts


def unreadable_fleet(
    standing: Standing, old: list[dict[str, Any]], message: str, now: float
) -> list[dict[str, Any]]:
    """Conditions of a fleet that this operator cannot read: a newer operator made it, or it was
    made before a rule was added. Its pods stay as they are, and Ready is about them. `now` in
    seconds since the epoch."""
    service = f"Service/{standing.service['metadata']['name']}" if standing.service else ""
    messages = {
        Reason.INVALID_SPEC: message,
        Reason.AS_SPECIFIED: "a complete set of engine pods serves",
        Reason.FOREIGN_OBJECT: f"{service} {FOREIGN}",
    }
    if standing.service is None:
        messages[Reason.GATEWAY_NOT_READY] = (
            "the fleet's Service is gone. It is made again once the spec can be read"
        )
    facts = facts_of_standing(standing, tuple(map(Condition.model_validate, old)))
    conditions = conditions_of(_at_once(Reason.INVALID_SPEC) | facts, messages)
    known = (
        ConditionType.READY,
        ConditionType.ROLLED_OUT,
        ConditionType.SERVABLE,
        ConditionType.RECONCILING,
        ConditionType.STALLED,
    )
    desired = [condition for condition in conditions if condition.type in known]
    return upsert(old, desired, generation=standing.generation, now=rfc3339(now))


def list_forbidden(
    generation: int, old: list[dict[str, Any]], message: str, now: float
) -> list[dict[str, Any]]:
    """Conditions of a fleet whose objects the operator may not list. It cannot tell whether the
    fleet serves, so Ready stays as it was. `now` in seconds since the epoch."""
    messages = {Reason.FORBIDDEN: message}
    conditions = conditions_of(_at_once(Reason.FORBIDDEN), messages)
    known = (ConditionType.RECONCILING, ConditionType.STALLED)
    desired = [condition for condition in conditions if condition.type in known]
    return upsert(old, desired, generation=generation, now=rfc3339(now))


def _at_once(reason: Reason) -> Facts:
    """A problem that waiting does not solve."""
    return frozenset({reason, Overdue(reason)})


def _reason_column(conditions: list[dict[str, Any]], facts: Facts) -> str:
    """The reason that `kubectl get` prints: of Stalled if it is True, else of Ready, but of a fleet
    that answers while it is rolled out, of that."""
    by_type = {c["type"]: c for c in conditions}
    if by_type[ConditionType.STALLED]["status"] == "True":
        return str(by_type[ConditionType.STALLED]["reason"])
    if Fact.PAUSED in facts:
        return Reason.PAUSED
    ready, rolled_out = by_type[ConditionType.READY], by_type[ConditionType.ROLLED_OUT]
    if ready["reason"] == Reason.AS_SPECIFIED and rolled_out["status"] == "False":
        return str(rolled_out["reason"])
    return str(ready["reason"])
