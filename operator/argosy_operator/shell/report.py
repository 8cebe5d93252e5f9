"""Reads a fleet, and reports what was done: status, Events, log lines."""

import asyncio
import contextlib
import logging
import socket

from pydantic import ValidationError

from argosy_operator.adapters.protocols import Cluster, ClusterError
from argosy_operator.api.conditions import Reason
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.plan import Plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    ErrorKind,
    Event,
    Outcome,
    handovers_fail,
    is_write,
    manifest,
    stalled,
    target,
)
from argosy_operator.core.snapshot.objects import Object, is_owned, status_patch
from argosy_operator.core.snapshot.pods import owned_pods
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.status.compose import (
    list_forbidden,
    role_status_of,
    status_of,
    unreadable_fleet,
)
from argosy_operator.core.status.facts import Standing
from argosy_operator.core.steps.draft import Draft
from argosy_operator.shell import metrics
from argosy_operator.shell.execute import STOP_AT, error_kind
from argosy_operator.shell.gather import Sources

log = logging.getLogger("argosy.fleet")

REPORTER = socket.gethostname()
MISSING_RULE = (
    "Add the missing rule to the operator's ClusterRole or Role, or install the chart of the "
    "operator's version"
)


async def read_fleet(sources: Sources, raw: Object, now: float) -> ServingDeployment | None:
    """Parse the fleet. Return None if its spec is invalid; conditions say then why, and whether its
    pods serve. Raises ClusterError."""
    try:
        return ServingDeployment.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        # Without pydantic's prefix the sentence is the one that the API server gives.
        message = f"{where}: {first['msg'].removeprefix('Value error, ')}"
        old = raw.get("status") or {}
        standing = await _standing_or_say(sources, raw, now)
        new = {
            **old,
            "conditions": unreadable_fleet(standing, old.get("conditions") or [], message, now),
            "observedGeneration": standing.generation,
            "columns": {**(old.get("columns") or {}), "reason": Reason.INVALID_SPEC.value},
        }
        await _put_raw(sources, raw, new)
        return None


async def _read_standing(cluster: Cluster, raw: Object) -> Standing:
    """Read what stands of a fleet whose spec cannot be read. Raises ClusterError."""
    meta, status = raw["metadata"], raw.get("status") or {}
    namespace, name = meta["namespace"], meta["name"]
    kinds = ("Deployment", "ReplicaSet", "Pod")
    (deployments, replica_sets, pods), service = await asyncio.gather(
        asyncio.gather(*(cluster.list(k, namespace, f"{names.FLEET}={name}") for k in kinds)),
        cluster.get("Service", namespace, names.service(name)),
    )
    ours = {d["metadata"]["uid"] for d in deployments if is_owned(d, meta["uid"])}
    return Standing(
        uid=meta["uid"],
        generation=meta["generation"],
        pods=owned_pods(pods, replica_sets, ours),
        service=service,
        needs_service=bool(status.get("url")),
        disaggregated=status.get("mode") == "disaggregated",
    )


async def _standing_or_say(sources: Sources, raw: Object, now: float) -> Standing:
    try:
        return await _read_standing(sources.cluster, raw)
    except ClusterError as error:
        if error.kind is ErrorKind.FORBIDDEN:
            with contextlib.suppress(ClusterError):  # the caller logs the first one
                await write_list_forbidden(sources, raw, error, now)
        raise


async def write_list_forbidden(
    sources: Sources, raw: Object, error: ClusterError, now: float
) -> None:
    """Say in status that the operator may not list the fleet's objects; the rest of it stays."""
    status = raw.get("status") or {}
    message = f"the API server forbids {error.what}: {error.message}. {MISSING_RULE}"
    old = status.get("conditions") or []
    conditions = list_forbidden(raw["metadata"]["generation"], old, message, now)
    await _put_raw(sources, raw, {**status, "conditions": conditions})


async def write_status(
    sources: Sources, snapshot: Snapshot, draft: Draft, outcomes: tuple[Outcome, ...]
) -> None:
    """Write the status of the fleet and of its ServingRoles, each only if it changed, and an Event
    if a person must act from now on."""
    fleet, status = snapshot.fleet, status_of(snapshot, draft, outcomes)
    meta = dump(fleet.metadata)
    metrics.show_conditions((fleet.namespace, fleet.name), [dump(one) for one in status.conditions])
    if status != fleet.status:
        obj = status_patch("ServingDeployment", meta, dump(status))
        await _put(sources, snapshot, obj, fleet.metadata.uid)
        for turned in (stalled, handovers_fail):
            event = turned(fleet.status, status)
            if event is not None and not fleet.spec.paused:
                await _send(sources, snapshot, event)
    for live in snapshot.owned("ServingRole").values():
        said = role_status_of(snapshot, draft, live)
        if (live.get("status") or {}) != said:
            obj = status_patch("ServingRole", live["metadata"], said)
            await _put(sources, snapshot, obj, live["metadata"]["uid"])


async def publish(
    sources: Sources, snapshot: Snapshot, planned: Plan, outcomes: tuple[Outcome, ...]
) -> None:
    """Log the outcomes, and publish the plan's Events."""
    for outcome in outcomes:
        if outcome.error is None:
            level = logging.INFO if is_write(outcome.action) else logging.DEBUG
            log.log(level, "%s %s", type(outcome.action).__name__, target(outcome.action))
        elif outcome.error is not ErrorKind.FOREIGN:
            log.warning(
                "%s %s: %s: %s",
                type(outcome.action).__name__,
                target(outcome.action),
                outcome.error,
                outcome.message,
            )
    if planned.draft.scaled:
        log.info("decision", extra={"decision": planned.draft.record})
    if snapshot.fleet.spec.paused:
        return
    for event in planned.events:
        if not await _send(sources, snapshot, event):
            break


async def _send(sources: Sources, snapshot: Snapshot, event: Event) -> bool:
    """Create one Event; its failure does no harm. False if the next one would hang and fail, too.
    Raises ClusterError if the server is unreachable or this process does not lead."""
    log.info("%s: %s", event.reason, event.message)
    try:
        await sources.cluster.create(manifest(snapshot.fleet, event, snapshot.now, REPORTER))
    except ClusterError as error:
        kind = await error_kind(sources.cluster, snapshot.fleet, error)
        if kind in STOP_AT:
            raise
        log.warning("no Event: %s", error)
        return kind is not ErrorKind.FAILED
    return True


async def _put(sources: Sources, snapshot: Snapshot, obj: Object, uid: str) -> None:
    """Write one status. If only this one cannot be written, the round goes on."""
    try:
        await sources.cluster.apply(obj, uid, status=True)
    except ClusterError as error:
        kind = await error_kind(sources.cluster, snapshot.fleet, error)
        if kind in STOP_AT:
            raise
        if kind not in (ErrorKind.NOT_FOUND, ErrorKind.CONFLICT):
            log.warning("no status: %s", error)


async def _put_raw(sources: Sources, raw: Object, status: Object) -> None:
    """Write the status of a fleet of which there is no snapshot, if it changed."""
    meta = raw["metadata"]
    metrics.show_conditions((meta["namespace"], meta["name"]), status["conditions"])
    if status == (raw.get("status") or {}):
        return
    obj = status_patch("ServingDeployment", meta, status)
    await sources.cluster.apply(obj, meta["uid"], status=True)
