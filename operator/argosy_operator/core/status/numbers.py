"""The numbers of status: pods per role, what users got, the last decisions, the printer columns.

Measured numbers are damped: the text in status stays until the number has moved by more than a
step. A fleet whose attainment varies by a thousandth writes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from argosy_law.decision import Decision
from argosy_law.observe import FleetMetrics, Signal, Value
from argosy_law.signals.learning import SCORED_ENOUGH
from argosy_law.slo import LEAST, Spent, spent
from argosy_operator.api.conditions import LARGEST_MESSAGE
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import (
    APPLIED,
    Object,
    is_seen,
    replicas_of,
    rfc3339,
    signed,
)
from argosy_operator.core.snapshot.pods import StartPhases
from argosy_operator.core.snapshot.snapshot import Snapshot, role_of
from argosy_operator.core.steps.canary import Trial
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.goals import by_law
from argosy_operator.core.steps.gpu_types import noted

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
        tokens = offered * (_value(metrics.output_tokens) or 0.0)
        figures |= _costs(snapshot, before, good, tokens)
    if misses := _misses(metrics, before.get("misses") or {}):
        figures["misses"] = misses
    durations = {"ttftP90": metrics.ttft_p90_s, "tpotP90": metrics.tpot_p90_s}
    for name, signal in durations.items():
        seconds = _value(signal)
        # They appear and disappear together with attainment, in one write.
        if seconds is not None and attainment is not None:
            figures[name] = damped_duration(before.get(name), seconds)
    return figures or None


def error_budget_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any] | None:
    """What is left of the error budget; the old figures stay until new ones are due, unless they
    ask for something else."""
    spec, old = snapshot.fleet.spec, snapshot.fleet.status.error_budget
    now = errors_of(snapshot, draft)
    if now is None:
        # Another operator may have kept what this one has yet to read.
        return dump(old) if old is not None and by_law(spec) else None
    before = dump(old) if old is not None else {}
    if old is not None and not draft.figures_due and old.alert == now.alert:
        return before
    rates = before.get("burnRates") or {}
    figures: dict[str, Any] = {
        "since": rfc3339(now.since),
        "seen": damped(before.get("seen"), now.seen, ATTAINMENT_STEP, 2),
        "burnRates": {
            name: damped(rates.get(name), rate, max(0.1, RATE_STEP * rate), 1)
            for name, rate in now.burn.items()
        },
        "alert": now.alert,
    }
    if now.used is not None:
        figures["used"] = damped(before.get("used"), now.used, ATTAINMENT_STEP, 2)
    return figures


def errors_of(snapshot: Snapshot, draft: Draft) -> Spent | None:
    """The error budget as of the last metrics; None without an SLO, and until there were some."""
    spec = snapshot.fleet.spec
    if spec.slo is None or not by_law(spec):
        return None
    return spent(draft.memory.errors, spec.slo.attainment.fraction)


def _misses(metrics: FleetMetrics, before: dict[str, str]) -> dict[str, str]:
    """Shares of the judged requests by why they missed the SLO; empty for an older gateway."""
    if metrics.scored < SCORED_ENOUGH:
        return {}
    shares = {reason: count / metrics.scored for reason, count in metrics.misses}
    return {
        reason: damped(before.get(reason), share, ATTAINMENT_STEP, 3)
        for reason, share in shares.items()
        if share >= LEAST
    }


@dataclass(frozen=True, slots=True)
class Front:
    """How far the Deployment of the gateways is as rendered."""

    role: str
    wanted: int
    """Pods that it is to have."""
    rolling: bool
    """Its template is not applied or not rolled out."""
    unseen: bool
    """Its controller has not seen its newest form, which may differ only in the number of pods that
    others ask for."""
    lacks: int
    """Available pods that it lacks."""


def fronts(snapshot: Snapshot) -> list[Front]:
    """The fleet's Deployments beside those of its engines, by the status that Kubernetes gives."""
    deployments, found = snapshot.owned("Deployment"), list[Front]()
    for wanted in snapshot.wanted:
        if wanted["kind"] == "Deployment":
            found.append(_front(snapshot, wanted, deployments.get(wanted["metadata"]["name"], {})))
    return found


def _front(snapshot: Snapshot, wanted: Object, live: Object) -> Front:
    """`live` is empty for a Deployment that does not exist."""
    by_others = "replicas" not in wanted["spec"]
    asked = replicas_of(live if by_others and live else wanted)
    least = snapshot.fleet.spec.routing.least_gateways(asked) if by_others else asked
    meta, status = live.get("metadata") or {}, live.get("status") or {}
    signature = signed(wanted)["metadata"]["annotations"][APPLIED]
    unseen = bool(live) and not is_seen(live)
    updated, there = status.get("updatedReplicas", 0), status.get("replicas", 0)
    rolling = (
        (meta.get("annotations") or {}).get(APPLIED) != signature
        or (unseen and not by_others)
        or updated < (there if by_others else max(asked, there))
    )
    lacks = max(0, least - status.get("availableReplicas", 0))
    return Front(role_of(wanted), asked, rolling, unseen, lacks)


def gpus_of(snapshot: Snapshot) -> int:
    """GPUs that the fleet's pods hold or wait for, of all revisions and modes."""
    return sum(pod.gpus for pod in snapshot.pods if pod.alive)


def _per_gpu(snapshot: Snapshot, before: str | None, good: float) -> dict[str, str]:
    """Requests per second within the SLO, per GPU; empty for a fleet without GPUs."""
    gpus = gpus_of(snapshot)
    if gpus == 0:
        return {}
    return {"perGPU": damped(before, good / gpus, max(0.01, RATE_STEP * good / gpus), 2)}


def _costs(
    snapshot: Snapshot, before: dict[str, Any], good: float, tokens: float
) -> dict[str, str]:
    """What the pods' GPUs cost per hour, per million generated tokens and per thousand requests
    within the SLO. `good` and `tokens` are per second. Empty where a pod's cost is unknown."""
    costs = {kind.name: kind.cost_per_hour.amount for kind in snapshot.fleet.spec.gpu_types}
    holding = [pod for pod in snapshot.pods if pod.alive and pod.gpus > 0]
    if not costs or any(pod.gpu_type not in costs for pod in holding):
        return {}
    hourly = sum(pod.gpus * costs[pod.gpu_type] for pod in holding)
    figures = {"costPerHour": f"{hourly:.2f}"}
    rates = {"costPerMillionTokens": tokens / 1e6, "costPerThousandGood": good / 1e3}
    for name, per_s in rates.items():
        if per_s > 0:
            each = hourly / 3600.0 / per_s
            figures[name] = damped(before.get(name), each, max(0.01, RATE_STEP * each), 2)
    return figures


def slo_column(snapshot: Snapshot, figures: dict[str, Any] | None, lacks_metrics: bool) -> str:
    """Met, AtRisk, Missed, Idle, Unknown or None: for the column SLO and the SLOMet condition."""
    if snapshot.fleet.spec.slo is None or not by_law(snapshot.fleet.spec):
        return "None"  # nothing is promised, or Prometheus is not queried
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
    """Pods by role: those that serve or drain, and GPUs, of every revision; others of this one."""
    roles: dict[str, Any] = {}
    for role, _ in snapshot.fleet.spec.active_roles():
        pods = [pod for pod in snapshot.current(role) if pod.alive]
        with_older = [pod for pod in snapshot.pods if pod.role == role and pod.alive]
        roles[role] = {
            "desired": draft.targets.get(role, 0),
            "ready": sum(pod.ready for pod in pods),
            "serving": sum(pod.serving for pod in with_older),
            "pending": sum(not pod.ready and not pod.draining for pod in pods),
            "unschedulable": sum(pod.unschedulable is not None for pod in pods),
            "draining": sum(pod.draining for pod in with_older),
            "gpus": sum(pod.gpus for pod in with_older),
            "revision": snapshot.revision,
            **_gpu_type(snapshot, role),
            "timeToReady": _time_to_ready(snapshot, draft, role),
            "startPhases": _start_phases(snapshot, draft, role),
        }
    return roles


def rollout_status(snapshot: Snapshot, draft: Draft) -> dict[str, Any] | None:
    """The rollout that goes on; None without one."""
    split = draft.split
    if split is None:
        return None
    desired: dict[str, dict[str, int]] = {snapshot.revision: dict(split.new)}
    for (role, revision), replicas in split.old.items():
        desired.setdefault(revision, {})[role] = replicas

    def pods(revision: str) -> dict[str, Any]:
        roles = desired[revision]
        mine = [pod for pod in snapshot.pods if pod.revision == revision and pod.serving]
        serving = {role: sum(pod.role == role for pod in mine) for role in roles}
        return {"revision": revision, "desired": roles, "serving": serving}

    new, *old = map(pods, desired)
    return {
        "strategy": snapshot.fleet.spec.rollout.strategy,
        "state": split.state,
        "waitsFor": split.message[:LARGEST_MESSAGE],
        "new": new,
        "old": old[:MOST_REVISIONS],
        "canary": _canary(snapshot, draft.trial),
    }


def _canary(snapshot: Snapshot, trial: Trial | None) -> dict[str, Any] | None:
    if trial is None or snapshot.fleet.spec.rollout.canary is None:
        return None
    new, old = (
        {"met": round(one.met), "missed": round(one.missed)} for one in (trial.new, trial.old)
    )
    return {
        "since": trial.since,
        "new": new,
        "old": old,
        "verdict": trial.verdict,
    }


MOST_REVISIONS = 10
"""Old revisions in status.rollout."""


def _gpu_type(snapshot: Snapshot, role: RoleName) -> dict[str, Any]:
    """Which GPU type the role runs on, what one costs, and which types have no room."""
    kind, shut = snapshot.fleet.spec.type_of(role), without_room(snapshot, role)
    found: dict[str, Any] = {}
    if kind is not None:
        found |= {"gpuType": kind.name, "gpuCostPerHour": str(kind.cost_per_hour)}
    if shut:
        found["gpuTypesWithoutRoom"] = {name: rfc3339(at) for name, at in shut.items()}
    return found


def without_room(snapshot: Snapshot, role: RoleName) -> dict[str, float]:
    """When the role left a GPU type within the last day, because its pods found no node."""
    live = snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    note = noted(live, snapshot.fleet.spec.role(role))
    return {name: note.full[name] for name in sorted(note.shut(snapshot.now))}


def _time_to_ready(snapshot: Snapshot, draft: Draft, role: str) -> str | None:
    """Median time from a pod's creation to ready, as "41s"; the old one while none is measured."""
    starts = draft.memory.starts_of(role, snapshot.revision)
    status = getattr(snapshot.fleet.status.roles, role)
    old = status.time_to_ready if status and status.time_to_ready else None
    return _median((start.seconds for start in starts), old) if starts else old


def _start_phases(snapshot: Snapshot, draft: Draft, role: str) -> dict[str, str] | None:
    """What the time to ready went to, each phase as the time itself."""
    status = getattr(snapshot.fleet.status.roles, role)
    old = {} if status is None or status.start_phases is None else dump(status.start_phases)
    starts = draft.memory.starts_of(role, snapshot.revision)
    phases = [start.phases for start in starts if start.phases is not None]
    if not phases:
        return old or None
    return {
        phase: _median((getattr(one, phase) for one in phases), old.get(phase))
        for phase in StartPhases._fields
    }


def _median(seconds: Iterable[float], old: str | None) -> str:
    """As "41s"; `old` if it is within a fifth or a second of that."""
    middle = sorted(seconds)
    median_s = middle[len(middle) // 2]
    before = None if old is None else old.removesuffix("s")
    return damped(before, median_s, max(1.0, 0.2 * median_s), 0) + "s"


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
        return _with_advice(dump(old), snapshot, draft)
    now, decision = rfc3339(snapshot.now), draft.decision
    moved = [t for t in decision.targets if t.replicas != t.current]
    last = _in_status(decision, now)
    times = dict(old.last_scale_time or {}) | {t.role: now for t in moved}
    return {
        "lastDecision": last | {"record": dict(draft.record or {})},
        "history": [last, *(dump(earlier) for earlier in old.history)][:HISTORY],
        "lastScaleTime": times,
    }


def _in_status(decision: Decision, now: str) -> dict[str, Any]:
    moved = [t for t in decision.targets if t.replicas != t.current]
    return {
        "time": now,
        "reason": (moved[0] if moved else decision).rule.value,
        "message": decision.message[:1024],
        "from": {t.role: t.current for t in decision.targets},
        "to": {t.role: t.replicas for t in decision.targets},
        "boundBy": moved[0].rule.value if moved else None,
    }


def _with_advice(status: dict[str, Any], snapshot: Snapshot, draft: Draft) -> dict[str, Any]:
    """The status with what the law would do, where others scale the fleet. Its message has figures
    that move with every decision, so it stays until other replicas are advised."""
    decision, spec = draft.memory.decision, snapshot.fleet.spec
    old = status.pop("advice", None)
    if not spec.autoscaling.advisory or spec.slo is None:
        return status
    advice = old if decision is None else _in_status(decision, rfc3339(snapshot.now))
    if old and advice and all(old.get(key) == advice[key] for key in ("reason", "from", "to")):
        advice = old
    return status | ({"advice": advice} if advice else {})


def printer_columns(roles: dict[str, Any], gpus: int, slo: str, reason: str) -> dict[str, str]:
    """The columns of `kubectl get`; serving/desired for roles. Colocated pods stand in the first
    one alone: they would look like twice as many."""

    def count(role: str) -> str:
        return f"{roles[role]['serving']}/{roles[role]['desired']}"

    colocated = "colocated" in roles
    return {
        "prefill": count("colocated" if colocated else "prefill"),
        "decode": "-" if colocated else count("decode"),
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
