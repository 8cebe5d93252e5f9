"""Facts about one round. `TABLE` decides which condition each one sets."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from argosy_law.decision import lacks_metrics, not_judged
from argosy_law.slo import Alert, lasting
from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.api.v1alpha1.status import Condition
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, child_key, is_owned
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.revision import verifies_callers
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.status.decided import facts_of_decision, no_requests
from argosy_operator.core.status.findings import Findings
from argosy_operator.core.status.numbers import errors_of, fronts, slo_column, without_room
from argosy_operator.core.status.table import Fact, Facts, Overdue
from argosy_operator.core.steps import field_conflicts
from argosy_operator.core.steps.failures import is_stuck
from argosy_operator.core.steps.gateways import is_rolled_out
from argosy_operator.core.steps.goals import at_zero, by_law
from argosy_operator.core.steps.models import live_job


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
        Fact.FIELD_CONTESTED: bool(field_conflicts.shown(findings.draft.memory.field_conflicts)),
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
                Reason.PODS_NOT_READY | Reason.NO_PREFILL | Reason.REVISIONS_DIFFER,
            ):
                return True
    return False
