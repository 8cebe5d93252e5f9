"""The native draw beside torch's sampler, with every library that this CPU executes."""

import dataclasses

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, example, given, settings  # noqa: E402

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.model.native.compile import library_path  # noqa: E402
from argosy_engine.model.native.library import Library  # noqa: E402
from argosy_engine.runtime.torch.runner import TorchRunner  # noqa: E402
from argosy_engine.runtime.torch.sampler import columns, sample, uniform  # noqa: E402
from tests.engine_torch.test_native_step import WORKING, Pair, chunk, plan_of, spec_of  # noqa: E402
from tests.engine_torch.test_sampler import batches, is_right  # noqa: E402


@pytest.fixture(scope="module", params=WORKING)
def library(request):
    loaded = Library(library_path(request.param), threads=2, spins=100)
    yield loaded
    loaded.close()


def drawn(library, logits, asked, positions):
    return library.draw(logits.float().contiguous().numpy(), columns(asked, positions))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches())
# One bucket of the count holds every token: they have one value.
@example((torch.zeros(1, 3000), [SamplingParams(max_tokens=1, top_p=0.9, seed=3)], [5]))
# A vocabulary that fills no vector, with a cut at its last token.
@example((torch.zeros(1, 5), [SamplingParams(max_tokens=1, top_k=4, top_p=0.999)], [1]))
def test_each_row_gets_what_it_gets_alone_and_what_the_plain_method_allows(library, batch):
    logits, asked, positions = batch
    ids = drawn(library, logits, asked, positions)
    for row, (token, params, position) in enumerate(zip(ids, asked, positions, strict=True)):
        assert drawn(library, logits[row : row + 1], [params], [position]) == [token]
        if params.greedy:
            assert token == int(logits[row].argmax())
        else:
            assert is_right(token, logits[row], params, uniform(params.seed, position))


@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"top_p": 0.95},
        {"top_k": 40},
        {"top_k": 9000, "top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.5},
    ],
    ids=str,
)
def test_it_draws_the_tokens_that_the_torch_sampler_draws(library, spread, more):
    """A point within rounding of an edge between two tokens may fall on either side."""
    logits = torch.randn(64, 49_152, generator=torch.Generator().manual_seed(5)) * spread
    asked = [SamplingParams(max_tokens=1, seed=row, **more) for row in range(64)]
    positions = list(range(64))
    ids, others = drawn(library, logits, asked, positions), sample(logits, asked, positions)
    for row, (token, other) in enumerate(zip(ids, others, strict=True)):
        if token != other:
            point = uniform(row, positions[row])
            assert is_right(token, logits[row], asked[row], point)
            assert is_right(other, logits[row], asked[row], point)
    assert sum(map(int.__eq__, ids, others)) >= 62


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("vocab", [5, 257, 3000])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str)
def test_a_row_in_which_no_token_can_follow_is_told_and_changes_no_other(
    library, broken, vocab, more
):
    rows = torch.randn(5, vocab, generator=torch.Generator().manual_seed(2))
    asked = [SamplingParams(max_tokens=1, **more)] * 5
    right = drawn(library, rows, asked, [1, 2, 3, 4, 5])
    rows[1] = broken
    if broken != float("-inf"):  # one excluded token leaves the others
        rows[3, vocab - 1] = broken
        right[3] = -1
    right[1] = -1
    assert drawn(library, rows, asked, [1, 2, 3, 4, 5]) == right


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e30, 1e300])
def test_a_temperature_beyond_float32_draws_a_token(library, temperature):
    logits = torch.tensor([[0.0, 3.0, float("-inf"), 2.0]]).repeat(50, 1)
    asked = [SamplingParams(max_tokens=1, temperature=temperature, top_p=0.9)] * 50
    ids = set(drawn(library, logits, asked, list(range(50))))
    assert ids == ({1} if temperature < 1 else {0, 1, 3})


def test_one_thread_draws_what_two_draw(library):
    logits = torch.randn(33, 49_152, generator=torch.Generator().manual_seed(3)) * 2
    asked = [
        SamplingParams(max_tokens=1, seed=row, top_p=(1.0, 0.95, 0.4)[row % 3], top_k=row % 2 * 50)
        for row in range(33)
    ]
    positions = list(range(33))
    alone = Library(library.path, threads=1, spins=100)
    try:
        assert drawn(alone, logits, asked, positions) == drawn(library, logits, asked, positions)
    finally:
        alone.close()


def test_a_step_fails_the_request_whose_logits_are_no_numbers_and_no_other(library):
    pair = Pair(library, spec_of(), torch.float32, 16)
    pair.native.weights.embedding[5] = float("nan")
    runner = TorchRunner(pair.native, pair.pools[1], name="m", max_model_len=600)
    drawing = [SamplingParams(max_tokens=9, temperature=t, top_p=0.9) for t in (0.0, 0.8, 0.8)]
    chunks = [
        dataclasses.replace(chunk(name, 131, [name + 1], 0, 1), sampling=drawing[name])
        for name in range(3)
    ]
    right = runner.execute(plan_of(chunks, 16))
    assert not right.failed
    chunks[1].tokens[0] = 5
    found = runner.execute(plan_of(chunks, 16))
    assert list(found.failed) == ["1"]
    assert found.token_ids[::2] == right.token_ids[::2]
