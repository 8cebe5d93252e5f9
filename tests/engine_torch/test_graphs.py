"""Decodes padded to a graph's batch, as a tape replays what a graph captures (see `tape`)."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from dataclasses import replace  # noqa: E402

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.model.attention import inputs as inputs_module  # noqa: E402
from argosy_engine.model.attention.inputs import Decodes  # noqa: E402
from argosy_engine.runtime.torch.graphs import (  # noqa: E402
    MOST_ROWS,
    batch_sizes,
    beside_largest_graph,
    capture_decodes,
    graph_rows,
)
from tests.engine_torch.tape import Questions, Tape  # noqa: E402

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=9, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=1.0, seed=4)
ASKED = [
    GREEDY,
    replace(SAMPLED, top_k=5, top_p=0.9),
    SAMPLED,
    replace(SAMPLED, top_p=0.7, seed=5),
    GREEDY,
]
SIZE = 16


def decodes(starts, drawn=None, asked=ASKED, blocks=2):
    """A step of one token for each text that has so many before it; each has blocks of its own."""
    chunks = tuple(
        Chunk(
            request_id=str(row),
            tokens=[(7 + 3 * row + at) % 200 for at in range(start + 1)],
            block_table=to_table(1 + blocks * row + at for at in range(start // SIZE + 1)),
            start=start,
            count=1,
            samples=True,
            decode=True,
            sampling=asked[row % len(asked)],
        )
        for row, start in enumerate(starts)
    )
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=SIZE,
        prefill_tokens=0,
        prefill_sequences=0,
        decode_sequences=len(chunks),
        decode_context_tokens=sum(starts) + len(chunks),
        after_idle=False,
        drawn=drawn,
    )


# ------------------------------------------------------------------ batches


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 100, 256, 1000])
def test_a_step_of_any_number_of_rows_is_padded_by_less_than_half(most):
    sizes = batch_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, MOST_ROWS)
    for rows in range(1, sizes[-1] + 1):
        size = next(size for size in sizes if size >= rows)
        assert 2 * (size - rows) < size
        assert size - rows < 16


# ------------------------------------------------------------------ inputs


def test_rows_of_the_padding_read_and_write_the_null_block_alone():
    inputs = Decodes(CPU, 5)
    assert inputs.send(flatten(decodes([39, 3], blocks=3)), None, 4)
    assert inputs.token_ids[:4].tolist() == [46, 13, 0, 0]
    assert inputs.drawn[:4].tolist() == [-1] * 4
    assert inputs.positions[:4].tolist() == [39, 3, 0, 0]
    assert inputs.slots[:4].tolist() == [3 * SIZE + 7, 4 * SIZE + 3, 0, 0]
    assert inputs.lengths[:4].tolist() == [40, 4, 1, 1]
    assert inputs.begins[:4].tolist() == [1, 4, 0, 0]
    assert inputs.tables[:5].tolist() == [0, 1, 2, 3, 4]


@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_inputs_are_those_of_the_step_and_stay_where_they_are(steps):
    inputs = Decodes(CPU, 8)
    places = [one.data_ptr() for one in vars(inputs).values() if isinstance(one, torch.Tensor)]
    for starts, ahead in steps:
        rows = tuple(reversed(range(len(starts)))) if ahead else None
        flat = flatten(decodes(starts, rows, blocks=4))
        assert inputs.send(flat, rows, 8)
        count = len(starts)
        assert inputs.token_ids[:8].tolist() == flat.token_ids + [0] * (8 - count)
        assert inputs.drawn[:8].tolist() == list(rows or [-1] * count) + [-1] * (8 - count)
        assert inputs.lengths[:8].tolist() == flat.kv_lens + [1] * (8 - count)
        tables = inputs.tables.tolist()
        for row, begin in enumerate(inputs.begins[:8].tolist()):
            table = list(flat.block_tables[row]) if row < count else [0]
            assert tables[begin : begin + len(table)] == table
    found = [one.data_ptr() for one in vars(inputs).values() if isinstance(one, torch.Tensor)]
    assert found == places


def test_a_copy_that_is_on_its_way_ends_before_its_source_changes():
    class Event:
        """An event whose copy takes what the host buffer holds when it is waited for."""

        seen = None
        waiting = False

        def record(self):
            self.waiting = True

        def synchronize(self):
            if self.waiting:
                self.seen = int(inputs._host[0])

    event = Event()
    inputs = Decodes(CPU, 1, event)
    inputs.send(flatten(decodes([0])), None, 1)
    assert event.seen is None
    inputs.send(flatten(decodes([5])), None, 1)
    assert event.seen == 7


def test_tables_without_room_are_not_sent(monkeypatch):
    monkeypatch.setattr(inputs_module, "TABLE_ROOM", 4)
    inputs = Decodes(CPU, 2)
    assert inputs.send(flatten(decodes([39], blocks=3)), None, 2)
    before = inputs._there.clone()
    assert not inputs.send(flatten(decodes([39, 0], blocks=3)), None, 2)
    assert torch.equal(inputs._there, before)


# ------------------------------------------------------------------ the tape itself


class Kept:
    """An owner."""

    def __init__(self):
        self.number = torch.tensor([1.0])
        self.sum = torch.zeros(1)


def test_a_replay_reads_what_is_in_the_memory_and_nothing_else():
    kept, added = Kept(), [10.0]
    graph = Tape(kept).capture(lambda: kept.sum.copy_(kept.number * 2 + added[0]))
    kept.number[0], added[0] = 5.0, 90.0
    graph.replay()
    assert kept.sum.tolist() == [20.0]


@pytest.mark.parametrize(
    "step",
    [
        lambda kept: kept.sum.fill_(float(kept.number[0])),
        lambda kept: kept.sum.fill_(len(kept.number.nonzero())),
        lambda kept: kept.sum.copy_(kept.number[kept.number > 0]),
        lambda kept: kept.sum.copy_(torch.tensor([3.0])),
        lambda kept: kept.sum.copy_(kept.number + OUTSIDE),
    ],
    ids=["a number", "a count", "a mask", "a copy from the host", "memory of nobody"],
)
def test_a_capture_fails_where_that_of_a_gpu_fails_or_reads_freed_memory(step):
    kept = Kept()
    with pytest.raises(RuntimeError, match="a captured step"):
        Tape(kept).capture(lambda: step(kept))


OUTSIDE = torch.ones(1)


def test_a_replay_fails_when_memory_has_moved():
    kept = Kept()
    graph = Tape(kept).capture(lambda: kept.sum.copy_(kept.number))
    kept.number = torch.tensor([1.0])
    with pytest.raises(AssertionError, match="other memory"):
        graph.replay()


# ------------------------------------------------------------------ steps


pytest.importorskip("triton")

from argosy_engine.model.attention import triton_pool  # noqa: E402
from argosy_engine.model.attention.between import Fused  # noqa: E402
from argosy_engine.model.attention.paged import PoolShape  # noqa: E402
from argosy_engine.model.attention.triton_pool import TritonPool  # noqa: E402
from argosy_engine.model.loader import load_weights  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.model.trunk import Trunk  # noqa: E402
from argosy_engine.runtime.torch.launcher import TorchLauncher  # noqa: E402
from argosy_engine.runtime.torch.runner import TorchRunner, _execute  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402


@pytest.fixture(autouse=True)
def few_splits(monkeypatch):
    """The interpreter is slow."""
    monkeypatch.setattr(triton_pool, "_SPLITS", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("graphs") / "tiny")


class Model:
    """A tiny model and its launcher, with graphs of up to `rows` rows; 0: without."""

    def __init__(self, folder, rows=0):
        spec = read_spec(folder)
        weights = load_weights(folder, spec, torch.float32, CPU)
        self.trunk = Trunk(spec, weights, max_positions=64, between=Fused())
        shape = PoolShape(
            blocks=16, layers=spec.layers, kv_heads=spec.kv_heads, block_size=SIZE,
            head_dim=spec.head_dim,
        )  # fmt: skip
        self.pool = TritonPool(shape, torch.float32, CPU, heads=spec.heads)
        torch.manual_seed(1)
        self.pool.memory.normal_()
        self.tape = Tape(self.pool, self.trunk, self.trunk._between)
        self.captured = []
        self.launcher = TorchLauncher(self.trunk, self.pool, execute=None)
        if rows:
            self.launcher.graphs = capture_decodes(self.trunk, self.pool, rows, self.capture)

    def capture(self, compute):
        """By the tape; the graphs' own buffers are kept as well."""
        self.captured.append(compute.args[0])
        return self.tape.capture_step(compute)

    @property
    def replays(self):
        graphs = self.launcher.graphs
        return {size: graph.replays for size, graph in graphs._graphs.items() if graph.replays}

    def texts(self, counts, begin=decodes):
        """Tokens of steps of so many rows, each launched before the last one is read.

        Rows that a step lacks are the first ones of the step before; `begin` plans the first step.
        """
        starts, found = [20, 3, 9, 15, 30][: counts[0]], []
        launched = self.launcher.launch(begin(starts), None)
        for count in counts[1:]:
            gone = len(starts) - count
            rows = tuple(range(gone, len(starts)))
            starts = [start + 1 for start in starts[gone:]]
            before = launched
            launched = self.launcher.launch(decodes(starts, rows), before)
            found.append(before.result())
        return [one.token_ids for one in (*found, launched.result())]


def prompts(starts):
    """As `decodes`, where the first row has the token before, too."""
    plan = decodes(starts)
    first = replace(plan.chunks[0], start=starts[0] - 1, count=2, decode=False)
    return replace(plan, chunks=(first, *plan.chunks[1:]), prefill_tokens=2, prefill_sequences=1,
                   decode_sequences=len(starts) - 1)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "begin", "counts", "replays"),
    [
        (4, decodes, [3, 3, 2], {4: 2, 2: 1}),
        (3, prompts, [3, 3], {3: 1}),
        (1, decodes, [2, 2], {}),
        (2, decodes, [3, 2, 1], {1: 1}),
    ],
    ids=["all by graphs", "after a prompt", "more rows than any has", "after too many rows"],
)
def test_texts_are_those_of_steps_without_graphs(folder, rows, begin, counts, replays):
    model = Model(folder, rows)
    assert model.texts(counts, begin) == Model(folder).texts(counts, begin)
    assert model.replays == replays


def test_a_step_with_too_many_blocks_is_computed_without_a_graph(folder, monkeypatch):
    monkeypatch.setattr(inputs_module, "TABLE_ROOM", 2)
    model = Model(folder, 1)
    assert model.texts([1, 1]) == Model(folder).texts([1, 1])
    assert model.replays == {}


def test_a_step_of_a_graph_writes_the_blocks_of_its_sequences_and_the_null_block(folder):
    model, right = Model(folder, 4), Model(folder)
    model.pool.memory[0] = 1.0  # the capture wrote there
    before = model.pool.memory.clone()
    model.texts([3])
    right.texts([3])
    changed = (model.pool.memory != before).any(-1).nonzero().flatten().tolist()
    assert changed == [0, 2, 3, 5]
    torch.testing.assert_close(model.pool.memory[1:], right.pool.memory[1:])


def test_a_row_without_numbers_fails_alone_and_what_follows_it_is_computed(folder):
    model = Model(folder, 3)
    right = Model(folder).texts([3, 3])
    model.pool.memory[3] = float("nan")
    first = model.launcher.launch(decodes([20, 3, 9]), None)
    second = model.launcher.launch(decodes([21, 4, 10], (0, 1, 2)), first)
    for launched, ids in zip((first, second), right, strict=True):
        out = launched.result()
        assert out.failed.keys() == {"1"}
        assert 0 <= out.token_ids[1] < model.trunk.spec.vocab
        assert [out.token_ids[row] for row in (0, 2)] == [ids[row] for row in (0, 2)]


def test_a_launch_asks_no_question_and_its_tokens_are_where_those_before_were(folder):
    model = Model(folder, 4)
    with Questions() as questions:
        first = model.launcher.launch(decodes([20, 3, 9, 15]), None)
        second = model.launcher.launch(decodes([21, 4, 10, 16], (3, 2, 1, 0)), first)
    assert questions.asked == []
    assert first.drawn.data_ptr() == second.drawn.data_ptr()


def test_a_device_without_graphs_gets_one_warning_and_computes_each_call(folder, caplog):
    def capture(compute):
        raise RuntimeError("operation not permitted when stream is capturing")

    runner = runner_of(Model(folder), capture)
    runner.warm_up()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    out = runner.launcher.launch(decodes([20, 3]), None).result()
    assert out.failed == {}
    assert len(out.token_ids) == 2


def runner_of(model, capture, rows=4):
    return TorchRunner(
        model.trunk, model.pool, name="m", max_model_len=60, graph_rows=rows, capture=capture
    )


def test_an_engine_captures_all_graphs_at_its_start_and_the_largest_first(folder):
    model = Model(folder)
    runner = runner_of(model, model.capture)
    assert model.captured == []
    runner.warm_up()
    assert model.captured == [4, 2, 1]
    runner.launcher.launch(decodes([20, 3]), None).result()
    assert [graph.replays for graph in model.tape.graphs] == [0, 1, 0]


def test_the_largest_step_is_measured_beside_the_largest_graph(folder):
    model = Model(folder)
    run = beside_largest_graph(_execute, 4, capture=model.capture)
    out = run(model.trunk, model.pool, decodes([3]))
    assert len(out.token_ids) == 1
    assert model.captured == [4]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 256),
        ({"max_num_seqs": 12}, 12),
        ({"max_num_batched_tokens": 9}, 9),
        ({"max_num_batched_tokens": "auto"}, 256),
        ({"cuda_graphs": "off"}, 0),
        ({"async_scheduling": False}, 0),
        ({"async_scheduling": False, "tensor_parallel_size": 2}, 256),
    ],
)
def test_graphs_have_the_rows_that_a_step_may_have_unless_they_are_turned_off(options, rows):
    assert graph_rows(EngineConfig(model="", served_name="", **options)) == rows
