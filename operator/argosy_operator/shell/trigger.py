"""kopf is only a trigger: every watch event enqueues its fleet's key.

kopf runs in a thread with an event loop of its own, because it cancels every task of its loop when
it ends. It posts no Events, stores nothing, sets no finalizer, and logs in with the same `Access`
as the operator's own client.

kopf looks up the kinds once, when it starts: to follow CRDs that come and go it would need the
right to list and watch all CRDs of the cluster. So `obstacle` says before this process leads
whether every kind can be watched, and `Watches` afterwards whether each watch lives. Where one does
not, the process ends.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import aiohttp
import kopf
from yarl import URL

from argosy_operator.adapters.access import Access
from argosy_operator.adapters.cluster import PLURALS, ApiCluster
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.api.v1alpha1 import GROUP, VERSION
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.shell import metrics

RELOGIN = timedelta(minutes=5)
OURS = ("ServingDeployment", "ServingRole")
"""The kinds of our CRDs."""
CHILDREN = (
    "Deployment",
    "Pod",
    "Service",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "PodDisruptionBudget",
    "HorizontalPodAutoscaler",
)
KINDS = {PLURALS[kind][1]: kind for kind in (*OURS, *CHILDREN)}
"""What is watched: kinds by the last word of their paths."""

RENEWED_S = 120
"""The API server ends each watch after this time, and kopf begins it again."""
SILENT_S = 70
"""A watch without an event is begun again after this time. The API server sends a bookmark each
minute."""
BLIND_S = 240.0
"""A watch that was not answered for so long is dead: kopf ends it `RENEWED_S` + 30 s after it began
at the latest, and gives the next one `SILENT_S` to be answered."""
FIRST_S = 60.0
"""The first watch of each kind is answered within this time. A kind that another API server of the
cluster does not serve yet has none."""
LOOK_S = 2.0
INSTALL = (
    "install them: `kubectl apply --server-side -f crds/`, or the chart with crds.enabled=true"
)

Enqueue = Callable[[tuple[str, str], int | None], None]


async def obstacle(cluster: ApiCluster, namespace: str | None) -> str | None:
    """Say why not every kind can be watched now; None if all can.

    It reads what kopf reads first: which kinds there are, and a list of each.
    """
    try:
        served = await cluster.served(f"{GROUP}/{VERSION}")
        missing = [PLURALS[kind][1] for kind in OURS if PLURALS[kind][1] not in served]
        if missing:
            crds = " and ".join(f"{plural}.{GROUP}" for plural in missing)
            return f"the API server does not serve {VERSION} of the CRDs {crds}; {INSTALL}"
        for kind in KINDS.values():
            await cluster.look(kind, namespace)
    except ClusterError as error:
        if error.kind is ErrorKind.FORBIDDEN:
            return f"{error}; grant `list` and `watch` of it, as the chart's role does"
        return str(error)
    return None


class Watches:
    """When the API server last answered the watch of each kind.

    kopf's thread writes it; the main thread reads it, also while kopf's hangs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._answered = dict[str, float]()
        self._refused = dict[str, int]()

    def begin(self) -> None:
        self._began = self._clock()
        for kind in KINDS.values():
            metrics.show_watch(kind, partial(self.age_s, kind))

    def answer(self, url: URL, status: int) -> None:
        """Note that the API server answered one call of kopf."""
        kind = KINDS.get(url.path.rpartition("/")[2])
        if kind is None:
            return
        if status >= 400:
            self._refused[kind] = status
        elif "watch" in url.query:
            self._refused.pop(kind, None)
            self._answered[kind] = self._clock()

    def age_s(self, kind: str) -> float:
        """Return seconds since the watch was answered, or since the watches began."""
        since = self._answered.get(kind, self._began)
        return 0.0 if since is None else self._clock() - since

    def blind(self) -> str | None:
        """Name the watches that are dead, and why; None if none is, or before they begin."""
        dead = []
        for kind in KINDS.values():
            limit_s = BLIND_S if kind in self._answered else FIRST_S
            if self.age_s(kind) > limit_s:
                dead.append(f"{kind} ({self._why(kind)})")
        return f"the watches are dead of {', '.join(dead)}" if dead else None

    def _why(self, kind: str) -> str:
        refused = self._refused.get(kind)
        said = "no answer" if refused is None else f"the API server answers {refused}"
        return f"{said} for {self.age_s(kind):.0f} s"

    def refusals(self) -> str:
        """Return what the API server answered instead of watches, as the end of a sentence."""
        said = [f"{kind} {status}" for kind, status in list(self._refused.items())]
        return f" (the API server answered: {', '.join(said)})" if said else ""


@dataclass(frozen=True, kw_only=True)
class _Session(kopf.AiohttpSession):
    """kopf's session with one login. Equal logins are equal, so kopf does not ask again and again
    with one that the API server refused."""

    info: kopf.ConnectionInfo
    aiohttp_session: aiohttp.ClientSession = field(compare=False)
    expiration: datetime | None = field(default=None, compare=False)


class AutoscalerChanges:
    """Which events of HorizontalPodAutoscalers need a round.

    Their controller writes the measured CPU into the status every 15 s. A round reads only whether
    it can scale.
    """

    def __init__(self) -> None:
        self._seen: dict[str, object] = {}

    def counts(self, kind: str | None, body: Mapping[str, Any]) -> bool:
        """Whether an event needs a round. `kind` of the event: DELETED, another one, or None for an
        object that is listed."""
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
    """`start` begins to watch. `ended` gets the reason when kopf stops or a watch is dead; the
    process ends then."""

    def __init__(self, access: Access, namespace: str | None, enqueue: Enqueue) -> None:
        self._access, self._namespace, self._enqueue = access, namespace, enqueue
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._autoscalers = AutoscalerChanges()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.watches = Watches()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.watches.begin()
        self._thread.start()
        self._looking = self._loop.create_task(self._look())

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._stop.set()
        self._thread.join(timeout=5)

    async def _look(self) -> None:
        """Look for dead watches, in the main thread, so that it also sees that kopf's hangs."""
        while True:
            if reason := self.watches.blind():
                self._stop.set()
                return self._set_ended(reason)
            await asyncio.sleep(LOOK_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception as error:  # no loop, such as without descriptors
            self._end(f"kopf ended: {error}")

    def _end(self, reason: str) -> None:
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
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=settings(),
            standalone=True,
            stop_flag=self._stop,
            **(where | {"identity": "argosy"}),
        )
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # All else that kopf does now may hang: it waits for watches that it cancels once, and the
        # loop for a thread that waits for this flag.
        self._end(f"kopf ended{self._why(done)}")
        self._stop.set()
        await kopf.run_tasks(tasks)

    def _why(self, done: set[asyncio.Task[Any]]) -> str:
        errors = [task.exception() for task in done if not task.cancelled()]
        said = [str(getattr(e, "message", None) or e) for e in errors if e is not None]
        return f": {'; '.join(said)}{self.watches.refusals()}" if said else ""

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        handlers = {
            "ServingDeployment": self._fleet,
            "HorizontalPodAutoscaler": self._autoscaler,
        }
        for kind in KINDS.values():
            group, version, plural = _resource(kind)
            handler = handlers.get(kind, self._child)
            kopf.on.event(group, version, plural, id=plural, registry=registry)(handler)
        return registry

    async def _login(self, **_context: Any) -> kopf.AiohttpSession:
        """Return a session of our own, because kopf's says nothing of the answers that it gets."""
        found = await self._access.configuration()
        scheme, _, token = (found.api_key.get("BearerToken") or "").strip().partition(" ")
        info = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme.capitalize() or None,
            token=token.strip() or None,
            proxy_url=found.proxy,
        )
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            trace_configs=[trace],
            proxy=found.proxy,
        )
        return _Session(
            server=info.server,
            info=info,
            aiohttp_session=session,
            expiration=datetime.now(UTC) + RELOGIN if info.token else None,
        )

    async def _answered(
        self, _session: aiohttp.ClientSession, _: object, params: aiohttp.TraceRequestEndParams
    ) -> None:
        self.watches.answer(params.url, params.response.status)

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
    """Bound kopf's calls and streams and its memory, and let it write nothing to the cluster."""
    s = kopf.OperatorSettings()
    s.posting.enabled = False
    s.posting.loggers = False
    s.networking.request_timeout = 15
    s.networking.enforce_retry_after = True
    s.watching.server_timeout = RENEWED_S
    s.watching.client_timeout = RENEWED_S + 30
    s.watching.inactivity_timeout = SILENT_S
    s.watching.chunk_size = 500
    s.queueing.idle_timeout = 0.2
    s.queueing.error_delays = (1, 1, 2, 3, 5, 8, 13, 21, 34, 60)
    s.scanning.disabled = True
    s.peering.standalone = True
    s.persistence.finalizer = f"{GROUP}/unused"
    s.process.ultimate_exiting_timeout = 30
    for group, _, plural in map(_resource, CHILDREN):
        # Only objects with the fleet label are watched, not every pod of the cluster.
        s.watching.label_selectors[kopf_selector(group, plural)] = names.FLEET
    return s


def _resource(kind: str) -> tuple[str, str, str]:
    """Return group, version and plural, as kopf names a kind."""
    api_version, plural = PLURALS[kind]
    group, _, version = api_version.rpartition("/")
    return group, version, plural


def kopf_selector(group: str, plural: str) -> Any:
    return (group, plural) if group else ("", "v1", plural)
