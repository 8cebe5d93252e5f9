"""Engines without HTTP in one process: real loops, schedulers and KV services on loopback.

Their KV is the token ids themselves, so that a test can read which text a block holds.
"""

import asyncio
import contextlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from zlib import crc32

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool, HostPool, hashes_of
from argosy_engine.core.capacity import GuaranteedNoEvict, MaxUtilization
from argosy_engine.core.handover.messages import FailedPrefill
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.preemption import Preemption
from argosy_engine.core.request import Emission, NewRequest, Sequence, to_table
from argosy_engine.core.runner import InPlace
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.loop import EngineLoop, Worker
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.sim import SimProfile, SimRunner
from argosy_engine.transfer.service import KvService

BLOCK = 16
QUICK = SimProfile(
    prefill_ms=0.5,
    prefill_ms_per_token=0.0,
    prefill_ms_per_token_squared=0.0,
    decode_ms=0.5,
    decode_ms_per_context_token=0.0,
    decode_ms_per_sequence=0.0,
    kv_tokens=4096,
    kv_bytes_per_token=4,
    transfer_bytes_per_s=1e9,
    max_model_len=2048,
)


class TextRunner(SimRunner):
    """A timing model whose blocks hold bytes: each token's id, 4 bytes."""

    def __init__(self, preset: str, config: EngineConfig) -> None:
        super().__init__(preset, QUICK, config)
        self._layout = replace(self._layout, wire_block_bytes=4 * BLOCK)
        self.memory = [bytearray(4 * BLOCK) for _ in range(self._layout.num_blocks + 1)]

    def execute(self, plan):
        for chunk in plan.chunks:
            for at in range(chunk.start, chunk.start + chunk.count):
                block = self.memory[chunk.block_table[at // BLOCK]]
                struct.pack_into("I", block, 4 * (at % BLOCK), chunk.tokens[at])
        drawn = [self._draw(chunk) for chunk in plan.chunks if chunk.samples]
        return replace(super().execute(plan), token_ids=drawn)

    def reserve_host(self, slots):
        self.host = [bytearray(4 * BLOCK) for _ in range(slots)]

    def to_host(self, copies):
        for block, slot in copies:
            self.host[slot][:] = self.memory[block]

    def from_host(self, copies):
        for block, slot in copies:
            self.memory[block][:] = self.host[slot]

    def _draw(self, chunk):
        """A token that depends on all KV before it, as a model's does."""
        end = 4 * (chunk.start + chunk.count)
        known = b"".join(self.memory[block] for block in chunk.block_table)[:end]
        return 3 + crc32(known) % (self.vocab_size - 3)

    def outgoing(self, block_ids):
        return InPlace([memoryview(self.memory[block]) for block in block_ids])

    incoming = outgoing


class TextLauncher:
    """Runs what is launched on a thread of its own, on copies of what it was launched with."""

    def __init__(self, runner: TextRunner) -> None:
        self._runner = runner
        self.thread = Worker("device")

    def launch(self, plan, after):
        chunks = [
            replace(chunk, tokens=list(chunk.tokens), block_table=to_table(chunk.block_table))
            for chunk in plan.chunks
        ]

        def run():
            for chunk, row in zip(chunks, plan.drawn or (), strict=plan.drawn is not None):
                chunk.tokens[chunk.start :] = [after.result().token_ids[row]]
            return self._runner.execute(replace(plan, chunks=tuple(chunks)))

        return self.thread.call(run)


class Client:
    """Keeps what it is sent; the engine's thread calls it."""

    def __init__(self) -> None:
        self.prefill_pod = ""
        self.failed_prefills: tuple[FailedPrefill, ...] = ()
        self.pull_whole: bool | None = None
        self.ids: list[int] = []
        self.code = self.message = ""
        self.end: str | None = None

    def emit(self, *emissions: Emission) -> None:
        for emission in emissions:
            if emission.token_id is not None:
                self.ids.append(emission.token_id)
            if emission.reason == "error":
                self.code, self.message = emission.code, emission.message
            self.end = emission.reason or self.end

    def refuse(self, refusal: Refusal) -> None:
        self.end = refusal.code


class Node:
    """One engine: `address` is where its KV server listens."""

    def __init__(
        self,
        role: str,
        preset: str,
        *,
        host: str = "127.0.0.1",
        evicts: bool = False,
        host_slots: int = 0,
        ahead: bool = False,
        **options,
    ) -> None:
        """`ahead`: steps are launched before the last one's tokens are read."""
        self.host = f"[{host}]" if ":" in host else host
        doors = ("authorize", "credential", "server_ssl", "client_ssl")
        trust = {name: options.pop(name, None) for name in doors}
        config = EngineConfig(
            model=f"sim:{preset}", served_name="m", role=role, host=host, kv_port=0,
            block_size=BLOCK, pod_name=f"{role}-pod",
            **{"max_num_batched_tokens": 512, "kv_transport": "tcp", **options},
        )  # fmt: skip
        self.runner = TextRunner(preset, config)
        self.runner.reserve_host(host_slots)
        self.scheduler = Scheduler(
            pool=BlockPool(num_blocks=self.runner.kv_layout().num_blocks, block_size=BLOCK),
            limits=Limits(
                max_num_seqs=8,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_queue=8,
                vocab_size=self.runner.vocab_size,
                pull_timeout_s=config.kv_timeout_s,
                on_pull_failure=config.kv_on_failure,
            ),
            policy=MaxUtilization() if evicts else GuaranteedNoEvict(),
            preemption=Preemption("swap", HostPool(host_slots)),
            eos=frozenset(),
            max_model_len=self.runner.max_model_len,
        )
        self.metrics = EngineMetrics(config, max_model_len=self.runner.max_model_len)
        self.launcher = TextLauncher(self.runner) if ahead else None
        self.loop = EngineLoop(
            scheduler=self.scheduler,
            runner=self.runner,
            metrics=self.metrics,
            deliver=self._deliver,
            launcher=self.launcher,
        )
        self.loop.prefills_for_peers = role != "decode"
        self.loop.lease_s = config.lease_s
        self.kv = KvService(
            config=config, runner=self.runner, prefill=self.loop, post=self._post, **trust
        )
        self.events: list[object] = []  # what the KV service told the loop
        self.kv.start()
        self.loop.start(self.kv)
        if config.kv_transport == "nixl":
            assert self.kv.link is not None, "install the package nixl"
            assert self.kv.link.wait(), "NIXL does not start"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.kv.port}"

    def _deliver(self, batch) -> None:
        for client, event in batch:
            client.refuse(event) if isinstance(event, Refusal) else client.emit(event)

    def _post(self, event) -> None:
        self.events.append(event)
        self.loop.post(event)

    def ask(
        self,
        prompt: list[int],
        *candidates: str,
        max_tokens: int = 3,
        name: str = "r",
        priority: int = 0,
        kept: bool = False,
        **sampling: object,
    ) -> Client:
        """Submit; the answer grows while the caller looks at it."""
        client = Client()
        request = NewRequest(
            request_id=name,
            token_ids=prompt,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling),
            arrival_s=0.0,
            candidates=candidates,
            first_has_kv=kept,
            priority=priority,
        )
        refusal = self.loop.submit(request, client)
        if refusal is not None:
            client.refuse(refusal)
        return client

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def text_of(self, prompt: list[int]) -> list[int]:
        """The ids that this engine's pool holds where it believes to hold `prompt`'s blocks."""
        request = NewRequest(
            request_id="probe", token_ids=prompt, sampling=SamplingParams(max_tokens=1),
            arrival_s=0.0,
        )  # fmt: skip
        # Not added to the scheduler: its thread would compute it.
        probe = Sequence(request=request, tokens=list(prompt), arrival_index=0)
        blocks = self.scheduler.pool.match(hashes_of(probe, len(prompt) // BLOCK, BLOCK))
        data = b"".join(self.runner.memory[block] for block in blocks)
        return list(struct.unpack(f"{len(data) // 4}I", data))

    def hold_steps(self) -> tuple[threading.Event, threading.Event]:
        """Steps wait from now on: (set when one has begun, to be set to let them go)."""
        computing, go_on = threading.Event(), threading.Event()
        execute = self.runner.execute

        def slow(plan):
            computing.set()
            go_on.wait(5)
            return execute(plan)

        self.runner.execute = slow
        return computing, go_on

    def assert_empty(self) -> None:
        """No request, block or lease is left. Its threads announce nothing."""
        deadline = time.monotonic() + 20
        while left := self._left():
            assert time.monotonic() < deadline, left
            time.sleep(0.002)

    def _left(self) -> dict[str, int]:
        found = {
            "requests": len(self.scheduler.sequences),
            "blocks": self.scheduler.pool.used,
            "leases": self.loop.leases.active,
        }
        return {name: count for name, count in found.items() if count}

    def close(self) -> None:
        self.loop.stop()
        self.kv.close()
        if self.launcher is not None:
            self.launcher.thread.end()


@contextlib.contextmanager
def node(role: str, *, preset: str = "text", **options) -> Iterator[Node]:
    with nothing_unhandled():
        started = Node(role, preset, **options)
        try:
            yield started
            started.assert_empty()
        finally:
            started.close()


@contextlib.contextmanager
def nothing_unhandled() -> Iterator[None]:
    """No task or callback of an event loop ends in an error that nobody handles."""
    errors: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    keep = Keep(logging.ERROR)
    logging.getLogger("asyncio").addHandler(keep)
    try:
        yield
    finally:
        logging.getLogger("asyncio").removeHandler(keep)
    assert not errors


async def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Await a state of another thread, which announces nothing."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
