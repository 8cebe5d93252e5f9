"""The admin port: /health and /ready for the kubelet's probes, /metrics for Prometheus."""

import json

from argosy_gateway.relay.answer import Send
from argosy_gateway.relay.fleet import Fleet
from argosy_gateway.server.asgi import App, Receive, Scope, respond

__all__ = ["admin_app"]


def admin_app(fleet: Fleet) -> App:
    """/health answers while the event loop runs. /ready also needs a list of pods and no drain."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        if scope["type"] != "http":
            return
        match scope["path"]:
            case "/health":
                await respond(send, 200, b'{"status":"ok"}')
            case "/ready":
                reason = _why_unready(fleet)
                answer = {"ready": False, "reason": reason} if reason else {"ready": True}
                await respond(send, 503 if reason else 200, json.dumps(answer).encode())
            case "/metrics":
                fleet.metrics.count_endpoints(fleet.directory.all())
                text = fleet.metrics.exposition()
                kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
                await respond(send, 200, text, headers=kind)
            case _:
                await respond(send, 404, b'{"paths":["/health","/ready","/metrics"]}')

    return app


def _why_unready(fleet: Fleet) -> str | None:
    denied_s = fleet.directory.denied_for_s()
    if fleet.draining:
        return "draining"
    if not fleet.directory.listed:
        return "pods were not listed yet"
    if denied_s > fleet.config.limits.denied_s:
        return f"the API server refuses this gateway's account since {denied_s:.0f} s"
    return None
