"""The numbers of status: pods per role, what users got, the last decisions, the columns.

Measured numbers keep the text that stands until they moved by more than a step: a fleet whose
attainment wavers by a thousandth writes nothing.
"""

from typing import Any

from argosy_operator.api.model import dump
from argosy_operator.core.fleet.objects import rfc3339
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.targets import by_law
from argosy_operator.core.scaling.observe import FleetMetrics, Signal, Value

ATTAINMENT_STEP = 0.01
RATE_STEP = 0.1  # relative
SPAN_STEP = 0.1  # relative
HISTORY = 5
AT_RISK = 0.02


def damped(old: str | None, new: float, step: float, digits: int) -> str:
    """`new` as text, or `old` while they differ by no more than `step`."""
    stood = _number(old)
    if old is not None and stood is not None and abs(stood - new) <= step:
        return old
    return f"{new:.{digits}f}"


def damped_duration(old: str | None, new_s: float) -> str:
    """`41ms` below a second, `1.62s` from there on; `old` while they differ by a tenth at most."""
    text = f"{new_s * 1000:.0f}ms" if new_s < 1 else f"{new_s:.2f}s"
    if old is None:
        return text
    try:
        stood_s = float(old.rstrip("ms")) * (1e-3 if old.endswith("ms") else 1.0)
    except ValueError:
        return text
    return old if abs(stood_s - new_s) <= SPAN_STEP * new_s else text


def goodput_status(snapshot: Snapshot, *, due: bool = True) -> dict[str, Any] | None:
    """What users got. What stands stays while nothing new is known, and until the figures are
    `due`, unless one comes or goes or the verdict on the SLO turns."""
    old = snapshot.fleet.status.goodput
    standing = dump(old) if old is not None else None
    if snapshot.metrics is None:
        return standing
    figures = _measured(snapshot, snapshot.metrics, standing)
    if due or standing is None or figures is None or figures.keys() != standing.keys():
        return figures
    return standing if _verdict(snapshot, figures) == _verdict(snapshot, standing) else figures


def _measured(
    snapshot: Snapshot, metrics: FleetMetrics, standing: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The figures of this round; each keeps its text while it moved by less than its step."""
    figures: dict[str, Any] = dict(standing or {})
    attainment = _value(metrics.attainment)
    if attainment is not None:
        before = figures.get("attainment")
        figures["attainment"] = damped(before, attainment, ATTAINMENT_STEP, 3)
    else:
        figures.pop("attainment", None)
    offered = _value(metrics.arrivals)
    if offered is not None:
        before = figures.get("offeredRps")
        figures["offeredRps"] = damped(before, offered, max(0.1, RATE_STEP * offered), 1)
        if attainment is not None:
            good = offered * attainment
            figures["rps"] = damped(figures.get("rps"), good, max(0.1, RATE_STEP * good), 1)
            figures |= _per_gpu(snapshot, figures.get("perGPU"), good)
    else:
        for name in ("offeredRps", "rps", "perGPU"):
            figures.pop(name, None)
    spans = {"ttftP90": metrics.ttft_p90_s, "tpotP90": metrics.tpot_p90_s}
    for name, signal in spans.items():  # they come and go with attainment: in one write
        span_s = _value(signal)
        if span_s is not None and attainment is not None:
            figures[name] = damped_duration(figures.get(name), span_s)
        else:
            figures.pop(name, None)
    return figures or None


def _per_gpu(snapshot: Snapshot, before: str | None, good: float) -> dict[str, str]:
    """Good requests per second and GPU; nothing for a fleet without GPUs."""
    gpus = sum(pod.gpus for pod in snapshot.pods if pod.alive)
    if gpus == 0:
        return {}
    return {"perGPU": damped(before, good / gpus, max(0.01, RATE_STEP * good / gpus), 2)}


def slo_column(snapshot: Snapshot, figures: dict[str, Any] | None, blind: bool) -> str:
    """Met, AtRisk, Missed, Idle, Unknown or None, for the column and the SLOMet condition."""
    if not by_law(snapshot.fleet.spec):
        return "None"  # nobody asks Prometheus then
    if blind:
        return "Unknown"
    return _verdict(snapshot, figures or {})


def _verdict(snapshot: Snapshot, figures: dict[str, Any]) -> str:
    attained = _number(figures.get("attainment"))
    if attained is None:
        return "Idle"
    slo = snapshot.fleet.spec.slo
    goal = slo.attainment.fraction if slo else 0.0
    if attained < goal:
        return "Missed"
    return "AtRisk" if attained < goal + AT_RISK * (1 - goal) else "Met"


def roles_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any]:
    """Pods of the current revision, counted; of old ones only those that still hold GPUs."""
    roles: dict[str, Any] = {}
    for role, _ in snapshot.fleet.spec.active_roles():
        pods = [pod for pod in snapshot.current(role) if pod.alive]
        everyone = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
        ready = sum(pod.ready for pod in pods)
        desired = draft.targets.get(role, 0)
        starts = sorted(seconds for of, seconds in draft.memory.starts.values() if of == role)
        standing = getattr(snapshot.fleet.status.roles, role)
        before = (
            standing.time_to_ready.removesuffix("s")
            if standing and standing.time_to_ready
            else None
        )
        typical = starts[len(starts) // 2] if starts else None
        roles[role] = {
            "desired": desired,
            "ready": ready,
            "serving": sum(pod.serving for pod in pods),
            "pending": sum(not pod.ready and not pod.draining for pod in pods),
            "unschedulable": sum(pod.unschedulable is not None for pod in pods),
            "draining": sum(pod.draining for pod in everyone),
            "gpus": sum(pod.gpus for pod in everyone),
            "revision": snapshot.revision,
            "timeToReady": f"{before}s"
            if typical is None and before
            else None
            if typical is None
            else damped(before, typical, max(1.0, 0.2 * typical), 0) + "s",
        }
    return roles


def role_status(snapshot: Snapshot, role: str, selector: str) -> dict[str, Any]:
    """Status of the role's ServingRole, which the scale subresource reads."""
    pods = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
    return {
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready for pod in pods),
        "selector": selector,
    }


def autoscaling_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any]:
    """The last decision that changed replicas, with its record, and the ones before it."""
    standing = snapshot.fleet.status.autoscaling
    if not draft.scaled or draft.decision is None:
        return dump(standing)
    now, decision = rfc3339(snapshot.now), draft.decision
    moved = [t for t in decision.targets if t.replicas != t.current]
    said = {
        "time": now,
        "reason": (moved[0] if moved else decision).rule.value,
        "message": decision.message[:1024],
        "from": {t.role: t.current for t in decision.targets},
        "to": {t.role: t.replicas for t in decision.targets},
        "boundBy": moved[0].rule.value if moved else None,
    }
    times = dict(standing.last_scale_time or {}) | {t.role: now for t in moved}
    history = [said, *(dump(old) for old in standing.history)][:HISTORY]
    return {
        "lastDecision": said | {"record": dict(draft.record or {})},
        "history": history,
        "lastScaleTime": times,
    }


def printer_columns(roles: dict[str, Any], slo: str, reason: str) -> dict[str, str]:
    def count(role: str) -> str:
        return f"{roles[role]['serving']}/{roles[role]['desired']}"

    colocated = "colocated" in roles
    return {
        "prefill": count("colocated" if colocated else "prefill"),
        "decode": count("colocated" if colocated else "decode"),
        "gpus": str(sum(role["gpus"] for role in roles.values())),
        "slo": slo,
        "reason": reason,
    }


def _number(text: str | None) -> float | None:
    """A figure of the standing status, which others may have written too."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _value(signal: Signal) -> float | None:
    return signal.value if isinstance(signal, Value) else None
