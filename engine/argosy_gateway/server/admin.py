"""The admin port: /health and /ready for the kubelet's probes, /metrics for Prometheus, /pairs and
/load for the operator."""

import json

from argosy_gateway.pods.endpoints import Role, State
from argosy_gateway.relay.answer import Send
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.routing.load import IDLE
from argosy_gateway.server.asgi import App, Receive, Scope, respond

__all__ = ["admin_app", "failing_pairs", "handover_ages", "why_unready"]

_MOST_PAIRS = 16
"""Of failing pairs, in the answer of /pairs."""


def admin_app(gateway: Gateway) -> App:
    """/health answers while the event loop runs. /ready also needs a list of pods, no
    drain, and pods that can serve."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        if scope["type"] != "http":
            return
        match scope["path"]:
            case "/health":
                await respond(send, 200, b'{"status":"ok"}')
            case "/ready":
                reason = why_unready(gateway)
                said = {"ready": False, "reason": reason} if reason else {"ready": True}
                await respond(send, 503 if reason else 200, json.dumps(said).encode())
            case "/pairs":
                answer = {"failing": failing_pairs(gateway), "handed_over": handover_ages(gateway)}
                await respond(send, 200, json.dumps(answer).encode())
            case "/load":
                await respond(send, 200, json.dumps(read_load(gateway)).encode())
            case "/metrics":
                gateway.metrics.count_endpoints(gateway.directory.all(), gateway.clock())
                gateway.metrics.count_waiting(*gateway.waiting())
                text = gateway.metrics.exposition()
                kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
                await respond(send, 200, text, headers=kind)
            case _:
                await respond(
                    send, 404, b'{"paths":["/health","/ready","/pairs","/load","/metrics"]}'
                )

    return app


def failing_pairs(gateway: Gateway) -> list[dict[str, object]]:
    """Pairs whose last handover failed, as the operator reads them (designs/0011)."""
    rows = gateway.directory.pairs.failing(_MOST_PAIRS)
    names = {e.uid: e.name for e in gateway.directory.all()} if rows else {}
    return [
        {
            "prefill": names.get(row.prefill, row.prefill),
            "decode": names.get(row.decode, row.decode),
            "failures": row.failures,
            "reason": row.reason,
            "since_s": round(row.since_s, 3),
            "last_s": round(row.last_s, 3),
        }
        for row in rows
    ]


def handover_ages(gateway: Gateway) -> dict[str, float]:
    """Name of each pod that has had a whole handover → how many seconds ago the last one was."""
    ages = gateway.directory.pairs.handover_ages()
    return {e.name: round(ages[e.uid], 3) for e in gateway.directory.all() if e.uid in ages}


def read_load(gateway: Gateway) -> dict[str, object]:
    """Whether the fleet is in use, and what has arrived, as the operator reads it.

    `pod` lets the caller see that another pod has got the address. What is from `received` on is
    the load by which the operator adds replicas while Prometheus has no metrics. `settings` is
    there if this gateway follows an object with its settings.
    """
    in_flight, read = gateway.in_flight, gateway.settings_read
    follows = bool(gateway.config.settings_name)
    return {
        "pod": gateway.config.pod_name,
        "in_flight": len(gateway.relays),
        "idle_s": round(gateway.idle_s(), 3),
        "received": gateway.metrics.received_for_load(),
        "waiting_prompt_tokens": gateway.waiting()[1],
        "outstanding_prompt_tokens": sum(pod.prompt_tokens for pod in in_flight.loads.values()),
        "decoding": in_flight.decoding,
        "answered": gateway.metrics.answered_for_load(),
        "on_pods": pod_loads(gateway),
        **({"settings": {"digest": read.digest, "refused": read.refused}} if follows else {}),
    }


def pod_loads(gateway: Gateway) -> dict[str, dict[str, object]]:
    """Uid of each pod without an admin port → the requests of this gateway there, and whether it
    sends no more: by this the operator knows when such a pod may go. A prefill pod has a request
    until its KV was pulled."""
    loads, holding, serving = gateway.in_flight.loads, gateway.in_flight.holding, State.SERVING
    return {
        pod.uid: {
            "requests": holding.get(pod.uid, 0)
            if pod.role is Role.PREFILL
            else loads.get(pod.uid, IDLE).sequences,
            "left": pod.state is not serving,
        }
        for pod in gateway.directory.all()
        if pod.keyed
    }


def why_unready(gateway: Gateway) -> str | None:
    """Why /ready is 503; None if it is 200."""
    denied_s, unserved_s = gateway.directory.denied_for_s(), gateway.unserved_s()
    if gateway.draining:
        return "draining"
    if not gateway.config.served_names:
        return "the settings were not read yet"
    if not gateway.directory.listed:
        return "pods were not listed yet"
    if denied_s > gateway.config.limits.denied_s:
        return f"the API server refuses this gateway's account since {denied_s:.0f} s"
    if unserved_s > gateway.config.queue_timeout_s:
        return f"no engine pod can serve since {unserved_s:.0f} s"
    return None
