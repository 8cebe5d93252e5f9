"""What a handover of KV costs, beside a raw copy and beside a decode step.

The prefill engine is a process of its own. The decode engine is in this process, so that the events
of its pulls can be timed. Both are the engine's own loop, scheduler and KV service.

`kv_tcp_over_loopback_rate`: pools of SmolLM2-135M's shape without a model, so that nothing is
computed meanwhile. Pulls alternate with raw copies of as many bytes over a new connection between
two processes. The clock of both runs from the request for the bytes to the last byte.

`kv_exposed_over_decode_step`: SmolLM2-135M itself, prompts of 512 tokens. The exposed time runs
from the first token to the last byte of KV, and a decode step of that context is measured in turn.
"""

import itertools
import os
import queue
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from argosy_engine.config import EngineConfig, KvTransport, Role
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullDone,
    PullEvent,
    PullFailed,
    PullReady,
)
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.request import Emission, NewRequest
from argosy_engine.core.runner import InPlace, Runner
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.sim import SimProfile, SimRunner
from argosy_engine.transfer.service import KvService
from local.figures import Figure, Figures, Target

PULLS = 15
"""Runs of each of two alternating measurements; their medians count."""
LONG, SHORT = 2048, 512
"""Tokens of a prompt whose rate is measured, and of one whose exposed time is."""
_BLOCK = 32
_BLOCK_BYTES = 23_040 * _BLOCK
"""SmolLM2-135M in bfloat16: 30 layers · 2 · 3 KV heads · 64 · 2 bytes a token."""
_POOL_BLOCKS = 3 * LONG // _BLOCK
_COPY = "from argosy_bench.gateway.kv import send_copies; send_copies()"

RATES = (
    Figure("kv_tcp_gb_per_s", "GB/s", digits=2),
    Figure("loopback_gb_per_s", "GB/s", digits=2),
    Figure("kv_tcp_over_loopback_rate", target=Target(">=", 0.5), digits=2),
    Figure("kv_nixl_over_tcp_rate", digits=2),
    Figure("kv_nixl_same_node_over_tcp_rate", digits=2),
)
EXPOSED = (
    Figure("kv_exposed_ms", "ms", digits=2),
    Figure("decode_step_ms", "ms", digits=2),
    Figure("kv_exposed_over_decode_step", target=Target("<=", 1.0), digits=2),
)

_QUICK = SimProfile(
    prefill_ms=0.1,
    prefill_ms_per_token=0.0,
    prefill_ms_per_token_squared=0.0,
    decode_ms=0.1,
    decode_ms_per_context_token=0.0,
    decode_ms_per_sequence=0.0,
    kv_tokens=_POOL_BLOCKS * _BLOCK,
    kv_bytes_per_token=_BLOCK_BYTES // _BLOCK,
    transfer_bytes_per_s=1e12,
    max_model_len=_POOL_BLOCKS * _BLOCK,
)


class PoolRunner(SimRunner):
    """Computes nothing, and holds a pool of real bytes that are transferred as a model's are."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__("pool", _QUICK, config)
        self.on_cpu = True
        self._memory = np.zeros((self._layout.num_blocks + 1, _BLOCK_BYTES), np.uint8)
        self._layout = self._layout.__class__(
            fingerprint="pool", block_size=_BLOCK, num_blocks=_POOL_BLOCKS,
            block_bytes=_BLOCK_BYTES, wire_block_bytes=_BLOCK_BYTES,
        )  # fmt: skip

    def warm_up(self) -> None:
        self._memory[:] = np.random.default_rng(0).integers(0, 256, _BLOCK_BYTES, np.uint8)

    def outgoing(self, block_ids: Sequence[int]) -> InPlace:
        return InPlace([self._memory[block].data.cast("B") for block in block_ids])

    incoming = outgoing


class End:
    """One engine without HTTP; `events` are those of its pulls, with the time of each."""

    def __init__(self, role: Role, model: str, transport: KvTransport = "tcp") -> None:
        self.config = EngineConfig(
            model=model, served_name="bench", role=role, host="127.0.0.1", kv_port=0,
            kv_transport=transport,
            kv_cache_tokens=_POOL_BLOCKS * _BLOCK, max_num_batched_tokens=LONG, threads=1,
        )  # fmt: skip
        self.runner = _runner(self.config)
        self.runner.warm_up()
        layout = self.runner.kv_layout()
        scheduler = Scheduler(
            pool=BlockPool(num_blocks=layout.num_blocks, block_size=layout.block_size),
            limits=Limits(max_num_seqs=8, max_num_batched_tokens=LONG, max_queue=8),
            policy=MaxUtilization(),
            eos=frozenset(),
            max_model_len=self.runner.max_model_len,
        )
        self.loop = EngineLoop(
            scheduler=scheduler,
            runner=self.runner,
            metrics=EngineMetrics(self.config, max_model_len=scheduler.max_model_len),
            deliver=lambda batch: [_give(sink, event) for sink, event in batch],  # type: ignore[func-returns-value, arg-type]
        )
        self.events: queue.SimpleQueue[tuple[float, PullEvent]] = queue.SimpleQueue()
        self.service = KvService(
            config=self.config, runner=self.runner, prefill=self.loop, post=self._post
        )
        self.service.start()
        self.loop.start(self.service)
        if (link := self.service.link) is not None and not link.wait():
            raise RuntimeError("NIXL does not start; the warning above says why")
        self._names = itertools.count()

    def _post(self, event: PullEvent) -> None:
        self.events.put((time.perf_counter(), event))
        self.loop.post(event)

    def pull(self, prompt: list[int], address: str) -> tuple[PullDone, float]:
        """One request of one token: the end of its pull, and seconds since its first token."""
        client = _Client()
        request = NewRequest(
            request_id=f"bench-{next(self._names)}",
            token_ids=prompt,
            sampling=SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
            arrival_s=time.monotonic(),
            candidates=(address,),
        )
        if refusal := self.loop.submit(request, client):
            raise RuntimeError(f"the decode engine refused a prompt: {refusal.message}")
        ready_at = 0.0
        while True:
            at, event = self.events.get(timeout=60)
            if isinstance(event, PullReady):
                ready_at = at
            elif isinstance(event, PullFailed):
                raise RuntimeError(f"a pull failed: {event.message}")
            elif isinstance(event, PullDone):
                client.ended.get(timeout=60)
                return event, at - ready_at

    def close(self) -> None:
        self.loop.stop()
        self.service.close()


class _Client:
    prefill_pod = ""
    failed_prefills: tuple[FailedPrefill, ...] = ()
    pull_whole: bool | None = None

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, *emissions: Emission) -> None:
        if (reason := emissions[-1].reason) is not None:  # an end comes last
            self.ended.put(reason)

    def refuse(self, refusal: Refusal) -> None:
        raise RuntimeError(refusal.message)


def _give(sink: _Client, event: Emission | Refusal) -> None:
    sink.refuse(event) if isinstance(event, Refusal) else sink.emit(event)


def _runner(config: EngineConfig) -> Runner:
    if config.model == "pool":
        return PoolRunner(config)
    from argosy_engine.runtime.torch.runner import load  # seconds

    return load(config)[0]


def serve_prefill(model: str, transport: KvTransport) -> None:
    """A prefill engine until standard input ends; prints its port."""
    end = End("prefill", model, transport)
    sys.stdout.write(f"{end.service.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    end.close()


def send_copies() -> None:
    """Send as many bytes as each connection asks for, until this process is ended."""
    data = memoryview(bytes(range(256)) * (LONG // _BLOCK * _BLOCK_BYTES // 256))
    with socket.create_server(("127.0.0.1", 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            sock, _ = server.accept()
            with sock:
                while asked := sock.recv(8):
                    sock.sendall(data[: int.from_bytes(asked)])


@contextmanager
def _process(*command: str) -> Iterator[int]:
    """The port that it prints."""
    child = subprocess.Popen(  # noqa: S603 - this module itself
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.terminate()
        child.wait()
        child.stdout.close()


def _copy_s(port: int, into: memoryview) -> float:
    """Seconds in which `into` is filled over a new connection, by nothing but recv_into."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        sock.sendall(len(into).to_bytes(8))
        rest = into
        while rest:
            rest = rest[sock.recv_into(rest) :]
        return time.perf_counter() - began


def prompt_of(tokens: int, index: int) -> list[int]:
    """A prompt that shares no block with one of another index."""
    return [10 + index] * _BLOCK + [7] * (tokens - _BLOCK)


def measure_rate(figures: Figures) -> None:
    """Bytes a second of pulls, and of raw copies of the same size in turn."""
    size = LONG // _BLOCK * _BLOCK_BYTES
    into = memoryview(bytearray(size))
    pulls, copies = [], []
    decode = End("decode", "pool")
    try:
        with _process("-m", __name__, "pool", "tcp") as kv, _process("-c", _COPY) as raw:
            for index in range(1 + PULLS):
                done, _ = decode.pull(prompt_of(LONG, index), f"127.0.0.1:{kv}")
                if done.bytes_moved != size:
                    raise RuntimeError(f"{done.bytes_moved} bytes came instead of {size}")
                pulls.append(size / done.seconds)
                copies.append(size / _copy_s(raw, into))
    finally:
        decode.close()
    ratios = [pull / copy for pull, copy in zip(pulls[1:], copies[1:], strict=True)]
    figures.put("kv_tcp_gb_per_s", statistics.median(pulls[1:]) / 1e9)
    figures.put("loopback_gb_per_s", statistics.median(copies[1:]) / 1e9)
    figures.put("kv_tcp_over_loopback_rate", statistics.median(ratios))


def measure_nixl(figures: Figures) -> None:
    """Bytes a second of pulls over NIXL, and of the same pulls over TCP in turn."""
    for name, links in (("kv_nixl_over_tcp_rate", "tcp"), ("kv_nixl_same_node_over_tcp_rate", "")):
        with _ucx(links):
            figures.put(name, _nixl_over_tcp())


def _nixl_over_tcp() -> float:
    size = LONG // _BLOCK * _BLOCK_BYTES
    nixl, tcp = End("decode", "pool", "nixl"), End("decode", "pool")
    command = ("-m", __name__, "pool")
    ratios = []
    try:
        with _process(*command, "nixl") as one, _process(*command, "tcp") as other:
            for index in range(1 + PULLS):
                prompt = prompt_of(LONG, index)
                fast, _ = nixl.pull(prompt, f"127.0.0.1:{one}")
                slow, _ = tcp.pull(prompt, f"127.0.0.1:{other}")
                if nixl.service.link is None or not nixl.service.link.offer:
                    raise RuntimeError("NIXL failed meanwhile; the warning above says why")
                assert fast.bytes_moved == slow.bytes_moved == size
                ratios.append(slow.seconds / fast.seconds)
    finally:
        nixl.close()
        tcp.close()
    return statistics.median(ratios[1:])


@contextmanager
def _ucx(links: str) -> Iterator[None]:
    """Processes that start meanwhile use these of UCX's transports; empty: what it finds best."""
    if links:
        os.environ["UCX_TLS"] = links
    try:
        yield
    finally:
        os.environ.pop("UCX_TLS", None)


def measure_exposure(figures: Figures, model: str) -> None:
    """Time between first token and KV, and a decode step behind the same prompt in turn."""
    from argosy_bench.engine.steps import CONTEXT, chunk_of, plan_of

    decode = End("decode", model)
    _touch_pool(decode.runner)
    plan = plan_of((chunk_of(0, SHORT, 1),))
    assert CONTEXT < SHORT
    exposed, steps = [], []
    try:
        with _process("-m", __name__, model, "tcp") as port:
            for index in range(1 + PULLS):
                exposed.append(decode.pull(prompt_of(SHORT, index), f"127.0.0.1:{port}")[1])
                steps.append(decode.runner.execute(plan).busy_s)  # the loop is idle
    finally:
        decode.close()
    figures.put("kv_exposed_ms", statistics.median(exposed[1:]) * 1e3)
    figures.put("decode_step_ms", statistics.median(steps[1:]) * 1e3)
    ratios = [late / step for late, step in zip(exposed[1:], steps[1:], strict=True)]
    figures.put("kv_exposed_over_decode_step", statistics.median(ratios))


def _touch_pool(runner: Runner) -> None:
    """Write every block once. In a pod that has served, no block waits for the kernel's zero pages;
    in a new one the first pull into each page does, which can take longer than the transfer."""
    for view in runner.incoming(range(runner.kv_layout().num_blocks)).views:
        view[:] = bytes(view.nbytes)


def measure(figures: Figures, model: Path) -> None:
    """Put every figure; where the model's folder is absent only the rates."""
    figures.declare(RATES)
    measure_rate(figures)
    measure_nixl(figures)
    if not model.is_dir():
        figures.notes["exposed"] = "not measured: no weights (python -m local.weights.smollm2)"
        return
    figures.declare(EXPOSED)
    measure_exposure(figures, str(model))
    figures.notes |= {"model": model.name, "rate_tokens": LONG, "exposed_tokens": SHORT}


if __name__ == "__main__":
    serve_prefill(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]
