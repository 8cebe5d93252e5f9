"""The Kubernetes API through `kubernetes.aio`: the one place from which the operator writes.

Paths come from a fixed table of kinds instead of discovery: the operator touches these kinds and
no others, so what it may do can be read here and compared with the chart's RBAC. Every call waits
for a slot (`RateLimiter`) and has a deadline. A write also asks the gate of `lease.py` once it
has its slot, ends with the leader's term at the latest, and is counted. Every failure is raised as
`ClusterError`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.dynamic import DynamicClient, Resource

from argosy_law.record import parse_json
from argosy_operator.adapters.access import Access, AccessError
from argosy_operator.adapters.protocols import ClusterError, Gate
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.names import FIELD_MANAGER
from argosy_operator.core.snapshot.objects import Object

QPS = 100.0
BURST = 200
AT_ONCE = 32
CALL_S = 10.0
PAGE = 500
NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
"""`_call` sets the deadline: aiohttp rounds its own up to whole seconds, and does not count the
time in which a token is read."""

PLURALS: dict[str, tuple[str, str]] = {
    "ServingDeployment": ("serving.argosy.dev/v1alpha1", "servingdeployments"),
    "ServingRole": ("serving.argosy.dev/v1alpha1", "servingroles"),
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "ControllerRevision": ("apps/v1", "controllerrevisions"),
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ConfigMap": ("v1", "configmaps"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Job": ("batch/v1", "jobs"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "Event": ("events.k8s.io/v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
}

_DENIED = re.compile(r'admission webhook ".*" denied the request')
_UNTYPED = "failed to create typed patch object"
"""How the API server refuses a server-side apply with a field that the kind does not have."""
LONGEST_RETRY_AFTER_S = 300.0
"""A longer Retry-After would leave a fleet without a round for too long."""

CountWrite = Callable[[str, str], None]


class RateLimiter:
    """Limit calls: after a start every fleet needs a round of nine, which would time out in a queue
    of their own. The Lease has an `ApiCluster` of its own, so that it never waits behind a fleet.

    `qps` calls a second on average, `burst` after a quiet time, `at_once` at the same time.

    `deadline_s` is the longest that one call may last once it has begun; the time spent waiting
    here is not part of it. Calls begin in the order in which they came.
    """

    def __init__(
        self,
        qps: float = QPS,
        burst: int = BURST,
        at_once: int = AT_ONCE,
        deadline_s: float = CALL_S,
    ) -> None:
        self.at_once, self.deadline_s = at_once, deadline_s
        self._gap_s = 1.0 / qps
        self._ahead_s = (burst - 1) * self._gap_s
        self._free = asyncio.Semaphore(at_once)
        self._next_at = float("-inf")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until one more call is within the limits; the call is made inside the block."""
        async with self._free:
            now = asyncio.get_running_loop().time()
            begin = max(self._next_at, now - self._ahead_s)
            self._next_at = begin + self._gap_s
            if begin > now:
                await asyncio.sleep(begin - now)
            yield


def lease_limiter() -> RateLimiter:
    """Return a limiter of one call at a time, of which two fit into a term: a slow API server does
    not end the term, and a call that was lost is repeated in time."""
    return RateLimiter(at_once=1, deadline_s=4.0)


class ApiCluster:
    """`protocols.Cluster` on a real API server. `async with` opens and closes its connections."""

    def __init__(
        self,
        access: Access,
        gate: Gate,
        count_write: CountWrite,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._access = access
        self._gate = gate
        self._count_write = count_write
        self._limiter = limiter or RateLimiter()
        self._api: ApiClient | None = None
        self._kinds: dict[str, Resource] = {}

    async def __aenter__(self) -> "ApiCluster":
        configuration = await self._access.configuration()
        configuration.connection_pool_maxsize = self._limiter.at_once
        self._api = ApiClient(configuration)
        self._api.user_agent = "argosy-operator"
        client = DynamicClient(self._api)
        for kind, (api_version, plural) in PLURALS.items():
            group, _, version = api_version.rpartition("/")
            self._kinds[kind] = Resource(
                prefix="apis" if group else "api",
                group=group or None,
                api_version=version,
                kind=kind,
                name=plural,
                namespaced=True,
                client=client,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._api is not None:
            await self._api.close()

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """Return every object of the kind (in all namespaces for None), page by page."""
        path = self._kinds[kind].path(namespace=namespace)
        found: list[Object] = []
        more: str | None = None
        while True:
            page = await self._call(
                "get",
                path,
                f"list {kind}",
                label_selector=selector or None,
                limit=PAGE,
                _continue=more,
            )
            api_version = page.get("apiVersion")
            found += [{"apiVersion": api_version, "kind": kind} | item for item in page["items"]]
            more = page["metadata"].get("continue")
            if not more:
                return found

    async def look(self, kind: str, namespace: str | None) -> None:
        """Raise ClusterError if the kind is not served here or may not be listed."""
        path = self._kinds[kind].path(namespace=namespace)
        await self._call("get", path, f"list {kind}", limit=1)

    async def served(self, api_version: str) -> frozenset[str]:
        """Return plural names of the kinds of a group and version, as clients discover them."""
        groups = (await self.page("/apis"))["groups"]
        if api_version not in {v["groupVersion"] for g in groups for v in g["versions"]}:
            return frozenset()
        try:
            found = await self.page(f"/apis/{api_version}")
        except ClusterError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return frozenset()
            raise
        return frozenset(resource["name"] for resource in found["resources"])

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        path = self._kinds[kind].path(name=name, namespace=namespace)
        try:
            return await self._call("get", path, f"get {kind} {name}")
        except ClusterError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise

    async def create(self, obj: Object) -> Object:
        kind, namespace, name = _identity(obj)
        path = self._kinds[kind].path(namespace=namespace)
        # By default the server drops a field of a template that it does not know.
        strict = [("fieldValidation", "Strict")] if kind in ("Deployment", "Job") else []
        return await self._write(
            "create",
            "post",
            path,
            kind,
            name,
            body=obj,
            field_manager=FIELD_MANAGER,
            query_params=strict,
        )

    async def apply(
        self, obj: Object, uid: str | None, *, status: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        kind, namespace, name = _identity(obj)
        path = self._kinds[kind].path(name=name, namespace=namespace)
        if uid is not None:
            obj = obj | {"metadata": obj["metadata"] | {"uid": uid}}
        return await self._write(
            "apply",
            "patch",
            path + ("/status" if status else ""),
            kind,
            name,
            body=obj,
            content_type="application/apply-patch+yaml",
            field_manager=manager,
            force_conflicts="true" if uid is not None else None,
        )

    async def scale(
        self, kind: str, namespace: str, name: str, replicas: int, resource_version: str | None
    ) -> None:
        path = self._kinds[kind].path(name=name, namespace=namespace) + "/scale"
        body: Object = {"spec": {"replicas": replicas}}
        if resource_version is not None:
            body["metadata"] = {"resourceVersion": resource_version}
        await self._write("scale", "patch", path, kind, name, body=body, **_MERGE)

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, values: Mapping[str, str | None]
    ) -> None:
        path = self._kinds[kind].path(name=name, namespace=namespace)
        body = {"metadata": {"uid": uid, "annotations": dict(values)}}
        await self._write("annotate", "patch", path, kind, name, body=body, **_MERGE)

    async def relabel(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        path = self._kinds[kind].path(name=name, namespace=namespace)
        meta = {"uid": uid, "labels": dict(labels), "annotations": dict(annotations)}
        await self._write("relabel", "patch", path, kind, name, body={"metadata": meta}, **_MERGE)

    async def refuse(
        self, namespace: str, name: str, uid: str, version: str, mark: Object | None
    ) -> None:
        kind = "ServingDeployment"
        path = self._kinds[kind].path(name=name, namespace=namespace) + "/status"
        meta = {"uid": uid, "resourceVersion": version}
        body = {"metadata": meta, "status": {"refused": mark}}
        await self._write("refuse", "patch", path, kind, name, body=body, **_MERGE)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        path = self._kinds[kind].path(name=name, namespace=namespace)
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._write("delete", "delete", path, kind, name, body=body)

    async def replace(self, obj: Object) -> Object:
        """Write the whole object, on condition of its resourceVersion. Only for our Lease, whose
        renewal is what keeps the gate open: it does not ask the gate."""
        kind, namespace, name = _identity(obj)
        path = self._kinds[kind].path(name=name, namespace=namespace)
        return await self._call("put", path, f"update {kind} {name}", body=obj)

    async def create_ungated(self, obj: Object) -> Object:
        """Create our Lease, when no replica leads yet. Does not ask the gate."""
        kind, namespace, name = _identity(obj)
        path = self._kinds[kind].path(namespace=namespace)
        return await self._call("post", path, f"create {kind} {name}", body=obj)

    async def page(self, path: str) -> Object:
        """Get a path that is no resource, such as /openid/v1/jwks."""
        accept = {"Accept": "application/jwk-set+json, application/json"}  # it answers 406 else
        return await self._call("get", path, f"get {path}", header_params=accept)

    async def token(self, namespace: str, account: str, spec: Object) -> Object:
        """Ask for a token of the account; returns the TokenRequest's status. Not a write: it
        changes no object."""
        path = self._kinds["ServiceAccount"].path(name=account, namespace=namespace)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        what = f"request a token of ServiceAccount {account}"
        answer = await self._call("post", f"{path}/token", what, body=body)
        return dict(answer["status"])

    async def _write(
        self, verb: str, method: str, path: str, kind: str, name: str, **params: Any
    ) -> Object:
        def limit_s() -> float:
            allowed_s = self._gate.allowance_s(self._limiter.deadline_s)
            self._count_write(verb, kind)
            return allowed_s

        return await self._call(method, path, f"{verb} {kind} {name}", limit_s, **params)

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        limit_s: Callable[[], float] | None = None,
        **params: Any,
    ) -> Object:
        """Make one call. `limit_s` is asked once the call has its slot: the term may have ended
        while it waited."""
        client: DynamicClient = self._kinds["Pod"].client
        async with self._limiter.slot():
            longest_s = limit_s() if limit_s else self._limiter.deadline_s
            try:
                async with asyncio.timeout(longest_s):
                    answer: Object = await client.request(
                        method,
                        path,
                        serializer=lambda _client, data: data,
                        _request_timeout=NO_TIMEOUT,
                        **params,
                    )
            except ApiException as error:
                raise classify(error, what) from error
            except TimeoutError as error:
                message = f"no answer within {longest_s:.1f} s"
                raise ClusterError(ErrorKind.TRANSPORT, what, message) from error
            except (AccessError, ConfigException) as error:
                # The token or the kubeconfig cannot be read now, such as while it is replaced.
                raise ClusterError(ErrorKind.UNAUTHORIZED, what, str(error)) from error
            except (aiohttp.ClientError, OSError) as error:
                raise ClusterError(
                    ErrorKind.TRANSPORT, what, f"{type(error).__name__}: {error}"
                ) from error
        return answer


_MERGE = {"content_type": "application/merge-patch+json", "field_manager": FIELD_MANAGER}


def _identity(obj: Object) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return obj["kind"], meta["namespace"], meta["name"]


def classify(error: ApiException, what: str) -> ClusterError:
    """Return the server's Status as a ClusterError: by its `reason`, else by the HTTP status."""
    try:
        status = parse_json(error.body or "{}")
    except ValueError:
        status = {}
    if not isinstance(status, dict):  # a proxy answered
        status = {}
    message = status.get("message") or str(error.body or error.reason or "")[:500]
    reason = status.get("reason") or ""
    retry_after_s = _seconds((error.headers or {}).get("Retry-After"))
    kind = _error_kind(error.status, reason, status, message)
    return ClusterError(kind, what, message, retry_after_s)


def _seconds(header: str | None) -> float | None:
    """Return Retry-After in seconds, bounded; None for none and for a date."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return min(float(header), LONGEST_RETRY_AFTER_S)


def _error_kind(code: int, reason: str, status: Mapping[str, Any], message: str) -> ErrorKind:
    causes = {cause.get("reason") for cause in (status.get("details") or {}).get("causes") or ()}
    if _DENIED.match(message):
        return ErrorKind.FORBIDDEN  # a webhook chooses its own code; the refusal is of this object
    if code == 403 and "NamespaceTerminating" in causes:
        return ErrorKind.TERMINATING
    if code == 403 and "exceeded quota" in message:
        return ErrorKind.QUOTA
    if reason == "AlreadyExists":
        return ErrorKind.EXISTS
    if code == 500 and message.startswith(_UNTYPED):
        return ErrorKind.INVALID
    by_code = {
        400: ErrorKind.INVALID,
        401: ErrorKind.UNAUTHORIZED,
        403: ErrorKind.FORBIDDEN,
        404: ErrorKind.NOT_FOUND,
        409: ErrorKind.CONFLICT,
        410: ErrorKind.GONE,
        413: ErrorKind.INVALID,
        422: ErrorKind.INVALID,
        429: ErrorKind.THROTTLED,
    }
    return by_code.get(code, ErrorKind.TRANSPORT)
