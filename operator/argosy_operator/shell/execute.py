"""Carries out a plan's actions through the ports: writes in sequence, then calls to engines.

Ownership is checked once more before a write: an object that the snapshot did not have is read by
name before it is created or applied. An action that fails stops the actions that need it. Losing
the leadership, a throttling server and an unreachable server stop all. A call without an answer may
be the fault of the server or of a webhook for one object: a second call, for the fleet itself,
shows which.
"""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from argosy_operator.adapters.protocols import Cluster, ClusterError, Engines
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    Action,
    AnnotatePod,
    AnnotateRole,
    Apply,
    Create,
    Delete,
    ErrorKind,
    FlipRole,
    HastenDrain,
    KeepReplicas,
    Outcome,
    Refuse,
    Scale,
    TakeWorkAgain,
    key_of,
    needs,
)
from argosy_operator.core.snapshot.objects import FleetKey, Object, is_owned
from argosy_operator.shell.concurrency import call_all

STOP_AT = (ErrorKind.NOT_LEADER, ErrorKind.THROTTLED, ErrorKind.TRANSPORT, ErrorKind.UNAUTHORIZED)
GONE_IS_DONE = (ErrorKind.NOT_FOUND, ErrorKind.GONE)
Write = (
    Create | Apply | KeepReplicas | Scale | Delete | AnnotatePod | AnnotateRole | FlipRole | Refuse
)
MOST_FAILED = 4
"""Each call without an answer costs ten seconds. After so many the rest waits for the next round,
which starts with actions that have not failed."""


class StoppedError(Exception):
    """The remaining actions were not tried; `outcomes` has those that were."""

    def __init__(self, outcomes: tuple[Outcome, ...], error: ClusterError) -> None:
        super().__init__(str(error))
        self.outcomes, self.error = outcomes, error


async def execute(
    cluster: Cluster, engines: Engines, fleet: ServingDeployment, actions: Sequence[Action]
) -> tuple[Outcome, ...]:
    """Return outcomes in the order of the actions, those of engines last. Raises StoppedError if
    the other actions would fail as well."""
    outcomes: list[Outcome] = []
    undone: set[str] = set()
    calls: list[HastenDrain | TakeWorkAgain] = []
    for action in actions:
        if needs(action) in undone:
            undone.add(key_of(action))
            continue
        if isinstance(action, HastenDrain | TakeWorkAgain):
            calls.append(action)
            continue
        try:
            outcomes.append(await _execute_one(cluster, fleet, action))
        except ClusterError as error:
            undone.add(key_of(action))
            kind = await error_kind(cluster, fleet, error)
            if isinstance(action, AnnotatePod | Delete | FlipRole) and kind in GONE_IS_DONE:
                outcomes.append(Outcome(action))
                continue
            outcomes.append(Outcome(action, kind, error.message))
            if kind in STOP_AT:
                raise StoppedError(tuple(outcomes), error) from error
            if sum(outcome.error is ErrorKind.FAILED for outcome in outcomes) >= MOST_FAILED:
                break
    key = (fleet.namespace, fleet.name)
    await call_all([partial(_call_engine, engines, key, action) for action in calls], late=False)
    return (*outcomes, *map(Outcome, calls))


async def _call_engine(
    engines: Engines, fleet: FleetKey, action: HastenDrain | TakeWorkAgain
) -> bool:
    """Call one engine. If it does not answer, the next round calls again."""
    match action:
        case HastenDrain(_, ip, uid):
            return await engines.drain(ip, fleet, uid)
        case TakeWorkAgain(_, ip, uid):
            return await engines.take_work_again(ip, fleet, uid)


async def error_kind(cluster: Cluster, fleet: ServingDeployment, error: ClusterError) -> ErrorKind:
    """Return FAILED instead of TRANSPORT if the server answers another call."""
    if error.kind is not ErrorKind.TRANSPORT:
        return error.kind
    try:
        await cluster.get("ServingDeployment", fleet.namespace, fleet.name)
    except ClusterError:
        return ErrorKind.TRANSPORT
    return ErrorKind.FAILED


async def _execute_one(cluster: Cluster, fleet: ServingDeployment, action: Write) -> Outcome:
    namespace = fleet.namespace
    match action:
        case Create(obj):
            return await _create(cluster, fleet, action, dict(obj))
        case Apply(obj, None):
            return await _create(cluster, fleet, action, dict(obj))
        case Apply(obj, uid):
            return Outcome(action, applied=await cluster.apply(dict(obj), uid))
        case KeepReplicas(name, uid, replicas, version):
            meta = {"name": name, "namespace": namespace, "resourceVersion": version}
            part: Object = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}
            part["spec"] = {"replicas": replicas}
            await cluster.apply(part, uid, manager=names.REPLICAS_MANAGER)
        case Scale(kind, name, replicas, version):
            await cluster.scale(kind, namespace, name, replicas, version)
        case Delete(kind, name, uid):
            await cluster.delete(kind, namespace, name, uid)
        case AnnotatePod(name, uid, values):
            await cluster.annotate("Pod", namespace, name, uid, values)
        case AnnotateRole(name, uid, values):
            await cluster.annotate("ServingRole", namespace, name, uid, values)
        case FlipRole(name, uid, labels, annotations):
            await cluster.relabel("Pod", namespace, name, uid, labels, annotations)
        case Refuse(name, uid, version, mark):
            await cluster.refuse(namespace, name, uid, version, mark)
        case _:
            assert_never(action)
    return Outcome(action)


async def _create(
    cluster: Cluster, fleet: ServingDeployment, action: Create | Apply, obj: Object
) -> Outcome:
    """Create an object that does not exist, apply to one that is ours, and leave others alone."""
    kind, name = obj["kind"], obj["metadata"]["name"]
    live = await cluster.get(kind, fleet.namespace, name)
    if live is None:
        if isinstance(action, Create):
            return Outcome(action, applied=await cluster.create(obj))
        return Outcome(action, applied=await cluster.apply(obj, None))
    if not is_owned(live, fleet.metadata.uid):
        return Outcome(action, ErrorKind.FOREIGN, f"{kind} {name} has another owner")
    # Ours, but the label that the list selects by was removed. Replicas stay as they are.
    spec = {key: value for key, value in obj.get("spec", {}).items() if key != "replicas"}
    ours = {**obj, "spec": spec} if isinstance(action, Create) else obj
    return Outcome(action, applied=await cluster.apply(ours, live["metadata"]["uid"]))
