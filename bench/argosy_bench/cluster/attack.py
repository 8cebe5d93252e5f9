"""Attacks on every port of a fleet, and what honest clients feel of them.

A gateway, two prefill and two decode engines run as processes on loopback, with proofs as in a
cluster: a key pair stands for the cluster's. For each attack honest clients are measured first
without it and then during it: short streamed requests at a steady rate, each with a known text and
a flow of its own, as each user of a product would have. Nothing here is a stand-in for the product.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from argosy_bench.cluster.attackers import MOST_S, Targets
from argosy_bench.cluster.requests import ask_of
from argosy_bench.processes import MODEL, Server, engine, gateway
from local.demo.traffic.stream import Stream
from local.figures import Figure, Figures, Target

PRESET = "llama-70b-h100-tp4"
_ISSUER, _AUDIENCE = "https://kubernetes.default.svc", "argosy.dev/n/f"
_ACCOUNTS = {
    "api": "system:serviceaccount:n:f-gateway",
    "kv": "system:serviceaccount:n:f-engine",
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
        pod = {"namespace": "n", "pod": {"name": "p", "uid": "u"}}
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
        """Write its token as the kubelet mounts it."""
        path = self.folder / f"token-{port}"
        path.write_text(self.token(port))
        return path

    def engine_options(self) -> list[str]:
        """Return what makes an engine ask for proofs, and show its own."""
        return f"--peers-file {self.peers} --token-file {self.token_file('kv')}".split()

    def gateway_options(self, queue: str = "none") -> list[str]:
        """Return the SLO, the queue and the token of a gateway."""
        slo = f"--slo-ttft-ms {TTFT_S * 1000:g} --slo-tpot-ms {TPOT_S * 1000:g}"
        return f"{slo} --queue {queue} --token-file {self.token_file('api')}".split()


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


RATE = 6.0
"""Requests per second; a small part of what the fleet can serve."""
TTFT_S, TPOT_S = 2.5, 0.06
"""Limits, those of the overload of `make bench-gateway`. The simulated model needs 0.05 s for these
prompts and 0.03 s a token; a prompt of the attack `overload` keeps a prefill engine for 0.58 s."""
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request."""

    problem: str
    """Why the answer is not whole; empty if it is."""
    right: bool
    """Whether the text is the one that the prompt must give."""
    ttft_s: float = 0.0
    tpot_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whole, right, and within both limits."""
        return not self.missed

    @property
    def missed(self) -> str:
        """Why it is not good; empty if it is."""
        if self.problem or not self.right:
            return self.problem or "another text"
        over = [name for name, value, limit in self._times() if value > limit]
        return " and ".join(f"{name} over its limit" for name in over)

    def _times(self) -> tuple[tuple[str, float, float], ...]:
        return ("TTFT", self.ttft_s, TTFT_S), ("TPOT", self.tpot_s, TPOT_S)


def attainment(seen: Sequence[Seen]) -> float:
    """Share of good requests; 0 of none."""
    return sum(one.good for one in seen) / len(seen) if seen else 0.0


def wrong_texts(seen: Sequence[Seen]) -> int:
    """Whole answers with another text."""
    return sum(not one.problem and not one.right for one in seen)


async def measure_honest(url: str, seconds: float, first: int) -> list[Seen]:
    """Send from number `first` on for so long, and return when all have ended. Every number is sent
    once in a run, so that no prefix cache helps."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=_PATIENCE_S, trust_env=False) as web:
        began, sent = time.monotonic(), list[asyncio.Task[Seen]]()
        while (now := time.monotonic()) < began + seconds:
            sent.append(asyncio.create_task(_ask(web, url, first + 2 * len(sent))))
            await asyncio.sleep(max(0.0, began + len(sent) / RATE - now))
        return list(await asyncio.gather(*sent))


async def _ask(web: httpx.AsyncClient, url: str, number: int) -> Seen:
    ask = ask_of(number)  # even numbers are streamed
    stream, sent_s = Stream(ask.tokens), time.monotonic()
    try:
        async with web.stream(
            "POST",
            f"{url}/v1/completions",
            json=ask.body(MODEL),
            headers={"x-argosy-flow": "honest"},
        ) as answer:
            if answer.status_code != 200:
                return Seen(f"status {answer.status_code}", right=False)
            async for line in answer.aiter_lines():
                stream.line(line, time.monotonic())
    except httpx.HTTPError as error:
        return Seen(f"{type(error).__name__}: {error}", right=False)
    return Seen(
        problem=stream.problem(),
        right=stream.text == ask.text,
        ttft_s=(stream.first_s or time.monotonic()) - sent_s,
        tpot_s=stream.tpot_s() or 0.0,
    )


LEAST_RATIO = 0.9
QUIET_S, ATTACK_S = 6.0, 10.0

_NONE = Target("==", 0)
GAINS = (
    Figure("calls_served_without_proof", target=_NONE, digits=0),
    Figure("foreign_kv_served", target=_NONE, digits=0),
    Figure("kv_given_to_strangers", target=_NONE, digits=0),
    Figure("unauthorised_drains", target=_NONE, digits=0),
    Figure("wrong_texts", target=_NONE, digits=0),
    Figure("processes_ended", target=_NONE, digits=0),
)


def figures_of(names: Sequence[str]) -> tuple[Figure, ...]:
    """The table for these attacks."""
    ratio = Target(">=", LEAST_RATIO)
    each = (Figure(f"honest_attainment_ratio_{name}", target=ratio) for name in names)
    return (
        Figure("honest_attainment_ratio", target=ratio),
        *each,
        Figure("honest_attainment_quiet"),
        *GAINS,
        Figure("honest_requests", digits=0),
    )


@dataclass(slots=True)
class Fleet:
    """What is attacked, and the strangers' engines."""

    front: Server
    engines: list[Server]
    stranger_prefill: Server
    stranger_decode: Server

    def targets(self) -> Targets:
        """As the attackers know it."""
        return Targets(
            model=MODEL,
            gateway=self.front.port,
            gateway_admin=self.front.admin,
            api=tuple(e.port for e in self.engines if e.role == "decode"),
            admin=tuple(e.admin for e in self.engines),
            kv=tuple(e.kv for e in self.engines if e.role == "prefill"),
            stranger_kv=self.stranger_prefill.kv,
            stranger_api=self.stranger_decode.port,
        )

    def ended(self) -> int:
        """Processes of the fleet that an attack ended."""
        processes = [self.front.process, *(e.process for e in self.engines)]
        return sum(process.returncode is not None for process in processes)

    async def is_quiet(self) -> bool:
        """Whether nothing of an attack is left in the gateway and in the engines."""
        in_flight = await sample(self.front.admin, "argosy_gateway_inflight_requests")
        busy = [
            e
            for e in self.engines
            if await sample(e.admin, "vllm:num_requests_running")
            or await sample(e.admin, "argosy_engine_draining")
        ]
        return not in_flight and not busy


@dataclass(slots=True)
class Result:
    """One attack."""

    name: str
    quiet: float
    """Attainment of honest clients just before it."""
    during: float
    did: dict[str, int]
    wrong_texts: int
    honest: int
    problems: dict[str, int] = field(default_factory=dict)
    """Why requests were not good during it, and how many for each reason."""

    @property
    def ratio(self) -> float:
        """Attainment during the attack over that without it; 0 where there was none without."""
        return self.during / self.quiet if self.quiet else 0.0


@contextlib.asynccontextmanager
async def fleet(keys: Keys, shown: Keys | None, queue: str) -> AsyncIterator[Fleet]:
    """Two prefill and two decode engines behind a gateway, and two strangers."""
    async with contextlib.AsyncExitStack() as stack:
        roles = ("prefill", "prefill", "decode", "decode")
        options = shown.engine_options() if shown else []
        engines = [
            await stack.enter_async_context(
                engine(f"{role}-{number}", *options, role=role, preset=PRESET)
            )
            for number, role in enumerate(roles)
        ]
        strangers = [
            await stack.enter_async_context(engine(f"stranger-{role}", role=role, preset=PRESET))
            for role in ("prefill", "decode")
        ]
        endpoints = [one.endpoint() for one in engines]
        front = await stack.enter_async_context(gateway(endpoints, *keys.gateway_options(queue)))
        yield Fleet(front, engines, strangers[0], strangers[1])


async def attacked(it: Fleet, name: str, seconds: float, number: int) -> Result:
    """Measure honest clients before and during one attack."""
    quiet = await measure_honest(it.front.url, QUIET_S, first=number * 10_000)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "argosy_bench.cluster.attackers",
        name,
        json.dumps(asdict(it.targets())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        during = await measure_honest(it.front.url, seconds, first=number * 10_000 + 5_000)
        out, _ = await asyncio.wait_for(process.communicate(b""), MOST_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    problems = Counter(one.missed for one in during if not one.good)
    return Result(
        name,
        attainment(quiet),
        attainment(during),
        json.loads(out or b"{}"),
        wrong_texts(quiet) + wrong_texts(during),
        len(quiet) + len(during),
        dict(problems.most_common(5)),
    )


async def gains(it: Fleet, results: Sequence[Result]) -> dict[str, float]:
    """What the attackers got, as the fleet's and the strangers' own counters say."""
    sent = 'argosy_kv_transfer_seconds_count{side="send"'
    received = 'argosy_kv_transfer_seconds_count{side="receive"'
    return {
        "calls_served_without_proof": sum(r.did.get("served without proof", 0) for r in results),
        "foreign_kv_served": await sample(it.stranger_prefill.admin, sent),
        "kv_given_to_strangers": await sample(it.stranger_decode.admin, received),
        "unauthorised_drains": sum(r.did.get("drained", 0) for r in results),
        "wrong_texts": sum(r.wrong_texts for r in results),
        "processes_ended": it.ended(),
    }


async def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Put every figure."""
    figures.declare(figures_of(asked.attacks))
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(Path(folder))
        async with fleet(keys, None if asked.open else keys, asked.queue) as it:
            for number, name in enumerate(asked.attacks):
                began = time.monotonic()
                results.append(await attacked(it, name, asked.attack_s, number))
                await until(it.is_quiet, f"nothing of {name} is left", 90)
                found = results[-1]
                say(
                    f"{name}: {found.during:.3f} of {found.quiet:.3f}, {found.did} "
                    f"{found.problems}, {time.monotonic() - began:.0f} s"
                )
            for name, value in (await gains(it, results)).items():
                figures.put(name, value)
    for found in results:
        figures.put(f"honest_attainment_ratio_{found.name}", found.ratio)
    figures.put("honest_attainment_ratio", min(found.ratio for found in results))
    figures.put("honest_attainment_quiet", min(found.quiet for found in results))
    figures.put("honest_requests", sum(found.honest for found in results))
    figures.notes["queue"] = asked.queue
    figures.lists["attacks"] = [asdict(found) for found in results]


def say(line: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
