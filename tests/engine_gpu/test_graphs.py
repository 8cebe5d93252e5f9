"""Decode steps as CUDA graphs beside the same steps call by call."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_bench.engine.steps import chunk_of, plan_of  # noqa: E402
from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import to_table  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

ROWS, BLOCKS = 37, 3
"""37 rows are padded to 40."""


@pytest.fixture(scope="module")
def runners(gpu, tmp_path_factory):
    """One with graphs and one without, of the same model and with the same KV."""
    folder = write_tiny(tmp_path_factory.mktemp("graphs") / "tiny")
    config = EngineConfig(model=str(folder), served_name="m", dtype="float32", kv_cache_tokens=8192)
    made = [load(config)[0], load(replace(config, cuda_graphs="off"))[0]]
    for runner in made:
        runner.warm_up()
        torch.manual_seed(0)
        runner._pool.memory.copy_(torch.randn(runner._pool.memory.shape))
    yield made
    for runner in made:
        runner.close()


def step(at):
    """Each row's next token: contexts of 20 to 92 tokens, `at` steps later."""
    chunks = []
    for row in range(ROWS):
        chunk = chunk_of(row, 20 + 2 * row + at, 1)
        first = 1 + row * BLOCKS
        chunk.tokens = [5 + (row + token) % 250 for token in range(chunk.start + 1)]
        chunk.block_table = to_table(range(first, first + BLOCKS))
        chunks.append(chunk)
    return plan_of(tuple(chunks))


def draw(runner):
    """Tokens of four steps, each launched while the last one runs."""
    found, last = [], runner.launcher.launch(step(0), None)
    for at in range(1, 4):
        following = runner.launcher.launch(replace(step(at), drawn=tuple(range(ROWS))), last)
        found.append(last.result().token_ids)
        last = following
    return [*found, last.result().token_ids]


def test_graphs_draw_the_tokens_that_calls_draw(runners):
    graphs, calls = runners
    assert graphs.launcher.graphs is not None
    assert calls.launcher.graphs is None
    drawn = draw(graphs)
    assert drawn == draw(calls)
    assert len({token for tokens in drawn for token in tokens}) > ROWS / 2
