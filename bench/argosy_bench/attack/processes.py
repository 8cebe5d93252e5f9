"""A gateway and simulated engines as processes on loopback, with proofs as a cluster gives them.

A key pair stands for the cluster's; engines verify with it, the gateway and the engines show tokens
that it signed. Nothing here is a stand-in for the product.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from argosy_bench.ports import free_ports

MODEL = "m"
PRESET = "llama-70b-h100-tp4"
_ISSUER, _AUDIENCE = "https://kubernetes.default.svc", "argosy.dev/ns/fleet"
_ACCOUNTS = {
    "api": "system:serviceaccount:ns:fleet-gateway",
    "kv": "system:serviceaccount:ns:fleet-engine",
    "admin": "system:serviceaccount:argosy-system:argosy",
}


class Keys:
    """The cluster's key, the peers file and the tokens, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        algorithm = jwt.algorithms.ECAlgorithm
        public = algorithm.to_jwk(self._key.public_key(), as_dict=True)
        content = {
            "version": 1,
            "required": True,
            "issuer": _ISSUER,
            "audience": _AUDIENCE,
            "keys": [{**public, "kid": "k", "use": "sig", "alg": "ES256"}],
            "callers": {port: [account] for port, account in _ACCOUNTS.items()},
        }
        self.peers = folder / "peers.json"
        self.peers.write_text(json.dumps(content))

    def token(self, port: str) -> str:
        """Of the account that may call this port."""
        now = int(time.time())
        pod = {"namespace": "ns", "pod": {"name": "p", "uid": "u"}}
        said: dict[str, Any] = {
            "iss": _ISSUER,
            "aud": [_AUDIENCE],
            "sub": _ACCOUNTS[port],
            "iat": now,
            "nbf": now,
            "exp": now + 7200,
            "kubernetes.io": pod,
        }
        return jwt.encode(said, self._key, "ES256", headers={"kid": "k"})

    def token_file(self, port: str) -> Path:
        """Its token as the kubelet mounts it."""
        path = self.folder / f"token-{port}"
        path.write_text(self.token(port))
        return path


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's process and ports."""

    name: str
    role: str
    process: asyncio.subprocess.Process
    api: int
    admin: int
    kv: int

    def endpoint(self) -> dict[str, object]:
        """As the gateway's `--endpoints` file has it."""
        ports = {"ip": "127.0.0.1", "port": self.api, "kv_port": self.kv}
        return {"name": self.name, "role": self.role, "revision": "0a0a0a0a", **ports}


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's process and ports."""

    process: asyncio.subprocess.Process
    api: int
    admin: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api}"


async def until(holds: Callable[[], Any], what: str, within_s: float = 60.0) -> None:
    """Await a state of another process. RuntimeError says `what` did not come about."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, httpx.HTTPError, LookupError):
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"not within {within_s:.0f} s: {what}")


async def get(port: int, path: str) -> httpx.Response:
    """GET of a page of loopback."""
    async with httpx.AsyncClient(timeout=5, trust_env=False) as web:
        return await web.get(f"http://127.0.0.1:{port}{path}")


async def sample(port: int, beginning: str) -> float:
    """The first sample of /metrics that begins so. LookupError if there is none."""
    for line in (await get(port, "/metrics")).text.splitlines():
        if line.startswith(beginning):
            return float(line.rpartition(" ")[2])
    raise LookupError(beginning)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]


@contextlib.asynccontextmanager
async def _process(
    admin: int, log: Path, words: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program of ours, once its admin port says that it is ready."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "argosy",
            *words.split(),
            env={**os.environ, **variables},
            stderr=errors,
        )

    async def ready() -> bool:
        if process.returncode is not None:
            raise RuntimeError(f"{log.name} ended: {_tail(log)}")
        return (await get(admin, "/ready")).status_code == 200

    try:
        await until(ready, f"{log.name} is ready")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def engine(name: str, role: str, folder: Path, keys: Keys | None) -> AsyncIterator[Engine]:
    """An engine that is ready; without keys it is a stranger, which trusts everyone."""
    api, admin, kv = free_ports(3)
    words = (
        f"engine serve --model sim:{PRESET} --served-name {MODEL} --role {role} --host 127.0.0.1 "
        f"--port {api} --admin-port {admin} --kv-port {kv}"
    )
    if keys is not None:
        words += f" --peers-file {keys.peers} --token-file {keys.token_file('kv')}"
    async with _process(admin, folder / f"{name}.log", words, POD_NAME=name) as process:
        yield Engine(name, role, process, api, admin, kv)


@contextlib.asynccontextmanager
async def gateway(
    endpoints: list[dict[str, object]], keys: Keys, queue: str = "none"
) -> AsyncIterator[Gateway]:
    """A gateway in front of these engines; `queue` is its option of that name."""
    api, admin = free_ports(2)
    known = keys.folder / f"endpoints-{api}.json"
    known.write_text(json.dumps(endpoints))
    words = (
        f"gateway run --fleet fleet --namespace ns --served-name {MODEL} --host 127.0.0.1 "
        f"--port {api} --admin-port {admin} --endpoints {known} --drain-lag-s 0 "
        f"--slo-ttft-ms 2500 --slo-tpot-ms 60 --queue {queue} --token-file {keys.token_file('api')}"
    )
    async with _process(admin, keys.folder / f"gateway-{api}.log", words) as process:
        yield Gateway(process, api, admin)
