"""`make bench-trust`: what a proof of who calls, and TLS, add to the time to first token.

    python -m argosy_bench.suites.trust [--requests 600] [--json FILE]

Three pairs of a gateway and a simulated engine, each a process of its own: in one pair the gateway
shows a service-account token and the engine verifies it, in one both speak TLS with certificates on
both sides, in one there is neither. Each request makes a connection, so TLS makes a handshake.
Requests go to the pairs in turn, one at a time, so that a busy moment of the machine meets all. A
figure is the median of the differences between neighbours.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.ports import free_port

PRESET = "opt-13b-a100"
ACCOUNT, AUDIENCE = "system:serviceaccount:n:f-gateway", "argosy.dev/n/f"
ISSUER = "https://kubernetes.default.svc"
WARM_UP = 20
"""Requests to each pair before it is measured: connections, caches and the first verification."""

FIGURES = (
    Figure("ttft_ms_p50_open", "ms"),
    Figure("ttft_ms_p50_verified", "ms"),
    Figure("auth_added_ttft_ms_p50", "ms", Target("<=", 0.2)),
    Figure("ttft_ms_p50_tls", "ms"),
    Figure("tls_added_ttft_ms_p50", "ms"),
    Figure("verify_known_us", "µs", digits=1),
    Figure("verify_first_us", "µs", digits=1),
)


def peers_file(folder: Path) -> tuple[Path, Path]:
    """A peers file and a token that it proves, signed with a new key of an API server's kind."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    content = {
        "version": 1,
        "required": True,
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "keys": [{**public, "kid": "k"}],
        "callers": {"api": [ACCOUNT]},
    }
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "sub": ACCOUNT,
        "iat": now,
        "nbf": now,
        "exp": now + 86_400,
        "kubernetes.io": {"namespace": "n", "pod": {"name": "p", "uid": "u"}},
    }
    peers, token = folder / "peers.json", folder / "token"
    peers.write_text(json.dumps(content))
    token.write_text(jwt.encode(claims, key, "RS256", headers={"kid": "k"}))
    return peers, token


def certificates(folder: Path) -> Path:
    """tls.crt, tls.key and ca.crt as an issuer in the cluster makes them: ECDSA with P-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = dt.datetime.now(dt.UTC)
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def certificate(name: str, of: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        subject, issuer = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, "ca")
        )
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
        builder = builder.public_key(of.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - dt.timedelta(hours=1))
        builder = builder.not_valid_after(now + dt.timedelta(days=1))
        constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
        made = builder.add_extension(constraints, critical=True).sign(authority, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    made = folder / "tls"
    made.mkdir()
    (made / "ca.crt").write_bytes(certificate("ca", authority, is_authority=True))
    (made / "tls.crt").write_bytes(certificate("fleet", key, is_authority=False))
    (made / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


@contextlib.asynccontextmanager
async def _process(command: str, **environment: str) -> AsyncIterator[None]:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "argosy",
        *command.split(),
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        started.terminate()
        await started.wait()


@contextlib.asynccontextmanager
async def _pair(
    folder: Path, name: str, engine_options: str = "", gateway_options: str = ""
) -> AsyncIterator[int]:
    """A gateway and its engine; yields the gateway's port once it answers."""
    api, admin, front, front_admin = (free_port() for _ in range(4))
    endpoints = folder / f"{name}.json"
    pod = {"name": name, "role": "colocated", "ip": "127.0.0.1", "port": api, "tls": name == "tls"}
    endpoints.write_text(json.dumps([pod]))
    engine = (
        f"engine serve --model sim:{PRESET} --served-name m --host 127.0.0.1 --port {api} "
        f"--admin-port {admin} {engine_options}"
    )
    gateway = (
        f"gateway run --fleet f --namespace n --served-name m --host 127.0.0.1 --port {front} "
        f"--admin-port {front_admin} --endpoints {endpoints} --drain-lag-s 0 {gateway_options}"
    )
    async with _process(engine, POD_NAME=name), _process(gateway):
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError, RuntimeError):
                    await _ttft_s(front)
                    break
                await asyncio.sleep(0.05)
        yield front


async def _ttft_s(port: int) -> float:
    """From the first byte of a request to the first event of its answer. RuntimeError if the
    gateway refuses it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {"model": "m", "prompt": "a b c", "max_tokens": 1, "stream": True, "ignore_eos": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    try:
        began = time.perf_counter()
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        data = b""
        while b"data: " not in data:
            more = await reader.read(65_536)
            if not more:
                raise RuntimeError(f"no stream: {data[:300]!r}")
            data += more
        took = time.perf_counter() - began
        await reader.read(-1)
        return took
    finally:
        writer.close()


def _verification_us(peers: Path, token: Path) -> tuple[float, float]:
    """Of a token that is known, and of one that comes for the first time; medians."""
    from argosy_engine.transfer.verifier import Verifier

    shown = token.read_bytes()

    def timed(verifier: Verifier) -> float:
        began = time.perf_counter()
        if verifier.check(shown, "api") is not None:
            raise RuntimeError("the token proves nothing")
        return (time.perf_counter() - began) * 1e6

    first = [timed(Verifier(peers)) for _ in range(50)]
    verifier = Verifier(peers)
    known = [timed(verifier) for _ in range(2000)]
    return statistics.median(known[1:]), statistics.median(first)


async def _measure(figures: Figures, requests: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peers, token = peers_file(folder)
        known_us, first_us = _verification_us(peers, token)
        figures.put("verify_known_us", known_us)
        figures.put("verify_first_us", first_us)
        tls = f"--tls-dir {certificates(folder)}"
        async with (
            _pair(folder, "open") as plain,
            _pair(folder, "verified", f"--peers-file {peers}", f"--token-file {token}") as proven,
            _pair(folder, "tls", tls, tls) as sealed,
        ):
            order = [plain, proven, sealed]
            for _ in range(WARM_UP):
                for port in order:
                    await _ttft_s(port)
            rounds = []
            for _ in range(requests // 3):
                order.append(order.pop(0))  # each pair is first as often as it is last
                rounds.append({port: await _ttft_s(port) for port in order})
    for name, port in (("open", plain), ("verified", proven), ("tls", sealed)):
        figures.put(f"ttft_ms_p50_{name}", statistics.median(r[port] for r in rounds) * 1000)
    for name, port in (("auth", proven), ("tls", sealed)):
        added = statistics.median(r[port] - r[plain] for r in rounds)
        figures.put(f"{name}_added_ttft_ms_p50", added * 1000)


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-trust", description=__doc__)
    parser.add_argument("--requests", type=int, default=900, help="to all pairs together")
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "make bench-trust")
    figures.notes = {"requests": asked.requests}
    asyncio.run(_measure(figures, asked.requests))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
