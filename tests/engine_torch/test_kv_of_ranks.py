"""Handovers between engines of several ranks, over real sockets and processes.

A block that leaves is that of one rank, whatever the number of ranks, so what comes is as well.
"""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.errors import RankLostError  # noqa: E402
from argosy_engine.model.attention.carrier import carrier_of  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.share import Share  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.runtime.torch.ranks.kv import Done, JoinedCarrier, answer  # noqa: E402
from tests.engine.processes import eventually  # noqa: E402
from tests.engine_torch.engines import engine  # noqa: E402
from tests.engine_torch.test_tensor_parallel import (  # noqa: E402
    MODELS,
    children_of,
    config_of,
    is_over,
    loaded,
    write_model,
)

BLOCKS, LAYERS, BLOCK, DIM = 9, 3, 4, 6
PROMPTS = ("x", "The quick brown fox jumps over the lazy dog, again and again. " * 3)
RECEIVED = 'argosy_kv_transfer_seconds_count{side="receive"}'
PULLING = 'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"}'


# ----------------------------------------------------------------- the cut by heads


class Others:
    """`Ranks` whose ranks are threads."""

    def __init__(self, pools):
        self.size = len(pools)
        self.done = 0
        pairs = [socket.socketpair() for _ in pools[1:]]
        self.kv_sockets = [ours for ours, _ in pairs]
        self.steps = [Done() for _ in pairs]
        self.threads = [
            threading.Thread(target=answer, args=(theirs, carrier_of(bytes_of(pool)), done))
            for pool, done, (_, theirs) in zip(pools[1:], self.steps, pairs, strict=True)
        ]
        for thread in self.threads:
            thread.start()

    def fail(self, error):
        raise error

    def close(self):
        for ours in self.kv_sockets:
            ours.close()
        for thread in self.threads:
            thread.join()


@pytest.fixture(scope="module")
def spec_of(tmp_path_factory):
    def read(kv_heads):
        changed = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": DIM}
        return read_spec(write_model(tmp_path_factory.mktemp("model") / "m", **changed))

    return read


@contextmanager
def pools_of(spec, ranks):
    """(the pool of each rank, the KV of all)"""
    shapes = [
        PoolShape(
            blocks=BLOCKS,
            layers=LAYERS,
            kv_heads=Share(rank, ranks).of_model(spec).kv_heads,
            block_size=BLOCK,
            head_dim=DIM,
        )
        for rank in range(ranks)
    ]
    pools = [PagedPool(shape, torch.bfloat16, torch.device("cpu")) for shape in shapes]
    others = Others(pools)
    kv = JoinedCarrier(carrier_of(bytes_of(pools[0])), others, pools[0], spec)
    try:
        yield pools, kv
    finally:
        kv.close()
        others.close()


def read(kv, block_ids):
    """The bytes of blocks."""
    blocks = kv.outgoing(block_ids)
    blocks.wait()
    return b"".join(blocks.views)


def fill(kv, block_ids, data):
    """Room with these bytes."""
    blocks = kv.incoming(block_ids)
    at = 0
    for view in blocks.views:
        view[:] = data[at : at + len(view)]
        at += len(view)
    return blocks


def write(kv, block_ids, data):
    blocks = fill(kv, block_ids, data)
    blocks.land()
    blocks.wait()


def cut(blocks, spec, rank, ranks):
    """The part of whole blocks [count, LAYERS · 2, kv heads, BLOCK, DIM] that a rank holds."""
    return blocks[:, :, Share(rank, ranks).kv_heads(spec)].flatten(1)


def bytes_of(pool):
    return pool.memory.view(torch.uint8)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_blocks_leave_and_land_as_those_of_one_rank(spec_of, kv_heads, ranks):
    spec = spec_of(kv_heads)
    whole = torch.randn(BLOCKS, LAYERS * 2, kv_heads, BLOCK, DIM).bfloat16()
    with pools_of(spec, ranks) as (pools, kv):
        for rank, pool in enumerate(pools):
            pool.memory.copy_(cut(whole, spec, rank, ranks))
        left = read(kv, [7, 2, 3])
        assert left == whole[[7, 2, 3]].view(torch.uint8).numpy().tobytes()
        write(kv, [1, 8, 4], left)
        whole[[1, 8, 4]] = whole[[7, 2, 3]]
        for rank, pool in enumerate(pools):
            assert torch.equal(pool.memory, cut(whole, spec, rank, ranks))


def test_a_rank_exchanges_kv_only_when_it_has_done_what_rank_0_has_done(spec_of):
    """A block that comes may be one that a step of the rank still reads."""
    spec = spec_of(2)
    with pools_of(spec, 2) as (pools, kv):
        (done,) = kv._ranks.steps
        kv._ranks.done = 2
        coming = fill(kv, [5], b"\1" * kv.incoming([5]).views[0].nbytes)
        coming.land()
        done.advance()
        eventually(lambda: pools[0].memory[5].all())  # rank 0's own part
        assert not pools[1].memory[5].any()
        done.advance()
        coming.wait()
        assert pools[1].memory[5].all()


def test_many_threads_exchange_kv_at_once(spec_of):
    spec = spec_of(4)
    with pools_of(spec, 2) as (_, kv), ThreadPoolExecutor(BLOCKS) as threads:
        size = kv.incoming([1]).views[0].nbytes

        def exchange(block):
            for turn in range(20):
                wanted = bytes([(block * 20 + turn) % 256]) * size
                write(kv, [block], wanted)
                assert read(kv, [block]) == wanted

        list(threads.map(exchange, range(BLOCKS)))


# ----------------------------------------------------------------- a runner


def test_a_rank_that_dies_ends_the_engine_in_the_middle_of_an_exchange(tmp_path):
    config = config_of(write_model(tmp_path / "model"), 2)
    with loaded(config) as runner:
        (pid,) = runner.trunk.ranks.pids
        os.kill(pid, signal.SIGSTOP)
        leaving = runner.outgoing([1, 2, 3])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RankLostError, match=f"process {pid}.* ended: SIGKILL"):
            leaving.wait()


def test_layouts_do_not_depend_on_the_number_of_ranks(tmp_path):
    """One KV head on two ranks takes memory twice and is handed over once."""
    model = write_model(tmp_path / "model", **MODELS["Qwen2 with one KV head"])
    with loaded(config_of(model, 1)) as one, loaded(config_of(model, 2)) as two:
        layouts = one.kv_layout(), two.kv_layout()
    assert layouts[1] == replace(layouts[0], tp=2, copies=2)


# ----------------------------------------------------------------- engines


def ranks(count):
    return ("--compute", "torch", *(("--tensor-parallel-size", str(count)) if count > 1 else ()))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("fleet") / "model", **MODELS["Llama"])


@pytest.fixture(scope="module")
def texts(model, tmp_path_factory):
    """Of an engine of one rank."""
    with engine(model, "colocated", tmp_path_factory.mktemp("log") / "c", *ranks(1)) as colocated:
        return [colocated.complete(prompt, 48) for prompt in PROMPTS]


def test_t50_texts_apart_are_those_of_one_rank_whatever_the_sizes(tmp_path, model, texts):
    """One engine of two ranks begins as decode and becomes prefill."""
    role = tmp_path / "role"
    role.write_text("decode")
    changes = ("--role-file", str(role))
    with (
        engine(model, "decode", tmp_path / "b", *ranks(2), *changes) as both,
        engine(model, "prefill", tmp_path / "p", *ranks(1)) as prefill,
        engine(model, "decode", tmp_path / "1", *ranks(1)) as one,
        engine(model, "decode", tmp_path / "2", *ranks(2)) as two,
    ):
        assert [both.complete(prompt, 48, prefill) for prompt in PROMPTS] == texts
        role.write_text("prefill")
        drain = f"http://127.0.0.1:{both.admin}/drain"
        eventually(lambda: httpx.get(drain).json()["role"] == "prefill")
        for decode in (one, two):
            assert [decode.complete(prompt, 48, both) for prompt in PROMPTS] == texts
        for decode in (one, two, both):
            assert decode.metric(RECEIVED) == len(PROMPTS)


def test_t50_a_prefill_engine_that_loses_a_rank_costs_no_text(tmp_path, model, texts):
    told = tmp_path / "told"
    options = (*ranks(2), "--termination-message", str(told))
    with (
        engine(model, "prefill", tmp_path / "p", *options) as prefill,
        engine(model, "decode", tmp_path / "d", *ranks(1)) as decode,
        ThreadPoolExecutor(1) as client,
    ):
        (rank,) = children_of(prefill.pid)
        os.kill(rank, signal.SIGSTOP)
        asked = client.submit(decode.complete, PROMPTS[1], 48, prefill)
        eventually(lambda: decode.metric(PULLING) == 1)
        os.kill(rank, signal.SIGKILL)
        assert asked.result(60) == texts[1]
        eventually(lambda: is_over(prefill.pid))
        assert decode.metric(RECEIVED) == 0
    assert json.loads(told.read_text())["reason"] == "RankLost"
