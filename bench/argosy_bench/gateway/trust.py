"""What a proof of who calls, and TLS, add to the time to first token.

Three pairs of a gateway and a simulated engine, each a process of its own: in one pair the gateway
shows a service-account token and the engine verifies it, in one both speak TLS with certificates on
both sides, in one there is neither. Each request makes a connection, so TLS makes a handshake.
Requests go to the pairs in turn, one at a time, so that a busy moment of the machine meets all. A
figure is the median of the differences between neighbours.
"""

import asyncio
import contextlib
import datetime as dt
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from argosy_bench.client import Ask, ask
from argosy_bench.processes import engine, gateway
from local.figures import Figure, Figures, Target

ACCOUNT, AUDIENCE = "system:serviceaccount:n:f-gateway", "argosy.dev/n/f"
ISSUER = "https://kubernetes.default.svc"
WARM_UP = 20
"""Requests to each pair before it is measured: connections, caches and the first verification."""

FIGURES = (
    Figure("ttft_ms_p50_open", "ms"),
    Figure("ttft_ms_p50_verified", "ms"),
    Figure("auth_added_ttft_ms_p50", "ms"),
    Figure("auth_ttft_over_open", target=Target("<=", 1.1)),
    Figure("ttft_ms_p50_tls", "ms"),
    Figure("tls_added_ttft_ms_p50", "ms"),
    Figure("verify_known_us", "µs", digits=1),
    Figure("verify_first_us", "µs", digits=1),
)


def peers_file(folder: Path) -> tuple[Path, Path]:
    """Write a peers file and a token that it proves, signed with a new key."""
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
async def _pair(
    engine_options: str = "", gateway_options: str = "", *, tls: bool = False
) -> AsyncIterator[int]:
    """Run an engine and a gateway with these options; the value is the gateway's port."""
    async with (
        engine("engine", *engine_options.split()) as pod,
        gateway([pod.endpoint() | {"tls": tls}], *gateway_options.split()) as front,
    ):
        async with asyncio.timeout(60):
            while True:
                if (await ask(front.port, Ask(0, 3, 1))).whole:
                    break
                await asyncio.sleep(0.05)
        yield front.port


async def _ttft_s(port: int) -> float:
    """Return the time from a connection to the first token of an answer of one token."""
    answer = await ask(port, Ask(0, 3, 1))
    if not answer.whole:
        raise RuntimeError(f"the gateway answered {answer.status}")
    return answer.ttft_s


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


async def measure(figures: Figures, requests: int) -> None:
    """Put every figure, with this many requests to all pairs together."""
    figures.declare(FIGURES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peers, token = peers_file(folder)
        known_us, first_us = _verification_us(peers, token)
        figures.put("verify_known_us", known_us)
        figures.put("verify_first_us", first_us)
        tls = f"--tls-dir {certificates(folder)}"
        async with (
            _pair() as plain,
            _pair(f"--peers-file {peers}", f"--token-file {token}") as proven,
            _pair(tls, tls, tls=True) as sealed,
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
    ratio = statistics.median(r[proven] / r[plain] for r in rounds)
    figures.put("auth_ttft_over_open", ratio)
