"""Snapshot of one fleet: fresh lists from the API server, limited to the fleet by its label.

Lists are read anew in every round instead of cached, so a plan never waits for what a watch has not
delivered yet. Engines are asked only if their pods drain or a pod must be chosen for removal;
gateways until they use the spec's settings, and where their requests count; metrics only when the
scaling law is due.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from argosy_law.observe import FleetMetrics
from argosy_law.signals.gateways import Heard, fill_metrics, remember_readings
from argosy_law.signals.validity import why_unavailable
from argosy_operator.adapters.protocols import (
    Cluster,
    Engines,
    Fetchers,
    FleetPods,
    Gateways,
    Measurement,
    Metrics,
    TrustSource,
)
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.history import Past, Refusal, history_of
from argosy_operator.core.snapshot.objects import (
    ChildKey,
    Object,
    child_key,
    digest,
    is_owned,
    is_seen,
    replicas_of,
)
from argosy_operator.core.snapshot.pods import (
    FetchProgress,
    GatewayLoad,
    Handovers,
    Load,
    Pod,
    controller_of,
    gateways_to_ask,
    load_by_gateways,
    owned_pods,
    pod_of,
)
from argosy_operator.core.snapshot.snapshot import (
    TEMPLATE,
    Clock,
    Issuer,
    LoopMemory,
    ReplicaSet,
    Snapshot,
    as_rolled_out,
    certificate_of,
    inputs,
    made_from,
    revision,
    role_of,
    verifies_callers,
)
from argosy_operator.core.steps.canary import canary_of, serves_since
from argosy_operator.core.steps.children import is_rolled_out
from argosy_operator.core.steps.goals import by_law, goals_of
from argosy_operator.core.steps.gpu_types import as_chosen
from argosy_operator.core.steps.models import as_fetched, may_have_job
from argosy_operator.core.steps.refusals import as_it_runs, read_refusal
from argosy_operator.core.steps.targets import gpus_targeted, holds_first_tokens
from argosy_operator.render import fetch, gateway, workload
from argosy_operator.render.common import (
    Images,
    choose_images,
    keep_template,
    note_inputs,
    pod_images,
)
from argosy_operator.render.engines import EnginePod
from argosy_operator.render.fleet import (
    Callers,
    render_callers,
    render_learnt,
    render_network_policy,
    render_past,
    render_roles,
)
from argosy_operator.shell.boards import BudgetBoard, RolloutBoard
from argosy_operator.shell.concurrency import call_all

CHILD_KINDS = (
    "Deployment",
    "ServingRole",
    "Service",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "PodDisruptionBudget",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "ControllerRevision",
)
CLAIM = "PersistentVolumeClaim"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where snapshots come from, and where plans go to."""

    cluster: Cluster
    metrics: Metrics
    engines: Engines
    images: Images
    """Default images of engines and gateways, which are rendered into Deployments."""
    budget: BudgetBoard = field(default_factory=BudgetBoard)
    rollouts: RolloutBoard = field(default_factory=RolloutBoard)
    trust: TrustSource | None = None
    """Who signs the tokens by which pods know each other. None where no pods are made."""
    gateways: Gateways | None = None
    """None: they are not asked about handovers and requests."""
    fetchers: Fetchers | None = None
    """None: the pods that fetch a model are not asked how far they are."""


async def gather(
    sources: Sources, fleet: ServingDeployment, memory: LoopMemory, clock: Clock
) -> Snapshot:
    """Read everything that `plan` may know. Raises ClusterError if a list cannot be read."""
    selector = f"{names.FLEET}={fleet.name}"
    kinds = (*CHILD_KINDS, "ReplicaSet", "Pod")
    cluster, namespace = sources.cluster, fleet.namespace
    lists, named = await asyncio.gather(
        asyncio.gather(*(cluster.list(kind, namespace, selector) for kind in kinds)),
        _get_by_name(cluster, fleet, memory),
    )
    *listed, replica_sets, raw_pods = lists
    children: dict[ChildKey, Object] = {
        child_key(child): child for kind in listed for child in kind
    }
    children |= named
    children |= await _get_service(cluster, fleet, children)
    children |= await _get_fetch_objects(cluster, fleet)
    pods = owned_pods(raw_pods, replica_sets, _deployment_uids(children, fleet))
    as_written = fleet
    if fleet.status.refused is not None:
        fleet = _read_rendering(fleet, sources.images, children, pods).written
        children |= await _get_fetch_objects(cluster, fleet)
    due = by_law(fleet.spec) and not fleet.spec.paused and clock.monotonic >= memory.decide_at
    due = due and not memory.listen  # a start from zero does not wait for Prometheus
    zero = fleet.spec.goes_to_zero and not fleet.spec.paused
    uncounted = [pod for pod in _engines_to_ask(pods, memory) if not pod.admin]
    asks = zero or (due and fleet.spec.metrics.ask_gateways) or bool(uncounted)
    requests = await _ask_gateways(sources.gateways, pods) if asks else {}
    loads, handovers, measured = await asyncio.gather(
        _ask_engines(sources.engines, fleet, pods, memory),
        _ask_handovers(sources.gateways, fleet, pods),
        sources.metrics.measure(fleet, fleet_pods(pods, requests.values()))
        if due
        else _measure_nothing(),
    )
    loads |= {pod.uid: load_by_gateways(pod.uid, pods, requests) for pod in uncounted}
    memory = await _ask_verdicts(sources.metrics, fleet, memory, clock)
    unsettled = not is_rolled_out(fleet.status.conditions, fleet.metadata.generation)
    if not asks and (unsettled or _lacks_metrics(fleet, measured)):
        requests = await _ask_gateways(sources.gateways, pods)
    flips = fleet.spec.flips_roles
    sets = _parse_replica_sets(replica_sets, _deployment_uids(children, fleet)) if flips else {}
    issuer = await sources.trust.issuer() if sources.trust else None
    fetching = tuple(pod_of(raw) for raw in raw_pods if controller_of(raw, "Job"))
    seen = Observed(children, pods, loads, measured, issuer, handovers, sets, requests, fetching)
    seen = replace(seen, fetch_progress=await _ask_progress(sources.fetchers, fetching))
    snapshot = compose(as_written, sources.images, seen, memory, clock)
    key = (fleet.namespace, fleet.name)
    if snapshot.newer_images and not fleet.spec.paused and sources.rollouts.allows(key):
        snapshot = compose(as_written, sources.images, seen, memory, clock, follows=True)
    cap = sources.budget.cap(key, gpus_targeted(snapshot))
    return replace(snapshot, gpu_cap=cap)


@dataclass(frozen=True, slots=True)
class Observed:
    """What one round read from the cluster, the engines and Prometheus."""

    children: Mapping[ChildKey, Object]
    pods: tuple[Pod, ...]
    loads: Mapping[str, Load | None]
    """Answers of the engines that were asked, by pod uid; None where one did not answer."""
    measured: Measurement | None = None
    """None if the scaling law is not due in this round."""
    issuer: Issuer | None = None
    """None if the API server did not say yet."""
    handovers: Handovers = field(default_factory=Handovers)
    replica_sets: Mapping[str, ReplicaSet] = field(default_factory=dict)
    """Those of the fleet's Deployments, by uid."""
    gateway_loads: Mapping[str, GatewayLoad | None] = field(default_factory=dict)
    """Answers of the gateways that were asked, by name; None where one did not answer."""
    fetch_pods: tuple[Pod, ...] = ()
    """Pods of Jobs."""
    fetch_progress: Mapping[str, FetchProgress] = field(default_factory=dict)
    """What those that answer say, by name."""


def compose(
    fleet: ServingDeployment,
    default: Images,
    seen: Observed,
    memory: LoopMemory,
    clock: Clock,
    follows: bool = False,
) -> Snapshot:
    """Combine what was read with what is rendered. Pure. `follows`: running pods take the `default`
    images."""
    owned = _keep_owned(seen.children, fleet)
    deployments = {name: child for (kind, name), child in owned.items() if kind == "Deployment"}
    what = _read_rendering(fleet, default, seen.children, seen.pods, follows=follows)
    fleet, engine_fleet, images = what.fleet, what.engines, what.images
    gateways = [pod for pod in seen.pods if pod.role == names.GATEWAY_ROLE and pod.running]
    digits, made_of = what.revision
    # Engines that ask for tokens until they are gone need gateways that show them until then.
    verifies = fleet.spec.verifies_peers
    shows_token = verifies or any(map(verifies_callers, deployments.values()))
    required = verifies and all(pod.shows_token for pod in gateways)
    callers = Callers.of(fleet, images, seen.pods)
    trust = render_callers(fleet, seen.issuer, callers, required=required)
    wanted = [*(trust if shows_token else ()), *render_network_policy(fleet), *fetch.claim(fleet)]
    wanted += gateway.objects(
        fleet,
        images,
        account=_account(fleet, owned),
        shows_token=shows_token,
        certificate=_choose_certificate(fleet, owned),
        live=owned.get(("Deployment", names.gateway(fleet.name))),
        callers=callers,
        canary=_canary(fleet, digits, owned),
        holds_first_tokens=holds_first_tokens(
            fleet, owned.get(("ConfigMap", names.settings(fleet.name))), memory
        ),
    )
    wanted += render_roles(fleet)
    metrics, heard = _combine_metrics(fleet, seen, memory, clock)
    return Snapshot(
        fleet=fleet,
        revision=digits,
        wanted=tuple(wanted),
        engines=_render_engines(engine_fleet, (digits, made_of), images, deployments),
        children=seen.children,
        pods=seen.pods,
        now=clock.now,
        monotonic=clock.monotonic,
        replica_sets=seen.replica_sets,
        loads=seen.loads,
        handovers=seen.handovers,
        gateway_loads=seen.gateway_loads,
        metrics=metrics,
        heard=heard,
        metrics_next_at=seen.measured.next_at if seen.measured else None,
        proof_required=required,
        images=what.shown_images,
        newer_images=what.newer_images,
        fetch_job=fetch.job(fleet, images),
        fetch_pods=seen.fetch_pods,
        fetch_progress=seen.fetch_progress,
        learnt=render_learnt(fleet),
        past=render_past(what.written, digits, images.engine),
        history=what.history,
        refusal=what.refusal,
        memory=memory,
    )


@dataclass(frozen=True, slots=True)
class _Rendering:
    """What the fleet's objects are rendered from."""

    written: ServingDeployment
    """As the user wrote it, or with the pods of the revision that runs in place of the spec's."""
    fleet: ServingDeployment
    """The same, with what was chosen and fetched for it."""
    engines: ServingDeployment
    """The same, as its engine pods may exist now."""
    revision: tuple[str, str]
    """The revision, and the digest of what it is made from."""
    images: Images
    newer_images: Mapping[str, str]
    shown_images: Mapping[str, str]
    """What the spec asks for, also where it is refused: the fleet keeps its images by them."""
    history: tuple[Past, ...]
    refusal: Refusal | None = None


def _read_rendering(
    fleet: ServingDeployment,
    default: Images,
    children: Mapping[ChildKey, Object],
    pods: Collection[Pod],
    *,
    follows: bool = False,
) -> _Rendering:
    """Return what the spec asks for; if that is refused, what runs in its place."""
    asked = _render_from(fleet, default, children, pods, follows=follows)
    refusal = read_refusal(fleet, asked.revision[0], default.engine, asked.history)
    if refusal is None or refusal.runs is None:
        return replace(asked, refusal=refusal)
    back = _render_from(as_it_runs(fleet, refusal), default, children, pods, follows=follows)
    return replace(back, refusal=refusal, shown_images=asked.shown_images)


def _render_from(
    written: ServingDeployment,
    default: Images,
    children: Mapping[ChildKey, Object],
    pods: Collection[Pod],
    *,
    follows: bool,
) -> _Rendering:
    owned = _keep_owned(children, written)
    fleet = as_fetched(as_chosen(written, owned), children)
    deployments = {name: child for (kind, name), child in owned.items() if kind == "Deployment"}
    images, others = choose_images(fleet, deployments.values(), default, follows=follows)
    called = all(pod.tls for pod in pods if pod.role == names.GATEWAY_ROLE and pod.running)
    engines = as_rolled_out(fleet, deployments, engine_image=images.engine, called=called)
    return _Rendering(
        written=written,
        fleet=fleet,
        engines=engines,
        revision=_find_revision(engines, deployments, images),
        images=images,
        newer_images=others,
        shown_images=pod_images(fleet, images),
        history=history_of(owned.values(), fleet.metadata.uid),
    )


def _find_revision(
    fleet: ServingDeployment, deployments: Mapping[str, Object], images: Images
) -> tuple[str, str]:
    """Return the revision of the spec, and the digest of what it is made from. Pods that run in
    another template of the same inputs keep theirs."""
    roles = {name for name, _ in fleet.spec.active_roles()}
    engines = [d for d in deployments.values() if role_of(d) in roles]
    made_of = digest(inputs(fleet, engine_image=images.engine))
    live = made_from(engines, made_of)
    if live is not None:
        return live["metadata"]["labels"][names.REVISION], made_of
    return revision(fleet, engine_image=images.engine), made_of


def _render_engines(
    fleet: ServingDeployment,
    asked: tuple[str, str],
    images: Images,
    deployments: Mapping[str, Object],
) -> dict[RoleName, Object]:
    """Return the Deployment of each role in the revision; none while its model is not fetched: it
    would hold its GPUs for nothing."""
    if fleet.spec.model.fetch is not None and fleet.fetched_model is None:
        return {}
    (digits, made_of), engines = asked, dict[RoleName, Object]()
    for name, _ in fleet.spec.active_roles():
        live = deployments.get(names.engine_deployment(fleet.name, name, digits))
        pod = EnginePod.of(fleet, name, digits, images, live)
        engines[name] = keep_template(
            note_inputs(workload.deployment(pod), made_of, TEMPLATE), live
        )
    return engines


def _lacks_metrics(fleet: ServingDeployment, measured: Measurement | None) -> bool:
    if measured is None:
        return False
    return why_unavailable(measured.metrics, goals_of(fleet.spec).windows) is not None


def _combine_metrics(
    fleet: ServingDeployment, seen: Observed, memory: LoopMemory, clock: Clock
) -> tuple[FleetMetrics | None, Heard]:
    """Return the metrics of this round, and what gateways have said of their load until now."""
    windows = goals_of(fleet.spec).windows
    pods = fleet_pods(seen.pods, seen.gateway_loads.values())
    heard = remember_readings(memory.heard, pods.readings, clock.now, windows)
    if seen.measured is None:
        return None, heard
    return fill_metrics(seen.measured.metrics, heard, pods.ready_gateways, clock.now, windows)


async def _ask_verdicts(
    metrics: Metrics, fleet: ServingDeployment, memory: LoopMemory, clock: Clock
) -> LoopMemory:
    """Return the memory with the verdicts by revision, which are read while a canary serves, once
    for each interval."""
    since = serves_since(fleet)
    if since is None or fleet.spec.slo is None:
        return replace(memory, verdicts=None, verdicts_at=0.0)
    if clock.monotonic < memory.verdicts_at:
        return memory
    read = await metrics.verdicts(fleet, since)
    again_at = clock.monotonic + goals_of(fleet.spec).windows.interval_s
    return replace(memory, verdicts=read, verdicts_at=again_at)


async def _get_by_name(
    cluster: Cluster, fleet: ServingDeployment, memory: LoopMemory
) -> dict[ChildKey, Object]:
    """Get the children that are read by their name: to list ConfigMaps would be to read those of
    others."""
    name, namespace = fleet.name, fleet.namespace
    kind = "ConfigMap"
    found = await asyncio.gather(
        cluster.get(kind, namespace, names.peers(name)),
        cluster.get(kind, namespace, names.settings(name)),
        _get_learnt(cluster, fleet, memory),
    )
    keys = (
        (kind, names.peers(name)),
        (kind, names.settings(name)),
        (kind, names.learnt(name)),
    )
    return {key: child for key, child in zip(keys, found, strict=True) if child is not None}


async def _get_learnt(
    cluster: Cluster, fleet: ServingDeployment, memory: LoopMemory
) -> Object | None:
    """Read until the law had its first metrics, and then kept in memory."""
    if memory.learnt_read or not by_law(fleet.spec):
        return None
    return await cluster.get("ConfigMap", fleet.namespace, names.learnt(fleet.name))


async def _get_service(
    cluster: Cluster, fleet: ServingDeployment, listed: Mapping[ChildKey, Object]
) -> dict[ChildKey, Object]:
    """Get the Service to which the fleet's address leads, if no list has it: a stranger's carries
    no label of ours, and clients reach it all the same."""
    key = ("Service", fleet.name)
    if key in listed:
        return {}
    found = await cluster.get("Service", fleet.namespace, fleet.name)
    return {} if found is None else {key: found}


async def _get_fetch_objects(cluster: Cluster, fleet: ServingDeployment) -> dict[ChildKey, Object]:
    """Get the Job that fetches the model, its account and the claim that it fills, by name."""
    keys: list[ChildKey] = [("Job", names.fetch_job(fleet.name))] if may_have_job(fleet) else []
    keys += [(CLAIM, fleet.model_claim)] if fleet.model_claim else []
    fetch = fleet.spec.model.fetch
    if fetch is not None and fetch.service_account_name and fleet.fetched_model is None:
        keys += [("ServiceAccount", fetch.service_account_name)]
    found = await asyncio.gather(*(cluster.get(kind, fleet.namespace, name) for kind, name in keys))
    return {key: obj for key, obj in zip(keys, found, strict=True) if obj is not None}


def _engines_to_ask(pods: tuple[Pod, ...], memory: LoopMemory) -> list[Pod]:
    """Return engine pods of which this round must know how busy they are."""
    return [
        pod
        for pod in pods
        if pod.ip
        and pod.started
        and pod.alive
        and pod.role != names.GATEWAY_ROLE
        and (pod.draining or memory.ask_loads)
    ]


async def _ask_engines(
    engines: Engines, fleet: ServingDeployment, pods: tuple[Pod, ...], memory: LoopMemory
) -> dict[str, Load | None]:
    key = (fleet.namespace, fleet.name)
    asked = [(pod.uid, pod.ip) for pod in _engines_to_ask(pods, memory) if pod.ip and pod.admin]
    answers = await call_all([partial(engines.load, ip, key, uid) for uid, ip in asked], None)
    return {uid: answer for (uid, _), answer in zip(asked, answers, strict=True)}


async def _ask_handovers(
    gateways: Gateways | None, fleet: ServingDeployment, pods: tuple[Pod, ...]
) -> Handovers:
    if gateways is None or fleet.spec.mode != "disaggregated":
        return Handovers()
    ips = [p.ip for p in pods if p.role == names.GATEWAY_ROLE and p.ip and p.alive and p.ready]
    asked = [partial(gateways.handovers, ip) for ip in ips]
    return reduce(Handovers.join, await call_all(asked, Handovers()), Handovers())


async def _ask_progress(
    fetchers: Fetchers | None, pods: tuple[Pod, ...]
) -> dict[str, FetchProgress]:
    if fetchers is None:
        return {}
    asked = [(p.name, p.ip) for p in pods if p.ip and p.started and p.alive and p.running]
    answers = await call_all([partial(fetchers.progress, ip) for _, ip in asked], None)
    pairs = zip(asked, answers, strict=True)
    return {name: answer for (name, _), answer in pairs if answer is not None}


async def _ask_gateways(
    gateways: Gateways | None, pods: tuple[Pod, ...]
) -> dict[str, GatewayLoad | None]:
    if gateways is None:
        return {}
    asked = [(pod.name, pod.ip) for pod in gateways_to_ask(pods) if pod.ip]
    answers = await call_all([partial(gateways.load, ip, name) for name, ip in asked], None)
    return {name: answer for (name, _), answer in zip(asked, answers, strict=True)}


def fleet_pods(pods: tuple[Pod, ...], said: Iterable[GatewayLoad | None] = ()) -> FleetPods:
    """Return the pods whose metrics count, out of those that the fleet owns, and what gateways
    `said`."""
    gateways = [pod for pod in pods if pod.role == names.GATEWAY_ROLE]
    ready = frozenset(pod.name for pod in gateways if pod.alive and pod.ready)
    return FleetPods(
        ready_gateways=ready,
        readings=tuple(load.reading for load in said if load is not None and load.reading),
        closed=bool(gateways) and not ready,
        engines=frozenset(pod.name for pod in pods if pod.role != names.GATEWAY_ROLE),
    )


def _parse_replica_sets(
    found: Iterable[Object], deployments: Collection[str]
) -> dict[str, ReplicaSet]:
    """Return the ReplicaSets of these Deployments, by uid."""
    sets = {}
    for child in found:
        meta, labels = child["metadata"], child["metadata"].get("labels") or {}
        deployment = controller_of(child, "Deployment")
        if deployment is not None and deployment in deployments:
            sets[meta["uid"]] = ReplicaSet(
                deployment=deployment,
                role=labels.get(names.ROLE, ""),
                template_hash=labels.get(names.TEMPLATE_HASH, ""),
                replicas=replicas_of(child),
                seen=is_seen(child),
            )
    return sets


async def _measure_nothing() -> None:
    return None


def _keep_owned(
    children: Mapping[ChildKey, Object], fleet: ServingDeployment
) -> dict[ChildKey, Object]:
    """Return the fleet's own objects. An object of another owner may have a child's name and its
    labels."""
    return {key: child for key, child in children.items() if is_owned(child, fleet.metadata.uid)}


def _deployment_uids(children: Mapping[ChildKey, Object], fleet: ServingDeployment) -> set[str]:
    """Return uids of the fleet's Deployments."""
    owned = _keep_owned(children, fleet)
    return {child["metadata"]["uid"] for (kind, _), child in owned.items() if kind == "Deployment"}


def _account(fleet: ServingDeployment, owned: Mapping[ChildKey, Object]) -> str | None:
    """Return the uid of the account that the gateways' pod template names."""
    front = names.gateway(fleet.name)
    live = owned.get(("Deployment", front))
    return gateway.account_of(owned.get(("ServiceAccount", front)), live)


def _canary(
    fleet: ServingDeployment, digits: str, owned: Mapping[ChildKey, Object]
) -> tuple[str, int] | None:
    """Return the revision and the percent that gateways send there, while an old revision runs."""
    engines = (d for (kind, _), d in owned.items() if kind == "Deployment")
    revisions = {(d["metadata"].get("labels") or {}).get(names.REVISION) for d in engines}
    canary = canary_of(fleet, digits)
    if canary is None or not revisions - {None, digits}:
        return None
    return digits, canary.percent


def _choose_certificate(fleet: ServingDeployment, owned: Mapping[ChildKey, Object]) -> str | None:
    """Return the Secret that gateways mount: of the spec, or of engines that are there until they
    go."""
    if fleet.spec.security.tls is not None:
        return fleet.spec.security.tls.secret_name
    front = ("Deployment", names.gateway(fleet.name))
    engines = (child for key, child in owned.items() if key[0] == "Deployment" and key != front)
    return next(filter(None, map(certificate_of, engines)), None)
