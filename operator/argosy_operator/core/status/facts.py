"""Facts about one round. `TABLE` decides which condition each one sets.

`Findings` is the round, looked at once: the snapshot, the draft that the chain left, the outcomes
of its actions, and what the scaling law decided last. That decision is in the loop's memory, so it
is also known in the rounds between two decisions. Whether requests arrive and why metrics are
unavailable is known in the round of a decision alone; the other rounds read it back from the
condition MetricsAvailable.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from typing import Any

from argosy_law.decision import Decision, Rule, lacks_metrics, not_judged
from argosy_law.observe import Idle
from argosy_law.rollout import RolloutState
from argosy_law.signals.validity import why_unavailable
from argosy_law.slo import Alert, lasting
from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.api.v1alpha1.status import Condition
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Outcome
from argosy_operator.core.snapshot.objects import Object, child_key, is_owned
from argosy_operator.core.snapshot.pod_problems import Problem
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Failure, Snapshot, verifies_callers
from argosy_operator.core.status.numbers import (
    errors_of,
    fronts,
    goodput_status,
    slo_column,
    without_room,
)
from argosy_operator.core.status.problems import (
    conflicts_of,
    failed_writes,
    problems_of,
)
from argosy_operator.core.steps.children import InUse, in_use, is_rolled_out
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.failures import STUCK_S, describe_conflicts, is_stuck
from argosy_operator.core.steps.goals import at_zero, by_law, goals_of
from argosy_operator.core.steps.models import live_job


@unique
class Fact(StrEnum):
    """What can be true of a fleet. The value is the fact in words, as the documentation shows it.

    A `Reason` is used as a fact too: it holds when a problem with this reason was found.
    """

    # The spec
    PAUSED = "spec.paused is true"
    ZERO_REPLICAS = "every role has 0 replicas, as the spec asks"
    AT_ZERO = "no requests arrive, and by spec.autoscaling.scaleToZero there are no replicas"
    WAKING = "the fleet was at zero before, and has not served since"
    DISAGGREGATED = "spec.mode is disaggregated"
    SLO_SET = "spec.slo is set"
    POLICY_EXTERNAL = "spec.autoscaling.policy is External"
    ADVISORY = "spec.autoscaling.advisory is true"
    POLICY_NONE = "spec.autoscaling.policy is None"
    LAW_SCALED = "spec.autoscaling.policy is Goodput and spec.slo is set"
    MODEL_IN_PLACE = "spec.model.uri needs no fetching, and no Job of a fetching is left"
    MODEL_MISSING = "spec.model.uri is to be fetched, and the model is not there yet"
    # Pods
    # One colocated pod, or a prefill and a decode pod of one revision.
    SERVABLE = "a complete set of engine pods serves"
    WAS_SERVING = "the fleet answered requests before this round"
    PREFILL_SERVES = "a prefill pod serves"
    DECODE_SERVES = "a decode pod serves"
    REVISIONS_DIFFER = "prefill and decode pods serve, but none of them are of one revision"
    DECODE_ALONE = "a disaggregated fleet has lost its prefill pods, and a decode pod serves"
    GATEWAY_READY = "a gateway pod is ready"
    PODS_MISSING = "fewer pods serve than are wanted"
    BELOW_MINIMUM = "fewer engine or gateway pods serve than the least that the spec asks for"
    ROLLING_OUT = "pods of an older revision or mode still exist"
    ROLLOUT_PAUSED = "spec.rollout.paused is true, and pods of an older revision still exist"
    REFUSED = "status.refused names the spec's revision, and another one runs in its place"
    SURGE_TOO_SMALL = "no pod of the new revision fits beside the last old ones"
    FRONT_ROLLING = "gateway pods are not as the spec asks, or older ones still exist"
    ROLLED_OUT_BEFORE = "RolledOut was True of this metadata.generation before"
    PODS_LEAVING = "pods are draining"
    GPU_TYPE_LEFT = "within a day a role has left one of its gpuTypes, which had no room"
    # A role by itself
    ROLE_LACKS_PODS = "fewer pods of the role serve than it is to have"
    OUT_OF_BOUNDS = "others scale the ServingRole, and the spec does not allow its number"
    # Objects of the API server
    NAME_TAKEN = "an object with another owner has a name that the fleet needs"
    SERVICE_NAME_TAKEN = "a Service with another owner has the fleet's name"
    WRITE_FAILS = "an object cannot be written"
    DEPLOYMENT_WRITE_FAILS = "a Deployment cannot be written"
    WRITE_STUCK = f"an object could not be written for {STUCK_S / 60:.0f} minutes"
    FIELD_CONTESTED = "another writer keeps changing what the operator writes"
    # Who may call the engines
    VERIFICATION_OFF = "spec.security.verifyPeers is false"
    OTHER_ENGINE = "spec.engine.type is not argosy"
    KEYS_UNKNOWN = "the API server has not said who signs its tokens"
    PROOF_NOT_REQUIRED = "some gateway or engine pod shows or verifies no token yet"
    NO_TLS = "spec.security.tls is not set"
    CERTIFICATE_NOT_USED = "a pod runs without the certificate"
    ENGINE_STARTED = "an engine pod has started"
    WAS_ENCRYPTED = "the status before this round said that calls are encrypted"
    # Gateways
    HANDOVERS_FAIL = "a gateway names pods whose handovers failed twice in a row"
    GATEWAYS_SCALED = "spec.routing.autoscaling is set"
    GATEWAYS_BY_OTHERS = "spec.routing.autoscaling.policy is External"
    AUTOSCALER_ACTIVE = "the gateways' HorizontalPodAutoscaler says that it scales"
    AUTOSCALER_BLIND = "the gateways' HorizontalPodAutoscaler says that it cannot scale"
    SETTINGS_PENDING = "a ready gateway does not use the settings of the spec"
    SETTINGS_REFUSED = "a ready gateway cannot use the settings of the spec"
    SETTINGS_UNKNOWN = "a ready gateway does not answer, and the settings are new"
    # The scaling law's last decision, and what it measured
    DECIDED = "the scaling law has decided since the operator started"
    METRICS_UNAVAILABLE = "the last decision had no usable metrics"
    GATEWAYS_ALONE = "Prometheus has no usable metrics, and the gateways say what their load is"
    GATEWAY_SILENT = "Prometheus has no fresh samples of some ready gateway pod"
    NO_REQUESTS = "no request arrives"
    ATTAINMENT_KNOWN = "the share of requests within spec.slo is measured"
    GOAL_MET = "that share is at least spec.slo.attainment"
    ERRORS_KNOWN = "requests were judged, and their burn rates are known"
    BURNS_FAST = "status.errorBudget asks for a page, or did and both windows still burn at half"
    BURNS_SLOWLY = "status.errorBudget asks for a ticket, or did and both still burn at half"
    SIZED = "the last decision sized a role from its load"
    GPU_BUDGET_BOUND = "a GPU budget limited the last decision"
    MAX_REPLICAS_BOUND = (
        "a role's replicas.max, or an open schedule's max, limited the last decision"
    )
    TTFT_UNREACHABLE = "a request alone in the fleet misses spec.slo.ttft.target"
    TPOT_UNREACHABLE = "a request alone in the fleet misses spec.slo.tpot.target"
    CAPACITY_RELEARNT = "the capacity of a replica is being measured again"
    SIGNALS_UNKNOWN = "a metric that a role's size depends on is unknown"


@dataclass(frozen=True, slots=True)
class Overdue:
    """A problem that waiting does not solve, or that has lasted for spec.progressDeadline."""

    reason: Reason


Facts = frozenset[Fact | Reason | Overdue]

METRICS_PROBLEMS = (
    Reason.NO_PROMETHEUS,
    Reason.PROMETHEUS_NOT_ALLOWED,
    Reason.PROMETHEUS_UNREACHABLE,
    Reason.NO_TARGETS,
    Reason.GATEWAY_SILENT,
    Reason.STALE,
    Reason.NOT_A_NUMBER,
)
"""Why metrics are unavailable, where the cause has a reason of its own."""


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


def facts_of(findings: Findings) -> Facts:
    """All facts that hold, with the reasons of the problems that were found."""
    holds = _of_spec(findings) | _of_pods(findings) | _of_objects(findings)
    holds |= _of_slo(findings) | _of_trust(findings.snapshot) | _of_tls(findings.snapshot)
    holds |= _of_gateways(findings)
    return frozenset(
        {fact for fact, true in holds.items() if true}
        | facts_of_decision(findings.decision)
        | set(_reasons(findings))
        | {Overdue(p.reason) for p in findings.problems if p.overdue_in_s(findings.snapshot) <= 0}
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of a fleet whose spec cannot be read: no round looks after it."""

    uid: str
    """Of the fleet."""
    generation: int
    """Of the spec that cannot be read."""
    pods: tuple[Pod, ...]
    """The fleet's own."""
    service: Object | None
    """The one of the fleet's name; None if there is none."""
    needs_service: bool
    """Clients were told to use it."""
    disaggregated: bool
    """By the last spec that could be read."""

    @property
    def service_is_ours(self) -> bool:
        return self.service is not None and is_owned(self.service, self.uid)


def facts_of_standing(standing: Standing, before: Collection[Condition]) -> Facts:
    """Facts by which `Ready`, `Servable` and `RolledOut` stay true without a spec. `before` are the
    conditions as they were."""
    roles = {pod.role for pod in standing.pods if pod.serving}
    unreachable = standing.needs_service and not standing.service_is_ours
    holds = _of_serving(standing.pods, before, disaggregated=standing.disaggregated) | {
        Fact.DISAGGREGATED: standing.disaggregated,
        Fact.GATEWAY_READY: names.GATEWAY_ROLE in roles and not unreachable,
        Fact.SERVICE_NAME_TAKEN: unreachable and standing.service is not None,
        Fact.NAME_TAKEN: unreachable and standing.service is not None,
        Fact.ROLLED_OUT_BEFORE: is_rolled_out(before, standing.generation),
    }
    return frozenset(fact for fact, true in holds.items() if true)


def _of_spec(findings: Findings) -> dict[Fact, bool]:
    spec, targets = findings.snapshot.fleet.spec, findings.draft.targets
    zero = at_zero(spec, targets)
    return {
        Fact.PAUSED: spec.paused,
        Fact.ZERO_REPLICAS: not zero
        and all(
            targets.get(role, bounds.replicas.max) == 0 for role, bounds in spec.active_roles()
        ),
        Fact.AT_ZERO: zero,
        Fact.WAKING: spec.goes_to_zero and not zero and _was_at_zero(findings.snapshot),
        Fact.DISAGGREGATED: spec.mode == "disaggregated",
        Fact.SLO_SET: spec.slo is not None,
        Fact.POLICY_EXTERNAL: spec.autoscaling.policy == "External",
        Fact.ADVISORY: spec.autoscaling.advisory,
        Fact.POLICY_NONE: spec.autoscaling.policy == "None",
        Fact.LAW_SCALED: by_law(spec),
        Fact.MODEL_IN_PLACE: spec.model.fetch is None and live_job(findings.snapshot) is None,
        Fact.MODEL_MISSING: spec.model.fetch is not None and _model_missing(findings),
    }


def _model_missing(findings: Findings) -> bool:
    return findings.snapshot.fleet.fetched_model is None and findings.draft.model is None


def _of_pods(findings: Findings) -> dict[Fact, bool]:
    snapshot, draft = findings.snapshot, findings.draft
    roles = {pod.role for pod in snapshot.pods if pod.serving}
    before = snapshot.fleet.status.conditions
    disaggregated = snapshot.fleet.spec.mode == "disaggregated"
    return _of_serving(snapshot.pods, before, disaggregated=disaggregated) | {
        Fact.GATEWAY_READY: names.GATEWAY_ROLE in roles,
        Fact.PODS_MISSING: any(findings.missing.values()),
        Fact.BELOW_MINIMUM: any(findings.below.values()),
        Fact.ROLLING_OUT: draft.rolling,
        Fact.ROLLOUT_PAUSED: draft.split is not None and snapshot.fleet.spec.rollout.paused,
        Fact.REFUSED: snapshot.refusal is not None and snapshot.refusal.runs is not None,
        Fact.SURGE_TOO_SMALL: draft.split is not None
        and draft.split.state == RolloutState.SURGE_TOO_SMALL,
        Fact.FRONT_ROLLING: _front_rolling(snapshot),
        Fact.ROLLED_OUT_BEFORE: is_rolled_out(before, snapshot.fleet.metadata.generation),
        Fact.PODS_LEAVING: bool(draft.leaving),
        Fact.GPU_TYPE_LEFT: any(
            without_room(snapshot, role) for role, _ in snapshot.fleet.spec.active_roles()
        ),
    }


def _of_serving(
    pods: Iterable[Pod], before: Iterable[Condition], *, disaggregated: bool
) -> dict[Fact, bool]:
    serving = {(pod.role, pod.revision) for pod in pods if pod.serving}
    roles = {role for role, _ in serving}
    servable, was_serving = _servable(serving), _was_serving(before)
    return {
        Fact.SERVABLE: servable,
        Fact.WAS_SERVING: was_serving,
        Fact.PREFILL_SERVES: "prefill" in roles,
        Fact.DECODE_SERVES: "decode" in roles,
        Fact.REVISIONS_DIFFER: {"prefill", "decode"} <= roles and not servable,
        Fact.DECODE_ALONE: disaggregated and was_serving and "decode" in roles and not servable,
    }


def _of_gateways(findings: Findings) -> dict[Fact, bool]:
    scaling = findings.snapshot.fleet.spec.routing.autoscaling
    return {
        Fact.GATEWAYS_SCALED: scaling is not None,
        Fact.GATEWAYS_BY_OTHERS: scaling is not None and scaling.policy == "External",
        Fact.AUTOSCALER_ACTIVE: findings.autoscaler == "",
        Fact.AUTOSCALER_BLIND: bool(findings.autoscaler),
        Fact.SETTINGS_PENDING: bool(findings.settings.pending),
        Fact.SETTINGS_REFUSED: bool(findings.settings.refusing),
        Fact.SETTINGS_UNKNOWN: bool(findings.settings.unknown),
    }


def _front_rolling(snapshot: Snapshot) -> bool:
    """Are there gateways of before? Those that end are such, but not once the spec is reached: they
    end for other reasons, too. The list of pods may be older than that of the Deployments: a pod
    too many is one of before that was still there."""
    found = fronts(snapshot)
    pods = [pod for pod in snapshot.pods if pod.role == names.GATEWAY_ROLE]
    too_many = sum(pod.running for pod in pods) > sum(front.wanted for front in found)
    left = too_many or any(pod.terminating for pod in pods)
    unseen = any(front.unseen for front in found)
    fleet = snapshot.fleet
    before = is_rolled_out(fleet.status.conditions, fleet.metadata.generation)
    return any(front.rolling for front in found) or ((left or unseen) and not before)


def _of_objects(findings: Findings) -> dict[Fact, bool]:
    snapshot, failed = findings.snapshot, findings.failed_writes
    return {
        Fact.NAME_TAKEN: bool(findings.conflicts),
        Fact.SERVICE_NAME_TAKEN: f"Service/{snapshot.fleet.name}" in findings.conflicts,
        Fact.WRITE_FAILS: bool(failed),
        Fact.DEPLOYMENT_WRITE_FAILS: any(failure.builds for failure in failed),
        Fact.WRITE_STUCK: any(is_stuck(failure, snapshot.monotonic) for failure in failed),
        Fact.HANDOVERS_FAIL: bool(findings.failing_pairs),
        Fact.FIELD_CONTESTED: bool(describe_conflicts(findings.draft.memory.field_conflicts)),
    }


def _of_slo(findings: Findings) -> dict[Fact, bool]:
    blind = not_judged(findings.decision)
    word = slo_column(findings.snapshot, findings.goodput, blind)
    spent, burning = errors_of(findings.snapshot, findings.draft), _burning(findings)
    return {
        Fact.ERRORS_KNOWN: spent is not None and bool(spent.burn),
        Fact.BURNS_FAST: burning == "Page",
        Fact.BURNS_SLOWLY: burning == "Ticket",
        Fact.NO_REQUESTS: no_requests(findings.snapshot),
        Fact.ATTAINMENT_KNOWN: word in ("Met", "Missed", "AtRisk"),
        Fact.GOAL_MET: word in ("Met", "AtRisk"),
    }


def _burning(findings: Findings) -> Alert:
    """The alert of the error budget, which ends later than it began. What was said before stays
    until verdicts are known again, as after a restart of the operator."""
    snapshot = findings.snapshot
    slo, spent = snapshot.fleet.spec.slo, errors_of(snapshot, findings.draft)
    said = next(
        (c.reason for c in snapshot.fleet.status.conditions
         if c.type == ConditionType.ERROR_BUDGET_BURNING), ""
    )  # fmt: skip
    before = _ALERTS.get(said, "None")
    if slo is None or spent is None:
        return before if slo is not None and by_law(snapshot.fleet.spec) else "None"
    return lasting(spent, slo.attainment.fraction, before)


_ALERTS: dict[str, Alert] = {Reason.BURNING_FAST: "Page", Reason.BURNING_SLOWLY: "Ticket"}


def _of_trust(snapshot: Snapshot) -> dict[Fact, bool]:
    peers_file = names.peers(snapshot.fleet.name)
    here = peers_file in snapshot.owned("ConfigMap")
    return {
        Fact.VERIFICATION_OFF: not snapshot.fleet.spec.security.verify_peers,
        Fact.OTHER_ENGINE: snapshot.fleet.spec.engine.type != "argosy",
        Fact.KEYS_UNKNOWN: not here
        and not any(child_key(obj) == ("ConfigMap", peers_file) for obj in snapshot.wanted),
        Fact.PROOF_NOT_REQUIRED: not (snapshot.proof_required and here)
        or not all(map(verifies_callers, snapshot.retired())),
    }


def _of_tls(snapshot: Snapshot) -> dict[Fact, bool]:
    """A pod whose Secret does not exist stays Pending: its volume cannot be mounted."""
    pods = [pod for pod in snapshot.pods if pod.running]
    engines = [pod for pod in pods if pod.role != names.GATEWAY_ROLE]
    return {
        Fact.NO_TLS: snapshot.fleet.spec.security.tls is None,
        Fact.CERTIFICATE_NOT_USED: not all(pod.tls for pod in pods),
        Fact.ENGINE_STARTED: any(pod.phase != "Pending" for pod in engines),
        Fact.WAS_ENCRYPTED: any(
            (c.type, c.status) == (ConditionType.TRANSPORT_SECURED, "True")
            for c in snapshot.fleet.status.conditions
        ),
    }


def _reasons(findings: Findings) -> Iterator[Reason]:
    yield from (problem.reason for problem in findings.problems)
    if findings.metrics_problem is not None and lacks_metrics(findings.decision):
        yield findings.metrics_problem


def _servable(serving: set[tuple[str, str]]) -> bool:
    """Is there a colocated pod, or a pair of one revision, among these (role, revision)?"""
    return any(
        ("colocated", revision) in serving
        or {("prefill", revision), ("decode", revision)} <= serving
        for _, revision in serving
    )


def _was_at_zero(snapshot: Snapshot) -> bool:
    """The status before this round says that the fleet has not served since it was at zero."""
    return any(
        c.type == ConditionType.SERVABLE and c.reason in (Reason.SCALED_TO_ZERO, Reason.WAKING)
        for c in snapshot.fleet.status.conditions
    )


def _was_serving(before: Iterable[Condition]) -> bool:
    """The conditions that were written last say that the fleet answers, or lost its pods."""
    for condition in before:
        match condition.type, condition.status, condition.reason:
            case ("Servable", "True", _):
                return True
            case (
                "Ready",
                _,
                Reason.PODS_NOT_READY | Reason.NO_PREFILL,
            ):
                return True
    return False


_FAILURES = 2
"""In a row. A single failure is no finding: pods that end break what they hand over."""


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


PROBLEM_OF_CODE = {
    "NoPrometheus": Reason.NO_PROMETHEUS,
    "PrometheusNotAllowed": Reason.PROMETHEUS_NOT_ALLOWED,
    "PrometheusAway": Reason.PROMETHEUS_UNREACHABLE,
    "PrometheusTimeout": Reason.PROMETHEUS_UNREACHABLE,
    "NoGatewayTarget": Reason.NO_TARGETS,
    "GatewayDown": Reason.NO_TARGETS,
    "GatewaySilent": Reason.GATEWAY_SILENT,
    "Stale": Reason.STALE,
    "NotANumber": Reason.NOT_A_NUMBER,
}
"""Code before the colon of an unavailable signal's text (adapters/prometheus, signals/validity.py)
→ reason of the MetricsAvailable condition."""


def facts_of_decision(decision: Decision | None) -> set[Fact]:
    """Facts that the last decision shows."""
    if decision is None:
        return set()
    rules = {target.rule for target in decision.targets}
    reach = decision.numbers
    decode_too_slow = reach.get("tpot_reachable", 1.0) < reach.get("ttft_reachable", 1.0)
    holds = {
        Fact.DECIDED: True,
        Fact.METRICS_UNAVAILABLE: lacks_metrics(decision),
        Fact.GATEWAYS_ALONE: bool(decision.gateways_alone),
        Fact.GATEWAY_SILENT: bool(decision.silent_gateways),
        Fact.GPU_BUDGET_BOUND: Rule.GPU_BUDGET in rules,
        Fact.MAX_REPLICAS_BOUND: Rule.MAX_REPLICAS in rules or _scheduled_below_need(decision),
        Fact.CAPACITY_RELEARNT: bool(decision.relearning),
        Fact.SIGNALS_UNKNOWN: bool(decision.unknown),
        Fact.SIZED: any(name.endswith("_planned_per_s") for name in decision.numbers),
        Fact.TTFT_UNREACHABLE: not decision.reachable and not decode_too_slow,
        Fact.TPOT_UNREACHABLE: not decision.reachable and decode_too_slow,
    }
    return {fact for fact, true in holds.items() if true}


def _scheduled_below_need(decision: Decision) -> bool:
    """The maximum of an open schedule is less than the load needs."""
    return any(t.rule is Rule.SCHEDULE and t.replicas < t.demanded for t in decision.targets)


def no_requests(snapshot: Snapshot) -> bool:
    """No request arrived, as of the last decision."""
    if snapshot.metrics is None:
        return Reason.IDLE in _last_reasons(snapshot)
    return isinstance(snapshot.metrics.arrivals, Idle)


def metrics_problem(snapshot: Snapshot) -> Reason | None:
    """Why the metrics are unavailable, as of the last decision; None where that has no reason of
    its own."""
    if snapshot.metrics is None:
        last = _last_reasons(snapshot)
        return next((reason for reason in METRICS_PROBLEMS if reason in last), None)
    why = why_unavailable(snapshot.metrics, goals_of(snapshot.fleet.spec).windows) or ""
    return PROBLEM_OF_CODE.get(why.partition(":")[0])


def _last_reasons(snapshot: Snapshot) -> list[str]:
    conditions = snapshot.fleet.status.conditions
    return [c.reason for c in conditions if c.type == ConditionType.METRICS_AVAILABLE]
