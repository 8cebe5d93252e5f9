"""Port 8001: liveness, readiness, metrics, drain, limits. It answers before the model is loaded.

Probes and metrics are open. Everything about the drain and the limits is the operator's (`proof`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from argosy_engine.core.live import show
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics, loading_page
from argosy_engine.server.drain import DEFAULT_LEASE_S, LONGEST_LEASE_S, Drain
from argosy_engine.server.proof import ProvenApp
from argosy_engine.transfer.callers import Port, Reason, Verifier

_STUCK_AFTER_S = 120.0  # longer than the longest step of the largest prompt on a CPU
_NOT_SERVING = {"draining": False, "running": 0, "leases": 0, "expires_in_s": None}
_OPEN = frozenset({"/health", "/ready", "/metrics"})
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Admin:
    """The parts of a running engine. A part is None while the engine loads."""

    loop: EngineLoop | None = None
    metrics: EngineMetrics | None = None
    drain: Drain | None = None
    serving: bool = False
    """True once the API port listens."""
    verifier: Verifier | None = None
    """None: anyone may drain this engine."""
    pod_uid: str = ""
    clock: Callable[[], float] = time.monotonic

    def app(self) -> ASGIApp:
        routes = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/ready", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/drain", self._begin, methods=["POST"]),
                Route("/drain", self._recall, methods=["DELETE"]),
                Route("/drain", self._report, methods=["GET"]),
                Route("/limits", self._limits, methods=["GET"]),
                Route("/limits", self._change_limits, methods=["PUT"]),
                Route("/reset_prefix_cache", self._reset_prefix_cache, methods=["POST"]),
            ]
        )
        return ProvenApp(routes, self.verifier, "admin", self.pod_uid, _OPEN)

    def count_refused(self, port: Port, reason: Reason) -> None:
        """For the metrics, which exist once the model is loaded."""
        if self.metrics is not None:
            self.metrics.observe_refused_call(port, reason)

    async def _health(self, _request: Request) -> Response:
        """Live while the engine loads and while its thread makes progress."""
        if self.loop is None or not self.serving:
            return JSONResponse({"live": True, "loading": True})
        silent_s = self.clock() - self.loop.progress_s
        live = self.loop.alive and silent_s < _STUCK_AFTER_S
        body = {"live": live, "loading": False, "silent_s": round(silent_s, 3)}
        return JSONResponse(body, 200 if live else 503)

    async def _ready(self, _request: Request) -> Response:
        if not self.serving or self.loop is None or not self.loop.alive:
            return JSONResponse({"ready": False, "reason": "loading"}, 503)
        if self.loop.draining:
            return JSONResponse({"ready": False, "reason": "draining"}, 503)
        return JSONResponse({"ready": True})

    async def _metrics(self, _request: Request) -> Response:
        body = loading_page() if self.metrics is None else self.metrics.render()
        return Response(body, media_type=_EXPOSITION)

    async def _begin(self, request: Request) -> Response:
        if self.drain is None:
            return JSONResponse(_NOT_SERVING, 503)
        lease_s = _lease_s(request.query_params.get("lease_s", str(DEFAULT_LEASE_S)))
        if lease_s is None:
            message = f"lease_s: write a number of seconds above 0, at most {LONGEST_LEASE_S:.0f}"
            return JSONResponse({"error": {"message": message}}, 400)
        self.drain.begin(lease_s)
        return JSONResponse(self.drain.report())

    async def _recall(self, _request: Request) -> Response:
        if self.drain is None or not self.drain.recall():
            message = "the engine is not serving: it is starting, or ending after SIGTERM"
            return JSONResponse({"error": {"message": message}}, 409)
        return JSONResponse(self.drain.report())

    async def _report(self, _request: Request) -> Response:
        if self.drain is None:
            return JSONResponse(_NOT_SERVING)
        return JSONResponse(self.drain.report())

    async def _limits(self, _request: Request) -> Response:
        if self.loop is None or not self.loop.alive:
            return _not_serving()
        scheduler = self.loop.scheduler
        return JSONResponse(show(scheduler.live, scheduler.step_limits()))

    async def _change_limits(self, request: Request) -> Response:
        """Answers once the limits hold."""
        if self.loop is None or not self.loop.alive:
            return _not_serving()
        try:
            sent = await request.json()
        except ValueError:
            return _error(400, 'send a JSON object, such as {"max_num_seqs": 64}')
        try:
            await asyncio.wrap_future(self.loop.change(sent))
        except ValueError as error:
            return _error(400, str(error))
        return await self._limits(request)

    async def _reset_prefix_cache(self, _request: Request) -> Response:
        if self.loop is None or not self.loop.alive:
            return _not_serving()
        if not await asyncio.wrap_future(self.loop.reset_prefix_cache()):
            return _error(409, "requests run or their KV is held: wait until they have ended")
        return JSONResponse({"reset": True})


def _not_serving() -> Response:
    return _error(503, "the engine is not serving: it is starting or ending")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


def _lease_s(text: str) -> float | None:
    try:
        lease_s = float(text)
    except ValueError:
        return None
    return lease_s if 0 < lease_s <= LONGEST_LEASE_S else None
