"""Carries out a plan's orders through the ports: writes one after the other, then all calls to
engines together.

A foreign object is recognised here once more, at the moment of writing: what the snapshot did not
see is looked up by name before it is created or taken for ours. An order that fails stops those
that need it and no others; losing the leadership, a throttling server and an unreachable one stop
all. A call without a proper answer may be the server's fault or that of a webhook for one object:
the server is asked for the fleet to tell them apart.
"""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.fleet.actions import (
    Action,
    AnnotatePod,
    Apply,
    Create,
    Delete,
    ErrorKind,
    HastenDrain,
    Outcome,
    Scale,
    TakeWorkAgain,
    key_of,
    needs,
)
from argosy_operator.core.fleet.objects import Object, is_owned
from argosy_operator.ports.protocols import Cluster, ClusterError, Engines
from argosy_operator.shell.concurrency import call_all

STOP_AT = (ErrorKind.NOT_LEADER, ErrorKind.THROTTLED, ErrorKind.TRANSPORT, ErrorKind.UNAUTHORIZED)
GONE_IS_DONE = (ErrorKind.NOT_FOUND, ErrorKind.GONE)
Write = Create | Apply | Scale | Delete | AnnotatePod
MOST_FAILED = 4
"""Each call without an answer costs ten seconds; after so many the rest waits for the next round,
which begins with what has not failed."""


class StoppedError(Exception):
    """The remaining orders were not tried; `outcomes` are those of the ones that were."""

    def __init__(self, outcomes: tuple[Outcome, ...], error: ClusterError) -> None:
        super().__init__(str(error))
        self.outcomes, self.error = outcomes, error


async def execute(
    cluster: Cluster, engines: Engines, fleet: ServingDeployment, actions: Sequence[Action]
) -> tuple[Outcome, ...]:
    """Outcomes in the order of the actions, those of engines last. Raises StoppedError where going
    on makes no sense."""
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
            outcomes.append(await _one(cluster, fleet, action))
        except ClusterError as error:
            undone.add(key_of(action))
            kind = await error_kind(cluster, fleet, error)
            if isinstance(action, AnnotatePod | Delete) and kind in GONE_IS_DONE:
                outcomes.append(Outcome(action))
                continue
            outcomes.append(Outcome(action, kind, error.message))
            if kind in STOP_AT:
                raise StoppedError(tuple(outcomes), error) from error
            if sum(outcome.error is ErrorKind.FAILED for outcome in outcomes) >= MOST_FAILED:
                break
    await call_all([partial(_call, engines, action) for action in calls], late=False)
    return (*outcomes, *map(Outcome, calls))


async def _call(engines: Engines, action: HastenDrain | TakeWorkAgain) -> bool:
    """One call to an engine. An engine that does not answer is asked again in the next round."""
    match action:
        case HastenDrain(_, ip):
            return await engines.drain(ip)
        case TakeWorkAgain(_, ip):
            return await engines.take_work_again(ip)


async def error_kind(cluster: Cluster, fleet: ServingDeployment, error: ClusterError) -> ErrorKind:
    """FAILED instead of TRANSPORT where the server answers another call."""
    if error.kind is not ErrorKind.TRANSPORT:
        return error.kind
    try:
        await cluster.get("ServingDeployment", fleet.namespace, fleet.name)
    except ClusterError:
        return ErrorKind.TRANSPORT
    return ErrorKind.FAILED


async def _one(cluster: Cluster, fleet: ServingDeployment, action: Write) -> Outcome:
    namespace = fleet.namespace
    match action:
        case Create(obj):
            return await _create(cluster, fleet, action, dict(obj))
        case Apply(obj, None):
            return await _create(cluster, fleet, action, dict(obj))
        case Apply(obj, uid):
            return Outcome(action, applied=await cluster.apply(dict(obj), uid))
        case Scale(kind, name, replicas, version):
            await cluster.scale(kind, namespace, name, replicas, version)
        case Delete(kind, name, uid):
            await cluster.delete(kind, namespace, name, uid)
        case AnnotatePod(name, uid, values):
            await cluster.annotate("Pod", namespace, name, uid, values)
        case _:
            assert_never(action)
    return Outcome(action)


async def _create(
    cluster: Cluster, fleet: ServingDeployment, action: Create | Apply, obj: Object
) -> Outcome:
    """Create what is not there, apply to what is ours, leave what is not."""
    kind, name = obj["kind"], obj["metadata"]["name"]
    live = await cluster.get(kind, fleet.namespace, name)
    if live is None:
        if isinstance(action, Create):
            return Outcome(action, applied=await cluster.create(obj))
        return Outcome(action, applied=await cluster.apply(obj, None))
    if not is_owned(live, fleet.metadata.uid):
        return Outcome(action, ErrorKind.FOREIGN, f"{kind} {name} belongs to somebody else")
    # Ours, without our label: somebody removed it. Replicas are left as they are.
    spec = {key: value for key, value in obj.get("spec", {}).items() if key != "replicas"}
    ours = {**obj, "spec": spec} if isinstance(action, Create) else obj
    return Outcome(action, applied=await cluster.apply(ours, live["metadata"]["uid"]))
