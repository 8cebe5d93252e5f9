"""One attack, as a process of its own: it does harm until its standard input closes.

    python -m argosy_bench.cluster.attackers NAME TARGETS

TARGETS is JSON (`Targets`). All targets are ports of loopback, what is held at once is bounded, and
an attack ends by itself after MOST_S. The process prints what it gained and did, as JSON.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

MOST_S = 30.0
_POLITE = 10
"""The attackers' CPU is not the fleet's: on a real network they are elsewhere."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What an attacker can reach: ports of loopback."""

    model: str
    gateway: int
    gateway_admin: int
    api: tuple[int, ...]
    """Of the decode engines."""
    admin: tuple[int, ...]
    """Of all engines."""
    kv: tuple[int, ...]
    """Of the prefill engines."""
    stranger_kv: int
    """KV port of a prefill engine that is no part of the fleet."""
    stranger_api: int
    """API port of a decode engine that is no part of the fleet."""


class Attack:
    """What all attacks share: targets, counters, and when to end."""

    def __init__(self, targets: Targets) -> None:
        self.at = targets
        self.did: Counter[str] = Counter()
        self.over = asyncio.Event()
        self.web = httpx.AsyncClient(
            timeout=30,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def every(self, seconds: float, act: Callable[[int], Awaitable[None]]) -> None:
        """Begin `act` at this pace until the end, whether or not earlier ones have ended."""
        acting, number = set[asyncio.Task[None]](), 0
        while not self.over.is_set():
            task = asyncio.create_task(self._once(act, number))
            acting.add(task)
            task.add_done_callback(acting.discard)
            number += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), seconds)
        for task in acting:
            task.cancel()
        await asyncio.gather(*acting, return_exceptions=True)

    async def _once(self, act: Callable[[int], Awaitable[None]], number: int) -> None:
        self.did["tried"] += 1
        with contextlib.suppress(OSError, httpx.HTTPError, EOFError, ValueError):
            await act(number)

    async def hold(self, port: int, count: int, first: bytes, drip: bytes = b"") -> None:
        """Keep so many connections that have sent `first`, and send `drip` on each every second.
        One that is closed is opened again."""

        async def one(_: int) -> None:
            while not self.over.is_set():
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    self.did["connections"] += 1
                    try:
                        writer.write(first)
                        while not self.over.is_set() and not reader.at_eof():
                            writer.write(drip)
                            await writer.drain()
                            with contextlib.suppress(TimeoutError):
                                await asyncio.wait_for(reader.read(4096), 1)
                    finally:
                        writer.transport.abort()
                await asyncio.sleep(0.05)

        holding = [asyncio.create_task(one(number)) for number in range(count)]
        await self.over.wait()
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)

    def body(self, words: int, tokens: int, **more: Any) -> dict[str, Any]:
        """A prompt that no other request has."""
        prompt = f"a{random.getrandbits(64)} " + "w " * (words - 1)
        return {"model": self.at.model, "prompt": prompt, "max_tokens": tokens, **more}


async def overload(attack: Attack) -> None:
    """Ten times the prompts that two prefill engines can compute: each takes one 0.58 s."""

    async def ask(_: int) -> None:
        answer = await attack.web.post(
            f"http://127.0.0.1:{attack.at.gateway}/v1/completions",
            json=attack.body(5200, 30, ignore_eos=True),
            headers={"x-argosy-flow": "attacker"},
        )
        attack.did[f"status {answer.status_code}"] += 1

    await attack.every(1 / 34, ask)


async def slow_heads(attack: Attack) -> None:
    """Connections whose head never ends."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    await attack.hold(attack.at.gateway, 400, head, b"x-a: b\r\n")


async def slow_bodies(attack: Attack) -> None:
    """Connections whose body never ends."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    await attack.hold(attack.at.gateway, 200, head, b"x" * 100)


async def silent_connections(attack: Attack) -> None:
    """Connections that send nothing, on both ports of the gateway."""
    async with asyncio.TaskGroup() as both:
        both.create_task(attack.hold(attack.at.gateway, 700, b""))
        both.create_task(attack.hold(attack.at.gateway_admin, 300, b""))


async def slow_readers(attack: Attack) -> None:
    """Streams that are asked for and never read, with a small window."""
    import socket

    body = json.dumps(attack.body(20, 2000, stream=True, ignore_eos=True)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    held: list[socket.socket] = []
    try:
        for _ in range(60):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", attack.at.gateway))
            sock.sendall(head.encode() + body)
            held.append(sock)
            attack.did["connections"] += 1
            await asyncio.sleep(0.02)
        await attack.over.wait()
    finally:
        for sock in held:
            sock.close()


async def foreign_prefill(attack: Attack) -> None:
    """Decode engines and the gateway are told to take the KV cache from a stranger's engine."""
    named = {"x-argosy-prefill": f"127.0.0.1:{attack.at.stranger_kv}"}

    async def ask(number: int) -> None:
        port = (*attack.at.api, attack.at.gateway)[number % (len(attack.at.api) + 1)]
        answer = await attack.web.post(
            f"http://127.0.0.1:{port}/v1/completions", json=attack.body(200, 4), headers=named
        )
        if answer.status_code == 200 and port != attack.at.gateway:
            attack.did["served without proof"] += 1

    await attack.every(0.05, ask)


async def foreign_drain(attack: Attack) -> None:
    """Everyone tries to drain every engine, with no token and with a forged one."""
    forged = "eyJhbGciOiJub25lIn0.e30."

    async def order(number: int) -> None:
        port = attack.at.admin[number % len(attack.at.admin)]
        headers = {"authorization": f"Bearer {forged}"} if number % 2 else {}
        url = f"http://127.0.0.1:{port}/drain"
        answer = await attack.web.post(url, headers=headers)
        if answer.status_code == 200:
            attack.did["drained"] += 1

    await attack.every(0.05, order)


async def foreign_pull(attack: Attack) -> None:
    """A stranger's decode engine asks the fleet's prefill engines for prompts and KV."""

    async def ask(number: int) -> None:
        port = attack.at.kv[number % len(attack.at.kv)]
        await attack.web.post(
            f"http://127.0.0.1:{attack.at.stranger_api}/v1/completions",
            json=attack.body(200, 4),
            headers={"x-argosy-prefill": f"127.0.0.1:{port}"},
        )

    await attack.every(0.05, ask)


async def kv_garbage(attack: Attack) -> None:
    """Noise, false heads and half a frame on the KV ports."""
    noise = random.Random(1)  # noqa: S311
    beginnings = (
        b"GET / HTTP/1.1\r\n\r\n",
        b"AGSY\xff\x01\x00\x00\xff\xff\xff\xff",
        b"AGSY\x02\x01\x00\x00\x00\x10\x00\x00" + b"{" * 4096,
        b"AGSY\x02\x0a\x00\x00\x04\x00\x00\x00" + b"x" * 65_536,
        b"AGSY",
    )

    async def send(number: int) -> None:
        port = attack.at.kv[number % len(attack.at.kv)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write((*beginnings, noise.randbytes(4096))[number % 6])
            await asyncio.wait_for(reader.read(4096), 2)
        finally:
            writer.transport.abort()

    await attack.every(0.01, send)


async def kv_flood(attack: Attack) -> None:
    """More connections than a KV port takes, and none says a word."""
    async with asyncio.TaskGroup() as all_ports:
        for port in attack.at.kv:
            all_ports.create_task(attack.hold(port, 1100, b""))


async def kv_half_open(attack: Attack) -> None:
    """Connections that begin a frame and never end it."""
    frame = b"AGSY\x02\x01\x00\x00\x00\x00\x10\x00"
    async with asyncio.TaskGroup() as all_ports:
        for port in attack.at.kv:
            all_ports.create_task(attack.hold(port, 300, frame, b" "))


async def metrics_flood(attack: Attack) -> None:
    """Pages of the admin ports, as fast as they come."""
    ports = (attack.at.gateway_admin, *attack.at.admin)

    async def read(number: int) -> None:
        port = ports[number % len(ports)]
        await attack.web.get(f"http://127.0.0.1:{port}/metrics")

    await attack.every(0.01, read)


ATTACKS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        overload,
        slow_heads,
        slow_bodies,
        slow_readers,
        silent_connections,
        foreign_prefill,
        foreign_drain,
        foreign_pull,
        kv_garbage,
        kv_flood,
        kv_half_open,
        metrics_flood,
    )
}


async def run(name: str, targets: Targets) -> Counter[str]:
    """Attack until standard input closes; what was done."""
    attack = Attack(targets)
    harm = asyncio.ensure_future(ATTACKS[name](attack))
    reading = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([reading, harm], timeout=MOST_S, return_when=asyncio.FIRST_COMPLETED)
    attack.over.set()
    await harm
    return attack.did


def main() -> None:
    """One attack."""
    name, given = sys.argv[1:]
    os.nice(_POLITE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    fields: dict[str, Any] = json.loads(given)
    did = asyncio.run(run(name, Targets(**fields)))
    sys.stdout.write(json.dumps(did) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread that waits for standard input would hold the end


if __name__ == "__main__":
    main()
