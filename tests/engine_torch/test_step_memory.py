"""What a step's arrays and its memory cost a GPU: one copy a step, and room for the largest."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model.attention.inputs import Staging  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool  # noqa: E402
from argosy_engine.model.share import Share  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.runtime.torch import runner  # noqa: E402
from argosy_engine.runtime.torch.pool import largest_step, pool_shape  # noqa: E402
from argosy_engine.runtime.torch.sources import TrunkSource, load_model  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

CPU = torch.device("cpu")
MIB = 1 << 20


def config(model="", **options):
    given = {"block_size": 16, "compute": "torch", "dtype": "float32", "threads": 1}
    return EngineConfig(model=str(model), served_name="m", **given | options)


# ------------------------------------------------------------------ arrays


def test_a_copy_that_is_on_its_way_ends_before_its_source_changes():
    class Event:
        """An event whose copy takes what the host buffer holds when it is waited for."""

        seen = None
        waiting = False

        def record(self):
            self.waiting = True

        def synchronize(self):
            if self.waiting:
                self.seen = staging._host[:2].tolist()

    event = Event()
    staging = Staging(CPU, event)
    staging.send([[1, 2]])
    assert event.seen is None
    staging.send([[3, 4]])
    assert event.seen == [1, 2]


# ------------------------------------------------------------------ the pool's size


class Taken:
    """A gauge that runs the step and says how much it took."""

    def __init__(self, taken):
        self.taken = taken

    def peak_bytes(self, run):
        self.out = run()
        return self.taken


@pytest.fixture
def folder(tmp_path):
    return write_tiny(tmp_path / "tiny")


def test_the_largest_step_runs_at_the_start_and_its_memory_stays_free(folder, monkeypatch):
    monkeypatch.setattr("argosy_engine.runtime.torch.pool.available_bytes", lambda: 40 * MIB)
    options = config(
        folder, gpu_memory_utilization=0.5, max_num_seqs=80, max_num_batched_tokens=200
    )
    blocks = []
    for gauge in (None, Taken(5 * MIB)):
        made, _ = runner.load(options, gauge=gauge)
        blocks.append(made.kv_layout().num_blocks)
        made.close()
    block_bytes = 16 * read_spec(folder).kv_bytes_per_token(4)
    assert blocks == [20 * MIB // block_bytes, 15 * MIB // block_bytes]
    assert len(gauge.out.token_ids) == 80
    assert len(gauge.out.likely) == 80


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "step", "left"),
    [
        (100 * GIB, 5 * GIB, 6.5 * GIB),
        (100 * GIB, 0, GIB),
        (4 * GIB, 100 * MIB, 0.8 * GIB + 110 * MIB),
    ],
    ids=["a large GPU", "a step that takes nothing", "a small GPU"],
)
def test_beside_a_measured_step_the_pool_leaves_a_margin_and_no_more(folder, free, step, left):
    spec = read_spec(folder)
    block_bytes = 16 * spec.kv_bytes_per_token(4)
    # So many places that they do not bound the pool.
    shape = pool_shape(config(max_num_seqs=1 << 20), spec, torch.float32, CPU, free, step)
    assert 0 <= free - left - (shape.blocks - 1) * block_bytes <= block_bytes


def test_a_share_that_is_asked_for_counts_beside_a_measured_step(folder):
    spec = read_spec(folder)
    asked = config(max_num_seqs=1 << 20, gpu_memory_utilization=0.5)
    shape = pool_shape(asked, spec, torch.float32, CPU, 100 * GIB, 5 * GIB)
    assert (shape.blocks - 1) * 16 * spec.kv_bytes_per_token(4) == pytest.approx(45 * GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("sequences", "tokens", "context", "counts"),
    [
        (4, 100, 1024, [1, 1, 1, 97]),
        (4, 100, 50, [1, 1, 1, 49]),
        (256, 16, 1024, [1] * 16),
        (1, 2048, 1024, [1023]),
        (2, 1, 64, [1]),
        (2, "auto", 4096, [1, 2047]),
        (2, None, 4096, [1, 2047]),
    ],
)
def test_the_largest_step_fills_the_batch_at_the_end_of_the_context(
    sequences, tokens, context, counts
):
    plan = largest_step(config(max_num_seqs=sequences, max_num_batched_tokens=tokens), context)
    assert [chunk.count for chunk in plan.chunks] == counts
    assert {chunk.start + chunk.count for chunk in plan.chunks} == {context}
    assert {block for chunk in plan.chunks for block in chunk.block_table} == {0}
    assert all(len(chunk.block_table) * 16 >= context for chunk in plan.chunks)


def test_a_pool_that_fits_only_without_the_step_is_refused_by_name(folder):
    spec = read_spec(folder)
    per_token = spec.kv_bytes_per_token(4)
    options = config(folder, kv_cache_tokens=30 * MIB // per_token)
    assert pool_shape(options, spec, torch.float32, CPU, 40 * MIB).blocks > 1
    with pytest.raises(LoadError, match=r"10 MiB are free beside the 30 MiB of a step.*-seqs"):
        pool_shape(options, spec, torch.float32, CPU, 40 * MIB, 30 * MIB)


class Pair:
    """Two ranks as one of them sees them; the other has so much free, and its step takes so much.

    Sums and logits are those of this rank alone.
    """

    def __init__(self, free, taken, kernels=1):
        self.others = [kernels, 0, free, -taken]

    def sum_(self, x):
        pass

    def gather(self, x):
        return [x, x]

    def least(self, number):
        return min(number, self.others.pop(0))


@pytest.mark.parametrize(
    ("free", "taken", "pool"),
    [(40, 3, 5), (12, 3, 1), (40, 8, 2)],
)
def test_ranks_leave_room_for_the_largest_step_of_any_in_what_the_fullest_has(
    folder, monkeypatch, free, taken, pool
):
    """Half of 40 MiB is this rank's part of the CPU, whose step takes 5 MiB."""
    monkeypatch.setattr("argosy_engine.runtime.torch.pool.available_bytes", lambda: 40 * MIB)
    options = config(folder, gpu_memory_utilization=0.5, tensor_parallel_size=2)
    source, gauge = TrunkSource(folder, Share(0, 2)), Taken(5 * MIB)
    loaded = load_model(
        options, source, torch.float32, CPU, None, Pair(free * MIB, taken * MIB), gauge=gauge
    )
    block_bytes = 16 * source.spec.kv_bytes_per_token(4)
    assert loaded.pool.shape.blocks - 1 == pool * MIB // block_bytes
    assert len(gauge.out) == options.max_num_seqs


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_ranks_use_kernels_only_if_they_work_for_all(folder, monkeypatch, here, there):
    class Kernels(PagedPool):
        """As `TritonPool`."""

    chosen = Kernels if here else PagedPool
    monkeypatch.setattr("argosy_engine.runtime.torch.sources.choose_pool", lambda *_: chosen)
    options = config(folder, tensor_parallel_size=2, kv_cache_tokens=64)
    group = Pair(40 * MIB, 0, kernels=int(there))
    source = TrunkSource(folder, Share(0, 2))
    loaded = load_model(options, source, torch.float32, CPU, None, group)
    assert isinstance(loaded.pool, Kernels) is (here and there)
