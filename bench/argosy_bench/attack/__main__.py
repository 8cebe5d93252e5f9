"""`make test-attack`: attacks on every port of a fleet, and what honest clients feel of them.

    python -m argosy_bench.attack [--attack-s N] [--only NAME…] [--json FILE]

A gateway, two prefill and two decode engines run as processes on loopback, with proofs as in a
cluster. For each attack honest clients are measured first without it and then during it.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from argosy_bench.attack.attackers import ATTACKS, MOST_S, Targets
from argosy_bench.attack.honest import attainment, measure, wrong_texts
from argosy_bench.attack.processes import (
    MODEL,
    Engine,
    Gateway,
    Keys,
    engine,
    gateway,
    sample,
    until,
)
from argosy_bench.attack.recorder import Hidden, hidden_requests
from argosy_bench.figures import Figure, Figures, Target, conclude

LEAST_RATIO = 0.9
QUIET_S, ATTACK_S = 6.0, 10.0

_NONE = Target("==", 0)
GAINS = (
    Figure("requests_smuggled", target=_NONE, digits=0),
    Figure("malformed_answered_200", target=_NONE, digits=0),
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
        Figure("malformed_messages", digits=0),
        Figure("honest_requests", digits=0),
    )


@dataclass(slots=True)
class Fleet:
    """What is attacked, and the strangers' engines."""

    front: Gateway
    engines: list[Engine]
    stranger_prefill: Engine
    stranger_decode: Engine

    def targets(self) -> Targets:
        """As the attackers know it."""
        return Targets(
            model=MODEL,
            gateway=self.front.api,
            gateway_admin=self.front.admin,
            api=tuple(e.api for e in self.engines if e.role == "decode"),
            admin=tuple(e.admin for e in self.engines),
            kv=tuple(e.kv for e in self.engines if e.role == "prefill"),
            stranger_kv=self.stranger_prefill.kv,
            stranger_api=self.stranger_decode.api,
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
        engines = [
            await stack.enter_async_context(engine(f"{role}-{number}", role, keys.folder, shown))
            for number, role in enumerate(roles)
        ]
        strangers = [
            await stack.enter_async_context(engine(f"stranger-{role}", role, keys.folder, None))
            for role in ("prefill", "decode")
        ]
        front = await stack.enter_async_context(
            gateway([e.endpoint() for e in engines], keys, queue)
        )
        yield Fleet(front, engines, strangers[0], strangers[1])


async def attacked(it: Fleet, name: str, seconds: float, number: int) -> Result:
    """Measure honest clients before and during one attack."""
    quiet = await measure(it.front.url, QUIET_S, first=number * 10_000)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "argosy_bench.attack.attackers",
        name,
        json.dumps(asdict(it.targets())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        during = await measure(it.front.url, seconds, first=number * 10_000 + 5_000)
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


async def gains(it: Fleet, results: Sequence[Result], hidden: Hidden) -> dict[str, float]:
    """What the attackers got, as the fleet's and the strangers' own counters say."""
    sent = 'argosy_kv_transfer_seconds_count{side="send"'
    received = 'argosy_kv_transfer_seconds_count{side="receive"'
    return {
        "requests_smuggled": hidden.smuggled,
        "malformed_answered_200": len(hidden.answered),
        "calls_served_without_proof": sum(r.did.get("served without proof", 0) for r in results),
        "foreign_kv_served": await sample(it.stranger_prefill.admin, sent),
        "kv_given_to_strangers": await sample(it.stranger_decode.admin, received),
        "unauthorised_drains": sum(r.did.get("drained", 0) for r in results),
        "wrong_texts": sum(r.wrong_texts for r in results),
        "processes_ended": it.ended(),
    }


async def measure_all(figures: Figures, asked: argparse.Namespace) -> None:
    """Put every figure."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(Path(folder))
        async with fleet(keys, None if asked.open else keys, asked.queue) as it:
            for number, name in enumerate(asked.only):
                began = time.monotonic()
                results.append(await attacked(it, name, asked.attack_s, number))
                await until(it.is_quiet, f"nothing of {name} is left", 90)
                found = results[-1]
                say(
                    f"{name}: {found.during:.3f} of {found.quiet:.3f}, {found.did} "
                    f"{found.problems}, {time.monotonic() - began:.0f} s"
                )
            hidden = await hidden_requests(keys)
            for name, value in (await gains(it, results, hidden)).items():
                figures.put(name, value)
    for found in results:
        figures.put(f"honest_attainment_ratio_{found.name}", found.ratio)
    figures.put("honest_attainment_ratio", min(found.ratio for found in results))
    figures.put("honest_attainment_quiet", min(found.quiet for found in results))
    figures.put("honest_requests", sum(found.honest for found in results))
    figures.notes["queue"] = asked.queue
    figures.put("malformed_messages", hidden.messages)
    figures.lists["attacks"] = [asdict(found) for found in results]
    figures.lists["answered_200"] = [{"message": name} for name in hidden.answered]


def say(line: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Run; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make test-attack", description=__doc__)
    parser.add_argument("--attack-s", type=float, default=ATTACK_S, help="of each (default 10)")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument(
        "--open",
        action="store_true",
        help="engines ask for no proof: shows what is noticed",
    )
    parser.add_argument("--queue", default="deadline", help="of the gateway (default deadline)")
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    if not 1 <= asked.attack_s <= MOST_S:
        parser.error(f"--attack-s {asked.attack_s:g}: write a number from 1 to {MOST_S:.0f}")
    figures = Figures(figures_of(asked.only), "make test-attack" + " ATTACK=--open" * asked.open)
    asyncio.run(measure_all(figures, asked))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
