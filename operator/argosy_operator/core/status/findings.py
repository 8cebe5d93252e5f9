"""What a round found, computed once: the input of the facts, the messages and the status.

Made from the snapshot, the draft that the chain left, and the outcomes of its actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from argosy_law.decision import Decision
from argosy_operator.api.conditions import Reason
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Outcome
from argosy_operator.core.snapshot.snapshot import Failure, Snapshot
from argosy_operator.core.status.decided import metrics_problem
from argosy_operator.core.status.numbers import fronts, goodput_status
from argosy_operator.core.status.problems import (
    Problem,
    conflicts_of,
    failed_writes,
    problems_of,
)
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.gateways import InUse, in_use
from argosy_operator.core.steps.goals import at_zero, by_law

_FAILURES = 2
"""In a row. A single failure is no finding: pods that end break what they hand over."""


@dataclass(frozen=True, slots=True)
class Findings:
    """One round of one fleet, as status needs it."""

    snapshot: Snapshot
    draft: Draft
    problems: tuple[Problem, ...]
    failed_writes: tuple[Failure, ...]
    """Writes that fail for a reason without a `Problem` of its own, such as a broken webhook."""
    conflicts: tuple[str, ...]
    """Objects of others that hold one of the fleet's names, as kind/name."""
    missing: Mapping[str, int]
    """Serving pods that each role lacks."""
    below: Mapping[str, int]
    """Pods that each role and the gateway lack until the spec's minimum serves."""
    goodput: dict[str, Any] | None
    """What users got, as status writes it."""
    decision: Decision | None
    """The scaling law's last decision; None where it does not scale this fleet."""
    failing_pairs: tuple[tuple[str, str, str], ...]
    """Prefill pod, decode pod and reason of handovers that failed twice in a row or more."""
    metrics_problem: Reason | None
    """Why the metrics are unavailable, if that has a reason of its own."""
    settings: InUse
    """Which gateways may not use the settings of the spec."""
    autoscaler: str | None
    """Why the gateways' HorizontalPodAutoscaler cannot scale; "": it can. None: it has not said."""

    @classmethod
    def of(cls, snapshot: Snapshot, draft: Draft, outcomes: tuple[Outcome, ...]) -> "Findings":
        spec = snapshot.fleet.spec
        roles = [role for role, _ in spec.active_roles()]
        zero = at_zero(spec, draft.targets)
        serving = {role: sum(pod.serving for pod in snapshot.current(role)) for role in roles}
        # A fleet at zero answers no requests: its last figures are out of date.
        goodput = None if zero else goodput_status(snapshot, due=draft.figures_due)
        before = snapshot.fleet.status.goodput
        # Goodput changes before it is due when traffic starts or ends, or the verdict changes. All
        # figures are updated then, so that none of them follows up to 30 s later in a write of its
        # own. Burn rates change once more when misses leave their windows.
        due = draft.figures_due or goodput != (dump(before) if before is not None else None)
        return cls(
            snapshot=snapshot,
            draft=replace(draft, figures_due=due),
            problems=problems_of(snapshot, draft.memory.failed),
            failed_writes=failed_writes(draft.memory.failed),
            conflicts=conflicts_of(draft, outcomes),
            missing={r: max(0, draft.targets.get(r, 0) - serving[r]) for r in roles},
            below=_below(snapshot, draft, serving),
            goodput=goodput,
            decision=draft.memory.decision if by_law(spec) else None,
            failing_pairs=_failing_pairs(snapshot),
            metrics_problem=metrics_problem(snapshot),
            settings=in_use(snapshot),
            autoscaler=_autoscaler(snapshot),
        )


def _below(snapshot: Snapshot, draft: Draft, serving: Mapping[RoleName, int]) -> dict[str, int]:
    """A fleet at zero, and one whose minimum is not reached on purpose, lacks none."""
    least = {
        role: min(draft.targets.get(role, 0), settings.replicas.min)
        for role, settings in snapshot.fleet.spec.active_roles()
    }
    lacks: dict[str, int] = {role: max(0, wanted - serving[role]) for role, wanted in least.items()}
    return lacks | {front.role: front.lacks for front in fronts(snapshot)}


def _autoscaler(snapshot: Snapshot) -> str | None:
    """By its conditions: AbleToScale is about the Deployment, ScalingActive about the metrics."""
    name = names.gateway(snapshot.fleet.name)
    live = snapshot.owned("HorizontalPodAutoscaler").get(name) or {}
    conditions = (live.get("status") or {}).get("conditions") or ()
    said = {c["type"]: c for c in conditions}
    for kind in ("AbleToScale", "ScalingActive"):
        if said.get(kind, {}).get("status") == "False":
            message = str(said[kind].get("message", "")).strip().rstrip(".")
            return f"{said[kind].get('reason', kind)}: {message or 'no reason was given'}"
    return "" if said.get("ScalingActive", {}).get("status") == "True" else None


def _failing_pairs(snapshot: Snapshot) -> tuple[tuple[str, str, str], ...]:
    """Each pair once, and only those of pods that serve."""
    prefills, decodes = (
        {pod.name for pod in snapshot.pods if pod.role == role and pod.serving}
        for role in ("prefill", "decode")
    )
    found = {
        (pair.prefill, pair.decode): pair.reason
        for pair in sorted(snapshot.handovers.failing, reverse=True)
        if pair.failures >= _FAILURES and pair.prefill in prefills and pair.decode in decodes
    }
    return tuple(sorted((*ends, reason) for ends, reason in found.items()))
