"""What rank 1 and up compute: their part of each step that rank 0 sends."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from argosy_engine.model.attention.carrier import carrier_of
from argosy_engine.model.attention.paged import HostKv
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.share import Share
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.graphs import beside_largest_graph, cuda_graphs, graph_rows
from argosy_engine.runtime.torch.ranks.group import PartTrunk, RankGroup
from argosy_engine.runtime.torch.ranks.kv import Done, answer
from argosy_engine.runtime.torch.ranks.processes import Hello, Kind, copies_of, receive, step_of
from argosy_engine.runtime.torch.sources import TrunkSource, compute, device_of, load_model


def follow(
    sock: socket.socket, kv: socket.socket, hello: Hello, fail: Callable[[Exception], object]
) -> None:
    """Load this rank's part and do what the frames say, until rank 0 ends. LoadError.

    A thread does what the frames on `kv` say; `fail` gets its error.
    """
    config = hello.config
    if hello.isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = hello.isa
    torch.set_num_threads(config.threads or 1)
    share = Share(hello.rank, config.tensor_parallel_size)
    device = device_of(share)
    group = RankGroup(share.rank, share.ranks, device, port=hello.port)
    source = TrunkSource(Path(config.model), share)
    run = beside_largest_graph(compute, graph_rows(config), draws=False)
    loaded = load_model(config, source, getattr(torch, config.dtype), device, None, group, run=run)
    assert isinstance(loaded.trunk, Trunk)
    trunk = PartTrunk(loaded.trunk, group, draws=False)
    host, done = HostKv(loaded.pool), Done()

    def exchange() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # each thread has its own
            answer(kv, carrier_of(loaded.pool.memory.view(torch.uint8)), done)
        except Exception as error:  # whatever it is
            fail(error)

    threading.Thread(target=exchange, name="kv", daemon=True).start()
    while (frame := receive(sock)) is not None:
        kind, numbers = frame
        match kind:
            case Kind.STEP:
                trunk.logits(step_of(numbers), loaded.pool)
            case Kind.CAPTURE:
                assert isinstance(loaded.pool, TritonPool)  # as rank 0 has
                trunk.capture(loaded.pool, int(numbers[0]), cuda_graphs(device))
            case Kind.TO_HOST:
                host.take(copies_of(numbers))
            case Kind.FROM_HOST:
                host.give(copies_of(numbers))
            case Kind.RESERVE:
                host.reserve(int(numbers[0]))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # KV is exchanged beside it
        done.advance()
