"""Graphs of decodes in two ranks: processes that sum over gloo, with kernels in the interpreter.

What is captured has the ranks' sums in it, as on GPUs. In place of a graph the captured calls are
made again on the buffers that they had; `test_graphs` shows what a graph may not read.
"""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import multiprocessing  # noqa: E402

from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.model.attention import triton_pool  # noqa: E402
from argosy_engine.model.attention.between import Fused  # noqa: E402
from argosy_engine.model.attention.paged import PoolShape  # noqa: E402
from argosy_engine.model.attention.triton_pool import TritonPool  # noqa: E402
from argosy_engine.model.loader import load_weights  # noqa: E402
from argosy_engine.model.share import Share  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.model.trunk import Trunk  # noqa: E402
from argosy_engine.runtime.torch.ranks.group import PartTrunk, RankGroup, listen  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

CPU = torch.device("cpu")
SIZE = 16
STEPS = (
    [(0, 20), (0, 3), (0, 9)],
    [(20, 1), (3, 1), (9, 1)],
    [(21, 1), (4, 1)],
    [(22, 1), (5, 2)],
    [(23, 1), (7, 1), (10, 1), (0, 1), (1, 1)],
)
"""(start, count) of the sequences of each step. Some have a graph."""
BY_GRAPHS = [4, 2]
"""The batch sizes of the graphs."""


def flat_step(work):
    chunks = tuple(
        Chunk(
            request_id=str(row),
            tokens=[(7 + 3 * row + at) % 200 for at in range(start + count)],
            block_table=to_table(1 + 2 * row + at for at in range((start + count - 1) // SIZE + 1)),
            start=start,
            count=count,
            samples=True,
            decode=count == 1,
            sampling=SamplingParams(max_tokens=9, temperature=0.0),
        )
        for row, (start, count) in enumerate(work)
    )
    prompts = [count for _, count in work if count > 1]
    plan = StepPlan(
        index=1, chunks=chunks, block_size=SIZE, prefill_tokens=sum(prompts),
        prefill_sequences=len(prompts), decode_sequences=len(chunks) - len(prompts),
        decode_context_tokens=0, after_idle=False,
    )  # fmt: skip
    return flatten(plan)


class Again:
    """The captured calls, made again."""

    def __init__(self, compute, replayed):
        self._compute, self._replayed = compute, replayed
        compute()

    def replay(self):
        self._replayed.append(self._compute.args[0])
        self._compute()


def run_rank(folder, share, group, capture_fails, capture):
    """The logits of all steps, and the batches of the graphs that computed them."""
    triton_pool._SPLITS = 2  # the interpreter is slow
    whole = read_spec(folder)
    spec = share.of_model(whole)
    weights = load_weights(folder, whole, torch.float32, CPU, share=share, group=group)
    trunk = Trunk(spec, weights, max_positions=64, between=Fused())
    shape = PoolShape(
        blocks=16, layers=spec.layers, kv_heads=spec.kv_heads, block_size=SIZE,
        head_dim=spec.head_dim,
    )  # fmt: skip
    pool = TritonPool(shape, torch.float32, CPU, heads=spec.heads)
    replayed = []
    part = trunk if group is None else PartTrunk(trunk, group, draws=share.rank == 0)

    def make(compute):
        if share.rank in capture_fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return Again(compute, replayed)

    if capture:
        part.capture(pool, 4, make)
    return [part.logits(flat_step(work), pool).clone() for work in STEPS], replayed


def rank_main(folder, rank, port, listener, capture_fails, answers):
    torch.set_num_threads(1)
    group = RankGroup(rank, 2, CPU, port=port, listener=listener)
    logits, replayed = run_rank(folder, Share(rank, 2), group, capture_fails, capture=True)
    answers.put((rank, [one.numpy() for one in logits] if rank == 0 else None, replayed))
    group.least(0)
    group.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("ranks") / "tiny")


@pytest.mark.parametrize(
    ("capture_fails", "replays"), [((), BY_GRAPHS), ((0, 1), [])], ids=["captured", "refused"]
)
def test_two_ranks_with_graphs_compute_the_logits_of_one_without(folder, capture_fails, replays):
    context = multiprocessing.get_context("spawn")
    answers, listener = context.SimpleQueue(), listen()
    port = listener.getsockname()[1]
    processes = [
        context.Process(
            target=rank_main,
            args=(folder, rank, port, None if rank else listener, capture_fails, answers),
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    listener.close()
    found = sorted((answers.get() for _ in processes), key=lambda answer: answer[0])
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    right, _ = run_rank(folder, Share(), None, (), capture=False)
    for step, (logits, one) in enumerate(zip(found[0][1], right, strict=True)):
        torch.testing.assert_close(
            torch.from_numpy(logits), one, rtol=1e-4, atol=1e-4, msg=lambda m, s=step: f"{s}: {m}"
        )
    assert [replayed for _, _, replayed in found] == [replays, replays]
