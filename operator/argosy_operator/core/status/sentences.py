"""The messages of conditions: what is true of this fleet, and what to do about it.

A reason that is not here has a general message, `Reason.meaning`.
"""

from collections.abc import Sequence
from typing import Any

from argosy_law.decision import lacks_metrics
from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.api.model import dump
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import FetchProgress
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.status.decided import messages_of_decision
from argosy_operator.core.status.findings import Findings
from argosy_operator.core.status.numbers import number, without_room
from argosy_operator.core.status.problems import MOST_NAMED
from argosy_operator.core.steps import field_conflicts
from argosy_operator.core.steps.gateways import UNHEARD_S, is_rolled_out
from argosy_operator.core.steps.models import live_job, pods_of

_ALL_SERVE = Reason.ROLLED_OUT.meaning
_STEPS = 20
_GIB, _MIB = 1 << 30, 1 << 20
_UNREACHABLE = "so more replicas do not help. Raise the target, or use faster GPUs"

FOREIGN = (
    "already exists with another owner and is left unchanged. Delete it, or create the fleet under "
    "another name"
)
"""What becomes of objects that have names of the fleet's children."""

FIXED: dict[Reason, str] = {
    Reason.PAUSED: "spec.paused is true, so only status is written. Set it to false to go on",
    Reason.EXTERNAL_OWNER: "spec.autoscaling.policy is External: the replicas are those of the "
    "ServingRoles, which another autoscaler sets",
    Reason.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
    Reason.MAX_REPLICAS_BOUND: "more replicas are needed than spec.roles.<role>.replicas.max, "
    "or the max of an open schedule, allows. Raise it, or relax spec.slo",
    Reason.TTFT_FLOOR_ABOVE_TARGET: "a prompt alone in the fleet takes longer than "
    f"spec.slo.ttft.target, {_UNREACHABLE}",
    Reason.TPOT_FLOOR_ABOVE_TARGET: "a request alone in the fleet takes longer per token than "
    f"spec.slo.tpot.target, {_UNREACHABLE}",
}
"""Messages that do not depend on the fleet."""


def messages_of(findings: Findings) -> dict[Reason, str]:
    """A message for each reason that this round can be specific about."""
    messages = {problem.reason: problem.message for problem in findings.problems}
    messages |= FIXED | _of_fleet(findings) | messages_of_decision(findings.decision)
    messages |= _of_settings(findings)
    problem = findings.metrics_problem
    if problem is not None and lacks_metrics(findings.decision):
        messages[problem] = messages[Reason.METRICS_UNAVAILABLE]
    return {reason: text for reason, text in messages.items() if text}


def _of_fleet(findings: Findings) -> dict[Reason, str]:
    snapshot, draft = findings.snapshot, findings.draft
    spec, contested = snapshot.fleet.spec, field_conflicts.shown(draft.memory.field_conflicts)
    pods = names.selector_text(snapshot.fleet.name, names.GATEWAY_ROLE)
    no_slo = "spec.slo is not set"
    if spec.autoscaling.policy != "External":
        no_slo += ": replicas stay at their minimum. Set it, and they follow the load"
    messages = {
        Reason.FOREIGN_OBJECT: f"{', '.join(findings.conflicts)} {FOREIGN}",
        Reason.PUT_BACK_AGAIN: f"{'; '.join(contested)}. This goes on, so Argosy puts its own "
        "values back less and less often. Stop the other writer, or change the ServingDeployment",
        Reason.PODS_LEAVING: "pods finish the requests that they have and are then deleted: "
        + ", ".join(sorted(pod.name for pod in draft.leaving)),
        Reason.NO_SLO: no_slo,
        Reason.ROLLING_OUT: _rolling_out(findings),
        Reason.GATEWAY_NOT_READY: f"no gateway pod is ready. See kubectl get pods -l {pods}",
    }
    if findings.autoscaler:
        messages[Reason.AUTOSCALER_BLIND] = _blind(findings)
    messages |= _of_model(findings)
    if left := _types_left(findings):
        messages[Reason.GPU_TYPE_FULL] = left
    if findings.failing_pairs:
        messages[Reason.HANDOVERS_FAIL] = _handovers_fail(findings.failing_pairs)
    lacking = {**findings.below, **findings.missing}
    if missing := ", ".join(f"{n} {role}" for role, n in lacking.items() if n):
        waiting = f"waiting for pods to become ready: {missing}"
        messages |= dict.fromkeys((Reason.STARTING, Reason.PODS_NOT_READY), waiting)
    attainment = number((findings.goodput or {}).get("attainment"))
    if attainment is not None and spec.slo is not None:
        share = (
            f"{attainment:.1%} of requests met their targets; the goal, spec.slo.attainment, is "
            f"{spec.slo.attainment}"
        )
        messages |= dict.fromkeys((Reason.TARGETS_MET, Reason.TARGETS_MISSED), share)
    return messages


def _of_settings(findings: Findings) -> dict[Reason, str]:
    """What is said of gateways that may not use the settings of the spec."""
    snapshot, found = findings.snapshot, findings.settings
    settings = f"the settings in ConfigMap {names.settings(snapshot.fleet.name)}"
    messages = dict[Reason, str]()
    if found.pending:
        messages[Reason.SETTINGS_PENDING] = (
            f"{_part(found.pending, found.ready, 'uses', 'use')} older settings than those of the "
            "spec. Gateways read them every five seconds"
        )
    if found.refusing:
        refusing = [each.pod for each in found.refusing]
        messages[Reason.SETTINGS_REFUSED] = (
            f"{_part(refusing, found.ready, 'refuses', 'refuse')} {settings} and "
            f"{'goes' if len(refusing) == 1 else 'go'} on with older ones: "
            f"{found.refusing[0].why.strip().rstrip('.')}"
        )
    if found.unknown:
        messages[Reason.SETTINGS_UNKNOWN] = (
            f"{_part(found.unknown, found.ready, 'does', 'do')} not say whether {settings} are in "
            f"use: port {names.GATEWAY_ADMIN_PORT} does not answer the operator. "
            f"{UNHEARD_S:.0f} s after the settings were written this is not waited for any more"
        )
    before = snapshot.fleet.status.conditions
    if is_rolled_out(before, snapshot.fleet.metadata.generation):
        # Gateways are not asked any more, and what was said of them stays.
        kept = next(c.message for c in before if c.type == ConditionType.ROLLED_OUT)
        if kept.startswith(_ALL_SERVE):
            messages[Reason.ROLLED_OUT] = kept
    elif found.silent:
        messages[Reason.ROLLED_OUT] = (
            f"{_ALL_SERVE}. {_part(found.silent, found.ready, 'does', 'do')} not answer the "
            f"operator on port {names.GATEWAY_ADMIN_PORT}, so whether {settings} are in use there "
            "is not known"
        )
    return messages


def _part(pods: Sequence[str], of: int, one: str, more: str) -> str:
    """As `2 of 3 gateways (a, b) use`, with a verb for one and for more."""
    named = ", ".join(pods[:MOST_NAMED]) + (", …" if len(pods) > MOST_NAMED else "")
    what = "gateway" if of == 1 else "gateways"
    return f"{len(pods)} of {of} {what} ({named}) {one if len(pods) == 1 else more}"


def _blind(findings: Findings) -> str:
    name = names.gateway(findings.snapshot.fleet.name)
    return (
        f"HorizontalPodAutoscaler {name} cannot scale: {findings.autoscaler}. Gateways stay as "
        "many as they are, and at least spec.routing.autoscaling.min. If this lasts, install a "
        "server of CPU metrics, such as metrics-server"
    )


def _of_model(findings: Findings) -> dict[Reason, str]:
    snapshot, draft = findings.snapshot, findings.draft
    model, job = snapshot.fleet.spec.model.uri, names.fetch_job(snapshot.fleet.name)
    if (known := draft.model or _known(snapshot)) is not None:
        where = f"commit {known['commit']} of {model} is in claim {known['claimName']}"
        return {Reason.FETCHED: where}
    live = live_job(snapshot)
    pods = () if live is None else pods_of(snapshot, live)
    state = f"it has no pod yet: if this lasts, kubectl describe job {job} says why"
    far = ""
    for pod in pods:
        since = rfc3339(pod.waits_since)
        if pod.phase == "Pending":
            state = f"pod {pod.name} waits to start since {since}. kubectl describe pod {pod.name} "
            state += "says for what"
            continue
        state = f"pod {pod.name} runs since {since}"
        state += f" and began again {pod.restarts} times" if pod.restarts else ""
        state += f". kubectl logs {pod.name} shows how far it is"
        if (progress := snapshot.fetch_progress.get(pod.name)) is not None:
            far = f"{_in_steps(progress)} are there; "
    what = f"Job {job} fetches {model} into claim {snapshot.fleet.model_claim}; {far}engine pods "
    return {Reason.FETCHING_MODEL: f"{what}start when it is there; {state}"}


def _in_steps(progress: FetchProgress) -> str:
    """As `3.0 of 15.2 GiB`: in twentieths, so that one fetch writes status twenty times at most."""
    here = progress.bytes * _STEPS // progress.of * progress.of / _STEPS
    unit, divisor = ("GiB", _GIB) if progress.of >= _GIB else ("MiB", _MIB)
    return f"{here / divisor:.1f} of {progress.of / divisor:.1f} {unit}"


def _known(snapshot: Snapshot) -> dict[str, Any] | None:
    fetched = snapshot.fleet.fetched_model
    return None if fetched is None else dump(fetched)


def _rolling_out(findings: Findings) -> str:
    if not findings.draft.rolling:
        return "gateway pods are replaced; the older ones end once the new ones serve"
    return (
        f"pods of revision {findings.snapshot.revision} are starting; the older pods are deleted "
        "once they serve"
    )


def _types_left(findings: Findings) -> str:
    """Which roles run on which type because others had no room; "" for none."""
    snapshot = findings.snapshot
    left = [
        f"{role} runs on {settings.gpu_types[0]}, since pods found no node with "
        f"{' and '.join(shut)} ({rfc3339(max(shut.values()))})"
        for role, settings in snapshot.fleet.spec.active_roles()
        if settings.gpu_types and (shut := without_room(snapshot, role))
    ]
    return f"{'; '.join(left)}. It may go back after a day, if that is cheaper" if left else ""


_MOST_PAIRS = 4


def _handovers_fail(pairs: tuple[tuple[str, str, str], ...]) -> str:
    named = [f"{p} to {d} ({reason})" for p, d, reason in pairs[:_MOST_PAIRS]]
    if more := len(pairs) - len(named):
        named.append(f"{more} more")
    return (
        f"KV caches do not get from {', '.join(named)}. The gateways choose other pairs, and "
        "Argosy replaces a pod that is the cause. If this lasts, read the logs of these pods"
    )
