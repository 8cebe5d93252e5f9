"""The numbers of status: pods per role, what users got, the last decisions, the printer columns.

Measured numbers are damped: the text in status stays until the number has moved by more than a
step. A fleet whose attainment varies by a thousandth writes nothing.
"""

from typing import Any

from argosy_operator.api.model import dump
from argosy_operator.core.fleet.objects import rfc3339
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.targets import by_law
from argosy_operator.core.scaling.observe import FleetMetrics, Signal, Value

ATTAINMENT_STEP = 0.01
"""Absolute: one percentage point."""
RATE_STEP = 0.1
"""Relative to the rate. Rates of a few requests vary by this much from window to window."""
DURATION_STEP = 0.1
"""Relative to the duration."""
HISTORY = 5
"""Decisions in status.autoscaling.history."""
AT_RISK = 0.02
"""AtRisk: attainment is above the goal by less than this share of the misses that the goal allows.
With a goal of 0.9: from 0.9 to 0.902."""


def damped(old: str | None, new: float, step: float, digits: int) -> str:
    """`new` as text, or `old` if the two differ by at most `step`."""
    before = number(old)
    if old is not None and before is not None and abs(before - new) <= step:
        return old
    return f"{new:.{digits}f}"


def damped_duration(old: str | None, new_s: float) -> str:
    """`41ms` below a second, else `1.62s`; `old` if the two differ by at most a tenth."""
    text = f"{new_s * 1000:.0f}ms" if new_s < 1 else f"{new_s:.2f}s"
    if old is None:
        return text
    try:
        old_s = float(old.rstrip("ms")) * (1e-3 if old.endswith("ms") else 1.0)
    except ValueError:
        return text
    return old if abs(old_s - new_s) <= DURATION_STEP * new_s else text


def goodput_status(snapshot: Snapshot, *, due: bool = True) -> dict[str, Any] | None:
    """What users got; None if nothing is measured.

    The old figures stay in a round without metrics. They also stay until new ones are `due`, unless
    a figure appears or disappears or the verdict on the SLO changes.
    """
    status = snapshot.fleet.status.goodput
    old = dump(status) if status is not None else None
    if snapshot.metrics is None:
        return old
    new = _measured(snapshot, snapshot.metrics, old)
    if due or old is None or new is None or new.keys() != old.keys():
        return new
    return old if _verdict(snapshot, new) == _verdict(snapshot, old) else new


def _measured(
    snapshot: Snapshot, metrics: FleetMetrics, old: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The figures of this round, each damped against its old text."""
    before, figures = old or {}, dict[str, Any]()
    attainment, offered = _value(metrics.attainment), _value(metrics.arrivals)
    if attainment is not None:
        figures["attainment"] = damped(before.get("attainment"), attainment, ATTAINMENT_STEP, 3)
    if offered is not None:
        step = max(0.1, RATE_STEP * offered)
        figures["offeredRps"] = damped(before.get("offeredRps"), offered, step, 1)
    if offered is not None and attainment is not None:
        good = offered * attainment
        figures["rps"] = damped(before.get("rps"), good, max(0.1, RATE_STEP * good), 1)
        figures |= _per_gpu(snapshot, before.get("perGPU"), good)
    durations = {"ttftP90": metrics.ttft_p90_s, "tpotP90": metrics.tpot_p90_s}
    for name, signal in durations.items():
        seconds = _value(signal)
        # They appear and disappear together with attainment, in one write.
        if seconds is not None and attainment is not None:
            figures[name] = damped_duration(before.get(name), seconds)
    return figures or None


def gpus_of(snapshot: Snapshot) -> int:
    """GPUs that the fleet's pods hold or wait for, of all revisions and modes."""
    return sum(pod.gpus for pod in snapshot.pods if pod.alive)


def _per_gpu(snapshot: Snapshot, before: str | None, good: float) -> dict[str, str]:
    """Requests per second within the SLO, per GPU; empty for a fleet without GPUs."""
    gpus = gpus_of(snapshot)
    if gpus == 0:
        return {}
    return {"perGPU": damped(before, good / gpus, max(0.01, RATE_STEP * good / gpus), 2)}


def slo_column(snapshot: Snapshot, figures: dict[str, Any] | None, lacks_metrics: bool) -> str:
    """Met, AtRisk, Missed, Idle, Unknown or None: for the column SLO and the SLOMet condition."""
    if not by_law(snapshot.fleet.spec):
        return "None"  # Prometheus is not queried
    if lacks_metrics:
        return "Unknown"
    return _verdict(snapshot, figures or {})


def _verdict(snapshot: Snapshot, figures: dict[str, Any]) -> str:
    attained = number(figures.get("attainment"))
    if attained is None:
        return "Idle"
    slo = snapshot.fleet.spec.slo
    goal = slo.attainment.fraction if slo else 0.0
    if attained < goal:
        return "Missed"
    return "AtRisk" if attained < goal + AT_RISK * (1 - goal) else "Met"


def roles_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any]:
    """Pods of the current revision by role; draining pods and GPUs count older revisions too."""
    roles: dict[str, Any] = {}
    for role, _ in snapshot.fleet.spec.active_roles():
        pods = [pod for pod in snapshot.current(role) if pod.alive]
        with_older = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
        roles[role] = {
            "desired": draft.targets.get(role, 0),
            "ready": sum(pod.ready for pod in pods),
            "serving": sum(pod.serving for pod in pods),
            "pending": sum(not pod.ready and not pod.draining for pod in pods),
            "unschedulable": sum(pod.unschedulable is not None for pod in pods),
            "draining": sum(pod.draining for pod in with_older),
            "gpus": sum(pod.gpus for pod in with_older),
            "revision": snapshot.revision,
            "timeToReady": _time_to_ready(snapshot, draft, role),
        }
    return roles


def _time_to_ready(snapshot: Snapshot, draft: Draft, role: str) -> str | None:
    """Median time from a pod's creation to ready, as "41s"; the old one while none is measured."""
    starts = sorted(seconds for of, seconds in draft.memory.starts.values() if of == role)
    status = getattr(snapshot.fleet.status.roles, role)
    old = status.time_to_ready.removesuffix("s") if status and status.time_to_ready else None
    if not starts:
        return f"{old}s" if old else None
    median_s = starts[len(starts) // 2]
    return damped(old, median_s, max(1.0, 0.2 * median_s), 0) + "s"


def role_status(snapshot: Snapshot, role: str, selector: str) -> dict[str, Any]:
    """Status of the role's ServingRole; HPA and `kubectl scale` read it through /scale."""
    pods = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
    return {
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready for pod in pods),
        "selector": selector,
    }


def autoscaling_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any]:
    """The last decision that changed replicas, with its record, and the ones before it."""
    old = snapshot.fleet.status.autoscaling
    if not draft.scaled or draft.decision is None:
        return dump(old)
    now, decision = rfc3339(snapshot.now), draft.decision
    moved = [t for t in decision.targets if t.replicas != t.current]
    last = {
        "time": now,
        "reason": (moved[0] if moved else decision).rule.value,
        "message": decision.message[:1024],
        "from": {t.role: t.current for t in decision.targets},
        "to": {t.role: t.replicas for t in decision.targets},
        "boundBy": moved[0].rule.value if moved else None,
    }
    times = dict(old.last_scale_time or {}) | {t.role: now for t in moved}
    return {
        "lastDecision": last | {"record": dict(draft.record or {})},
        "history": [last, *(dump(earlier) for earlier in old.history)][:HISTORY],
        "lastScaleTime": times,
    }


def printer_columns(roles: dict[str, Any], gpus: int, slo: str, reason: str) -> dict[str, str]:
    """The columns of `kubectl get`; serving/desired for roles. A colocated pod does both."""

    def count(role: str) -> str:
        return f"{roles[role]['serving']}/{roles[role]['desired']}"

    colocated = "colocated" in roles
    return {
        "prefill": count("colocated" if colocated else "prefill"),
        "decode": count("colocated" if colocated else "decode"),
        "gpus": str(gpus),
        "slo": slo,
        "reason": reason,
    }


def number(text: str | None) -> float | None:
    """A figure of status; None if it is no number, since users can write status too."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _value(signal: Signal) -> float | None:
    return signal.value if isinstance(signal, Value) else None
