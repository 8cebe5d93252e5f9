"""How a verb reaches the cluster, and the calls that verbs make.

`ApiCluster` with a closed gate reads objects, so no verb can write through it. What the operator
does not need stands here: metrics through the API server's proxy, the mark of `drain`.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from kubernetes.aio.client import (
    ApiClient,
    CoreV1Api,
    CustomObjectsApi,
    V1DeleteOptions,
    V1Preconditions,
)
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config.config_exception import ConfigException

from argosy_operator.adapters.access import Access, AccessError
from argosy_operator.adapters.cluster import ApiCluster, classify
from argosy_operator.adapters.lease import Term
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.api.v1alpha1 import GROUP, VERSION
from argosy_operator.cli.kubectl.command import CommandError, Exit, refused, unknown_fleet
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, is_owned
from argosy_operator.core.snapshot.pods import owned_pods
from argosy_operator.core.snapshot.snapshot import role_of

T = TypeVar("T")
ANSWER_S = 10.0
"""A pod that does not answer through the API server's proxy within this time counts as silent."""
COMPLETION_S = 2.0
"""A shell waits no longer for names."""
WRITER = "kubectl-argosy"
"""The field manager of what these commands write."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open connection."""

    objects: ApiCluster
    """Reads objects; refuses to write."""
    namespace: str
    """That of -n, else of the context."""
    core: CoreV1Api
    """Pods' subresources."""
    custom: CustomObjectsApi
    """Writes to fleets."""

    async def fleets(self, *, everywhere: bool = False) -> list[Object]:
        """The fleets of the namespace, or of all, by namespace and name."""
        where = None if everywhere else self.namespace
        found = await self.objects.list("ServingDeployment", where)
        return sorted(found, key=lambda f: (f["metadata"]["namespace"], f["metadata"]["name"]))

    async def fleet(self, name: str) -> Object:
        """The fleet of that name. Raises CommandError, which names those that there are."""
        found = await self.objects.get("ServingDeployment", self.namespace, name)
        if found is None:
            others = [f["metadata"]["name"] for f in await self.fleets()]
            raise unknown_fleet(name, self.namespace, others)
        return found

    async def pods(self, fleet: Object) -> list[Object]:
        """Return the pods that the fleet owns, by name."""
        meta = fleet["metadata"]
        selector = f"{names.FLEET}={meta['name']}"
        deployments, sets, pods = await asyncio.gather(
            *(self.objects.list(kind, meta["namespace"], selector)
              for kind in ("Deployment", "ReplicaSet", "Pod"))
        )  # fmt: skip
        owned = {d["metadata"]["uid"] for d in deployments if is_owned(d, str(meta["uid"]))}
        known = {pod.uid for pod in owned_pods(pods, sets, owned)}
        mine = (pod for pod in pods if pod["metadata"]["uid"] in known)
        return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))

    async def metrics(self, pod: Object, port: int) -> str | None:
        """The pod's metrics through the API server's proxy; None if the pod does not answer."""
        meta = pod["metadata"]
        call = self.core.connect_get_namespaced_pod_proxy_with_path(
            f"{meta['name']}:{port}", meta["namespace"], "metrics", _request_timeout=ANSWER_S
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                return str(await call)
        except ApiException as error:
            if error.status in (401, 403):
                raise classify(error, "get pods/proxy") from error
            return None
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None

    async def annotate(self, pod: Object, values: dict[str, str | None]) -> None:
        """Set or, for None, remove annotations of this very pod. Raises ClusterError."""
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": values}}
        call = self.core.patch_namespaced_pod(
            meta["name"],
            meta["namespace"],
            body,
            field_manager=WRITER,
            _content_type="application/merge-patch+json",
        )
        try:
            await call
        except ApiException as error:
            raise classify(error, f"patch pods {meta['name']}") from error

    async def patch_fleet(self, fleet: Object, body: Object, *, status: bool = False) -> None:
        """Merge `body` into this very fleet, or into its status, if nothing was written to it since
        it was read. Raises ClusterError."""
        meta = fleet["metadata"]
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        patch = self.custom.patch_namespaced_custom_object
        if status:
            patch = self.custom.patch_namespaced_custom_object_status
        call = patch(
            GROUP,
            VERSION,
            meta["namespace"],
            "servingdeployments",
            meta["name"],
            {"metadata": version, **body},
            field_manager=WRITER,
            _content_type="application/merge-patch+json",
        )
        try:
            await call
        except ApiException as error:
            part = "servingdeployments/status" if status else "servingdeployments"
            raise classify(error, f"patch {part} {meta['name']}") from error

    async def delete(self, pod: Object) -> None:
        """Delete this very pod. Raises ClusterError."""
        meta = pod["metadata"]
        body = V1DeleteOptions(preconditions=V1Preconditions(uid=meta["uid"]))
        try:
            await self.core.delete_namespaced_pod(meta["name"], meta["namespace"], body=body)
        except ApiException as error:
            raise classify(error, f"delete pods {meta['name']}") from error


def _access(context: str | None, kubeconfig: str | None) -> Access:
    """Raises CommandError for a kubeconfig that is not there."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if named and not any(Path(path).is_file() for path in named.split(os.pathsep)):
        raise CommandError(f"there is no kubeconfig {named}", Exit.UNREACHABLE)
    return Access(kubeconfig, context)


@asynccontextmanager
async def connected(access: Access, namespace: str | None) -> AsyncIterator[Cluster]:
    """The cluster that `access` leads to. Raises AccessError for an unknown context."""
    where = namespace or access.namespace()
    # The term never begins, so the gate of this ApiCluster refuses every write.
    closed = ApiCluster(access, Term(), lambda _verb, _kind: None)
    async with closed as objects, ApiClient(await access.configuration()) as api:
        yield Cluster(objects, where, CoreV1Api(api), CustomObjectsApi(api))


def ask(
    of: Callable[[Cluster], Awaitable[T]],
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> T:
    """The answer of `of` on the cluster that the options name. Failures are CommandErrors."""
    access = _access(context, kubeconfig)

    async def answer() -> T:
        async with connected(access, namespace) as cluster:
            return await of(cluster)

    try:
        return asyncio.run(answer())
    except ClusterError as error:
        raise refused(error.kind, error.what, error.message) from error
    except (AccessError, ConfigException) as error:
        raise CommandError(str(error), Exit.UNREACHABLE) from error


async def fleet_names(cluster: Cluster) -> list[str]:
    return [fleet["metadata"]["name"] for fleet in await cluster.fleets()]


async def engine_pod_names(cluster: Cluster) -> list[str]:
    """Those that carry the labels of an engine. Whether a fleet owns them is asked by `drain`."""
    pods = await cluster.objects.list("Pod", cluster.namespace, names.FLEET)
    return sorted(pod["metadata"]["name"] for pod in pods if role_of(pod) in names.ENGINE_ROLES)


def names_or_none(
    of: Callable[[Cluster], Awaitable[list[str]]],
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> list[str]:
    """Names for the shell; none if the cluster does not say in time, and never an error."""

    async def in_time(cluster: Cluster) -> list[str]:
        async with asyncio.timeout(COMPLETION_S):
            return await of(cluster)

    with suppress(Exception):
        return ask(in_time, namespace, context, kubeconfig)
    return []
