"""A small HTTP server that answers as a saturated API server does: correctly, and late.

It has a Lease and any number of paused fleets without children. Calls about fleets share a few
places and keep each for a while; calls about the Lease are answered at once. Kinds are discovered
and watched as on a real one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from argosy_operator.adapters.cluster import PLURALS

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
FLEETS = "/apis/serving.argosy.dev/v1alpha1/namespaces/{namespace}/servingdeployments/{name}"


class ApiServer:
    """`places` calls about fleets are worked on at once, each for `work_s` seconds."""

    def __init__(self, places: int, work_s: float) -> None:
        self.places, self.work_s = asyncio.Semaphore(places), work_s
        self.lease: dict[str, Any] | None = None
        self.renewed_at: list[float] = []
        self.statuses: dict[str, Any] = {}
        self.refuse = 0  # so many calls about the Lease are answered 403 first
        self.under_way = self.most_under_way = 0
        self.absent = set[str]()
        """Plural names of kinds that are not served."""
        self.silent = set[str]()
        """Of kinds whose watches get no answer."""
        self.unwatchable = set[str]()
        """Of kinds whose watches are answered 403."""
        self.watched = set[str]()
        """Plural names of kinds whose watches are open."""
        self.lease_reads = 0
        self._ends = dict[str, asyncio.Event]()

    def take_away(self, *plurals: str) -> None:
        """Their CRDs are deleted: they are not served any more, and their watches end."""
        self.absent.update(plurals)
        for plural in plurals:
            self._ends.pop(plural).set()

    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        """Serve on 127.0.0.1; yields the path of a kubeconfig."""
        app = web.Application()
        app.router.add_get(LEASES + "/{name}", self._read_lease)
        app.router.add_post(LEASES, self._write_lease)
        app.router.add_put(LEASES + "/{name}", self._write_lease)
        app.router.add_get(FLEETS, self._fleet)
        app.router.add_patch(FLEETS + "/status", self._status)
        app.router.add_get("/api/v1/namespaces/{namespace}/configmaps/{name}", self._absent)
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/{root:api}/{version}", self._kinds)
        app.router.add_get("/{root:apis}/{group}/{version}", self._kinds)
        app.router.add_route("*", "/{rest:.*}", self._nothing)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        try:
            yield str(path)
        finally:
            await runner.cleanup()

    async def _read_lease(self, _: web.Request) -> web.Response:
        self.lease_reads += 1
        if self.refuse > 0:
            self.refuse -= 1
            return _refusal(403, "Forbidden")
        return _refusal(404, "NotFound") if self.lease is None else web.json_response(self.lease)

    async def _write_lease(self, request: web.Request) -> web.Response:
        body = await request.json()
        version = (self.lease or {"metadata": {}})["metadata"].get("resourceVersion")
        if body["metadata"].get("resourceVersion") != version:
            return _refusal(409, "Conflict")
        metadata = {**body["metadata"], "resourceVersion": str(int(version or 0) + 1)}
        self.lease = {**body, "metadata": metadata}
        self.renewed_at.append(asyncio.get_running_loop().time())
        return web.json_response(self.lease)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with self.places:
                await asyncio.sleep(self.work_s)
                yield
        finally:
            self.under_way -= 1

    async def _fleet(self, request: web.Request) -> web.Response:
        async with self._work():
            name = request.match_info["name"]
            meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1}
            spec = {"paused": True, "model": {"uri": "sim://opt-13b-a100"}}
            status = self.statuses.get(name, {})
            return web.json_response({"metadata": meta, "spec": spec, "status": status})

    async def _status(self, request: web.Request) -> web.Response:
        async with self._work():
            body = await request.json(loads=yaml.safe_load)
            self.statuses[request.match_info["name"]] = body["status"]
            return web.json_response(body)

    async def _absent(self, _: web.Request) -> web.Response:
        async with self._work():
            return _refusal(404, "NotFound")

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        served = {version for version, plural in PLURALS.values() if plural not in self.absent}
        found = [
            {
                "name": of.rpartition("/")[0],
                "versions": [{"groupVersion": of, "version": of.rpartition("/")[2]}],
                "preferredVersion": {"version": of.rpartition("/")[2]},
            }
            for of in sorted(served)
            if "/" in of
        ]
        return web.json_response({"groups": found})

    async def _kinds(self, request: web.Request) -> web.Response:
        of = "/".join(request.path.split("/")[2:])
        found = [
            {
                "name": plural,
                "kind": kind,
                "singularName": kind.lower(),
                "namespaced": True,
                "verbs": ["list", "watch", "patch"],
            }
            for kind, (version, plural) in {**PLURALS, "Namespace": ("v1", "namespaces")}.items()
            if version == of and plural not in self.absent
        ]
        return web.json_response({"resources": found})

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        """Every other list is empty, and nothing happens in a watch."""
        plural = request.path.rpartition("/")[2]
        if plural in self.absent:
            return _refusal(404, "NotFound")
        if "watch" in request.query:
            return await self._watch(request, plural)
        async with self._work():
            return web.json_response({"apiVersion": "v1", "items": [], "metadata": {}})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        if plural in self.unwatchable:
            return _refusal(403, "Forbidden")
        ends = self._ends.setdefault(plural, asyncio.Event())
        if plural in self.silent:
            await ends.wait()
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        self.watched.add(plural)
        try:
            await ends.wait()
        finally:
            self.watched.discard(plural)
        return answer


def _refusal(code: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason, "message": reason, "code": code}, status=code)
