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
from argosy_measure.client import ServerError
from argosy_measure.score import Limits

_PORT = 80
"""Of the Service in front of a fleet's gateways, which has the fleet's name."""
_START_S = 20.0
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_seconds(text: str) -> float:
    """Read a duration such as 200ms or 1.5s. UsageError for one without a unit."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{text}: write a duration with its unit, such as 200ms, 1.5s or 2m")
    return seconds


def read_share(text: str) -> float:
    """Read a share such as 0.9 or 90%. UsageError for one that is not between 0 and 1."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{text}: write a share between 0 and 1, such as 0.9 or 90%")
    return share


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
        # A pipe that nobody reads would stop kubectl, which writes a line a connection.
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
