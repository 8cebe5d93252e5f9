"""The advice in status: which mode would need fewer GPUs, and what other autoscalers would do.

Figures move only when status updates figures at all, or when the advice itself changes. Those of
the modes stay while no request arrives.
"""

from math import inf
from typing import Any

from argosy_operator.api.model import dump
from argosy_operator.core.fleet.objects import rfc3339
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.targets.spec import by_law
from argosy_operator.core.scaling.advice.modes import ENOUGH_SLOTS, in_words
from argosy_operator.core.status.numbers import damped

HOURS_STEP = 0.02
"""Relative to the GPU-hours."""


def advice_status(snapshot: Snapshot, draft: Draft, *, traffic: bool) -> dict[str, Any]:
    """`modeAdvice` and `shadow` of status.autoscaling. `traffic`: requests were measured."""
    return {"modeAdvice": _mode(snapshot, draft, traffic), "shadow": _shadow(snapshot, draft)}


def _mode(snapshot: Snapshot, draft: Draft, traffic: bool) -> dict[str, Any] | None:
    spec, old = snapshot.fleet.spec, snapshot.fleet.status.autoscaling.mode_advice
    modes = draft.memory.modes
    usual, message = modes.usual, in_words(modes, spec.mode)
    # Other engines have one mode: the API refuses to write another.
    if not by_law(spec) or spec.engine.type != "argosy":
        return None
    advised = old is not None and old.advised not in (None, spec.mode)
    # After a restart the last advice stays until a day was seen.
    if usual is None or message is None or (advised and len(modes.slots) < ENOUGH_SLOTS):
        return dump(old) if old is not None else None
    # Without traffic only the hours in the message change, with every slot that begins or expires,
    # and the fleet's own mode when a user changes it.
    due = snapshot.fleet.status.mode != spec.mode or (draft.figures_due and traffic)
    if old is not None and not due and old.advised == modes.advised:
        return dump(old)
    needs = {"colocatedGpus": usual.colocated, "disaggregatedGpus": usual.disaggregated}
    figures: dict[str, Any] = {name: f"{n:.0f}" for name, n in needs.items() if n < inf}
    if modes.advised is not None:
        figures["advised"] = modes.advised
    return figures | {"message": message}


def _shadow(snapshot: Snapshot, draft: Draft) -> list[dict[str, Any]]:
    spec, old = snapshot.fleet.spec, snapshot.fleet.status.autoscaling.shadow
    kept = [dump(one) for one in old if one.law in spec.autoscaling.shadow]
    if not by_law(spec):
        return []
    if not draft.memory.shadow or (kept and not draft.figures_due):
        return kept
    before = {one["law"]: one for one in kept}
    return [
        {
            "law": one.name,
            "to": dict(one.targets),
            "gpuHours": _hours(before.get(one.name, {}).get("gpuHours"), one.gpu_hours),
            "ourGpuHours": _hours(before.get(one.name, {}).get("ourGpuHours"), one.our_gpu_hours),
            "since": rfc3339(one.since),
            "failed": one.failed,
        }
        for one in draft.memory.shadow
    ]


def _hours(old: str | None, hours: float) -> str:
    return damped(old, hours, max(0.1, HOURS_STEP * hours), 1)
