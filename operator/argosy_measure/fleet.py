"""A fleet in a cluster, reached with kubectl: its limits, its GPUs, and a way to its gateway."""

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from argosy_law.sim.flags import UsageError
from argosy_measure.command import ServerError, read_seconds, read_share
from argosy_measure.score import Limits

_PORT = 80
"""Of the Service in front of a fleet's gateways, which has the fleet's name."""
_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of a fleet."""

    limits: Limits | None
    """None: its spec has no SLO."""
    gpus: int
    """That its pods hold or wait for; 0: it has none."""


def describe(found: Mapping[str, Any]) -> Fleet:
    """Read limits and GPUs of a ServingDeployment, as kubectl prints it."""
    slo, roles = found["spec"].get("slo"), found.get("status", {}).get("roles", {})
    limits = slo and Limits(
        read_seconds(slo["ttft"]["target"]),
        read_seconds(slo["tpot"]["target"]),
        read_share(slo.get("attainment", "90%")),
    )
    return Fleet(limits, sum(role.get("gpus", 0) for role in roles.values() if role))


def look_up(name: str, namespace: str | None) -> Fleet:
    """Ask the API server for a fleet. ServerError says what kubectl says."""
    words = ["get", "servingdeployment", name, "-o", "json"]
    try:
        got = subprocess.run(  # noqa: S603
            _kubectl(namespace, *words), capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        raise UsageError("--fleet needs kubectl: install it, or give the gateway's URL") from None
    except subprocess.TimeoutExpired:
        raise ServerError("kubectl had no answer of the API server in a minute") from None
    if got.returncode:
        raise ServerError(f"the fleet {name} cannot be read: {got.stderr.strip()}")
    return describe(json.loads(got.stdout))


def _kubectl(namespace: str | None, *words: str) -> list[str]:
    return ["kubectl", *(["-n", namespace] if namespace else []), *words]


@contextlib.asynccontextmanager
async def forward(name: str, namespace: str | None) -> AsyncIterator[str]:
    """Forward a free port of this machine to the fleet's gateway, and give the URL.

    ServerError when kubectl cannot.
    """
    command = _kubectl(namespace, "port-forward", f"service/{name}", f":{_PORT}")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    try:
        async with asyncio.timeout(_START_S):
            first = (await process.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", first)
        if found is None:
            why = (await process.stderr.read()).decode().strip()
            raise ServerError(f"kubectl cannot forward a port to service/{name}: {why or first}")
        # kubectl writes a line for each connection, and stops when the pipe is full.
        drains = [asyncio.create_task(_drain(of)) for of in (process.stdout, process.stderr)]
        try:
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            for drain in drains:
                drain.cancel()
    except TimeoutError:
        raise ServerError(
            f"kubectl port-forward service/{name} says nothing for {_START_S:g} s"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _drain(pipe: asyncio.StreamReader) -> None:
    while await pipe.read(65536):
        pass
