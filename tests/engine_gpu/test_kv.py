"""KV that leaves one runner's pool and lands in another's, through the host."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_bench.engine.steps import chunk_of, load_runner, plan_of  # noqa: E402
from argosy_engine.core.request import to_table  # noqa: E402
from argosy_engine.core.step import flatten  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

LENGTH = 157
"""Five blocks, and room for one token."""


@pytest.fixture
def runners(tmp_path, request):
    """Two engines' runners of one model."""
    folder = str(write_tiny(tmp_path / "tiny"))
    made = [load_runner(folder, request.param, "auto")[0] for _ in range(2)]
    yield made
    for runner in made:
        runner.close()


def chunk(table, start, count):
    """A chunk of a text in these blocks."""
    made = chunk_of(0, start, count)
    made.tokens, made.block_table = [5 + at % 250 for at in range(start + count)], to_table(table)
    return made


def bytes_of(runner, blocks):
    """What leaves the runner."""
    leaving = runner.outgoing(blocks)
    leaving.wait()
    return b"".join(bytes(view) for view in leaving.views)


def carry(source, target, blocks, to):
    """Copy blocks as the KV threads of two engines do."""
    data, landing, at = bytes_of(source, blocks), target.incoming(to), 0
    for view in landing.views:
        view[:] = data[at : at + len(view)]
        at += len(view)
    assert at == len(data)
    landing.land()
    landing.wait()


@pytest.mark.parametrize("runners", ["float32", "bfloat16"], indirect=True)
def test_kv_that_landed_is_the_kv_that_left(runners):
    there, here = runners
    left, landed = [1, 2, 3, 4, 5], [9, 8, 40, 41, 42]
    there.execute(plan_of((chunk(left, 0, LENGTH),)))
    carry(there, here, left, landed)
    sent = bytes_of(there, left)
    assert sent == bytes_of(here, landed)
    assert sent.count(0) < len(sent) / 2  # a pool that nobody wrote would be equal, too
    with torch.inference_mode():
        logits = [
            runner.trunk.logits(flatten(plan_of((chunk(table, LENGTH, 1),))), runner._pool).clone()
            for runner, table in ((there, left), (here, landed))
        ]
    assert torch.equal(*logits)


@pytest.mark.parametrize("runners", ["bfloat16"], indirect=True)
def test_a_block_whose_neighbours_land_keeps_its_kv(runners):
    there, here = runners
    there.execute(plan_of((chunk([1, 2, 3, 4, 5], 0, LENGTH),)))
    here.execute(plan_of((chunk([14, 13, 12, 11, 10], 0, LENGTH),)))
    before = bytes_of(here, [12])
    carry(there, here, [1, 2], [11, 13])
    assert bytes_of(here, [12]) == before


@pytest.mark.parametrize("runners", ["bfloat16"], indirect=True)
def test_blocks_leave_and_land_while_a_step_runs(gpu, runners):
    there, here = runners
    there.execute(plan_of((chunk([1, 2, 3, 4, 5], 0, LENGTH),)))
    carry(there, here, [1, 2], [3, 4])  # what is made once is made
    torch.cuda._sleep(10_000_000_000)  # cycles: seconds in the stream of the steps
    running = torch.cuda.Event()
    running.record()
    carry(there, here, [1, 2, 3], [9, 7, 8])
    assert not running.query()
    assert bytes_of(here, [9, 7, 8]) == bytes_of(there, [1, 2, 3])
    torch.cuda.synchronize()


@pytest.mark.parametrize("runners", ["bfloat16"], indirect=True)
def test_blocks_of_a_step_that_draws_nothing_are_whole_when_it_has_ended(gpu, runners):
    """A chunk in the middle of a prompt: nobody reads anything of it from the device."""
    runner = runners[0]
    runner.execute(plan_of((replace(chunk([1, 2, 3, 4, 5], 0, LENGTH), samples=False),)))
    early = bytes_of(runner, [1, 2, 3])
    torch.cuda.synchronize()
    assert bytes_of(runner, [1, 2, 3]) == early


@pytest.mark.parametrize("runners", ["bfloat16"], indirect=True)
def test_copies_take_no_further_pinned_memory_once_they_have_some(gpu, runners):
    runner = runners[0]
    bytes_of(runner, [1, 2, 3])
    before = torch.cuda.host_memory_stats()["num_host_alloc"]
    for _ in range(20):
        bytes_of(runner, [1, 2, 3])
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == before
