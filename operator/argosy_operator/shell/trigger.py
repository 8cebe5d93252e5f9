"""kopf is only a trigger: every watch event enqueues its fleet's key.

kopf runs in a thread with an event loop of its own, because it cancels every task of its loop when
it ends. It posts no Events, stores nothing, sets no finalizer, and logs in with the same `Access`
as the operator's own client.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from argosy_operator.api.v1alpha1 import GROUP, VERSION
from argosy_operator.core.fleet import names
from argosy_operator.ports.access import Access

RELOGIN = timedelta(minutes=5)
CHILDREN = (
    ("apps", "v1", "deployments"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "serviceaccounts"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
)

Enqueue = Callable[[tuple[str, str], int | None], None]


class AutoscalerChanges:
    """Which events of HorizontalPodAutoscalers need a round.

    Their controller writes the measured CPU into the status every 15 s. A round reads only whether
    it can scale.
    """

    def __init__(self) -> None:
        self._seen: dict[str, object] = {}

    def counts(self, kind: str | None, body: Mapping[str, Any]) -> bool:
        """`kind` of the event: DELETED, another one, or None for an object that is listed."""
        meta, status = body["metadata"], body.get("status") or {}
        if kind == "DELETED":
            self._seen.pop(meta["uid"], None)
            return True
        said = [(c["type"], c["status"], c.get("reason")) for c in status.get("conditions") or ()]
        about = ("generation", "deletionTimestamp", "labels", "annotations", "ownerReferences")
        now = ([meta.get(field) for field in about], sorted(map(repr, said)))
        before, self._seen[meta["uid"]] = self._seen.get(meta["uid"]), now
        return now != before


class Trigger:
    """`start` begins to watch. `ended` gets the reason when kopf stops; the process ends then."""

    def __init__(self, access: Access, namespace: str | None, enqueue: Enqueue) -> None:
        self._access, self._namespace, self._enqueue = access, namespace, enqueue
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._autoscalers = AutoscalerChanges()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
            reason = "kopf ended"
        except Exception as error:
            reason = f"kopf ended: {error}"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_ended, reason)

    def _set_ended(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    async def _watch(self) -> None:
        where: dict[str, Any] = (
            {"clusterwide": True} if self._namespace is None else {"namespaces": [self._namespace]}
        )
        # Nobody reads the identity. Without one kopf makes it of the user's name, and a uid that
        # the platform assigns has none.
        await kopf.operator(
            registry=self._registry(),
            settings=settings(),
            standalone=True,
            stop_flag=self._stop,
            **(where | {"identity": "argosy"}),
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        kopf.on.event(GROUP, VERSION, "servingdeployments", registry=registry)(self._fleet)
        kopf.on.event(GROUP, VERSION, "servingroles", registry=registry)(self._child)
        for group, version, plural in CHILDREN:
            scales = plural == "horizontalpodautoscalers"
            handler = self._autoscaler if scales else self._child
            kopf.on.event(group, version, plural, id=plural, registry=registry)(handler)
        return registry

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        login = await self._access.login()
        return kopf.ConnectionInfo(
            server=login.server,
            ca_path=login.ca_path,
            insecure=not login.verify,
            certificate_path=login.cert_path,
            private_key_path=login.key_path,
            scheme=login.scheme,
            token=login.token,
            expiration=datetime.now(UTC) + RELOGIN if login.token else None,
        )

    async def _fleet(self, **event: Any) -> None:
        self._enqueue_soon(event["namespace"], event["name"], event["meta"].get("generation"))

    async def _child(self, **event: Any) -> None:
        fleet = event["labels"].get(names.FLEET)
        if fleet:
            self._enqueue_soon(event["namespace"], fleet)

    async def _autoscaler(self, **event: Any) -> None:
        if self._autoscalers.counts(event["type"], event["body"]):
            await self._child(**event)

    def _enqueue_soon(self, namespace: str, name: str, generation: int | None = None) -> None:
        self._loop.call_soon_threadsafe(self._enqueue, (namespace, name), generation)


def settings() -> kopf.OperatorSettings:
    """Bounded calls and streams, little memory, no writes to the cluster."""
    s = kopf.OperatorSettings()
    s.posting.enabled = False
    s.posting.loggers = False
    s.networking.request_timeout = 15
    s.networking.enforce_retry_after = True
    s.watching.server_timeout = 300
    s.watching.client_timeout = 330
    s.watching.inactivity_timeout = 70
    s.watching.chunk_size = 500
    s.queueing.idle_timeout = 0.2
    s.queueing.error_delays = (1, 1, 2, 3, 5, 8, 13, 21, 34, 60)
    s.scanning.disabled = True
    s.peering.standalone = True
    s.persistence.finalizer = f"{GROUP}/unused"
    s.process.ultimate_exiting_timeout = 30
    for group, _, plural in CHILDREN:
        # Only objects with the fleet label are watched, not every pod of the cluster.
        s.watching.label_selectors[kopf_selector(group, plural)] = names.FLEET
    return s


def kopf_selector(group: str, plural: str) -> Any:
    return (group, plural) if group else ("", "v1", plural)
