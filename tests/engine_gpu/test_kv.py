"""KV that leaves one runner's pool and lands in another's, through the host."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.core.step import flatten  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_gpu.engines import BLOCK, chunk_of, load_runner, plan_of  # noqa: E402

LENGTH = 5 * BLOCK - 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("kv") / "tiny")


def carry(source, target, blocks, to):
    """Copy blocks as the KV threads of two engines do."""
    views = target.incoming(to)
    data = b"".join(bytes(view) for view in source.outgoing(blocks))
    at = 0
    for view in views:
        view[:] = data[at : at + len(view)]
        at += len(view)
    assert at == len(data)
    target.landed(to, views)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kv_that_landed_is_the_kv_that_left(gpu, folder, dtype):
    there, here = load_runner(folder, dtype), load_runner(folder, dtype)
    ids = [5 + at % 250 for at in range(LENGTH + 1)]
    there.execute(plan_of(chunk_of(ids, 0, LENGTH)))
    left, landed = [1, 2, 3, 4, 5], [9, 8, 40, 41, 42]
    carry(there, here, left, landed)
    sent = b"".join(bytes(view) for view in there.outgoing(left))
    assert sent == b"".join(bytes(view) for view in here.outgoing(landed))
    assert sent.count(0) < len(sent) / 2  # a pool that nobody wrote would be equal, too

    def decode(runner, table):
        chunk = chunk_of(ids, LENGTH, 1)
        chunk.block_table[:] = table
        with torch.inference_mode():
            return runner.trunk.logits(flatten(plan_of(chunk)), runner._pool)

    assert torch.equal(decode(there, left), decode(here, landed))
    there.close()
    here.close()


def test_a_block_whose_neighbours_land_keeps_its_kv(gpu, folder):
    there, here = load_runner(folder, "bfloat16"), load_runner(folder, "bfloat16")
    ids = [5 + at % 250 for at in range(LENGTH)]
    for runner in (there, here):
        runner.execute(plan_of(chunk_of(ids, 0, LENGTH, first_block=10)))
    before = bytes(here.outgoing([12])[0])
    there.execute(plan_of(chunk_of(ids[::-1], 0, LENGTH, first_block=1)))
    carry(there, here, [1, 2], [11, 13])
    assert bytes(here.outgoing([12])[0]) == before
    there.close()
    here.close()
