"""Logits to ids: greedy, filters, and draws that depend on seed and position alone."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.torch.sampler import sample, uniform  # noqa: E402

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def draws(count=400, **options):
    params = SamplingParams(max_tokens=1, **options)
    rows = LOGITS.repeat(count, 1)
    return sample(rows, [params] * count, list(range(count)))


def test_top_k_and_top_p_leave_the_head_of_the_distribution():
    assert set(draws(top_k=1)) == {1}
    assert set(draws(top_k=2)) == {1, 3}
    # softmax: 0.64, 0.24, 0.09 …: the first two hold 0.88
    assert set(draws(top_p=0.7)) == {1, 3}
    assert set(draws(top_p=0.01)) == {1}
    assert set(draws(top_p=0.0)) == {1}


def test_shares_follow_the_softmax_and_temperature_sharpens_it():
    share = draws(4000, temperature=1.0).count(1) / 4000
    assert share == pytest.approx(float(LOGITS.softmax(-1)[1]), abs=0.03)
    assert draws(400, temperature=0.05).count(1) > 395


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300])
def test_a_temperature_next_to_nothing_is_greedy(temperature):
    for more in ({}, {"top_k": 3}, {"top_p": 0.9}):
        assert set(draws(20, temperature=temperature, **more)) == {1}


def test_a_top_k_beyond_the_vocabulary_is_taken_and_forbidden_tokens_are_never_drawn():
    assert len(set(draws(top_k=10**9))) > 3
    params = SamplingParams(max_tokens=1)
    rows = torch.tensor([[float("-inf"), 1.0, float("-inf"), 2.0]]).repeat(200, 1)
    assert set(sample(rows, [params] * 200, list(range(200)))) == {1, 3}


def test_a_draw_depends_on_seed_and_position_and_not_on_the_batch():
    params = SamplingParams(max_tokens=1, seed=7)
    alone = [sample(LOGITS.unsqueeze(0), [params], [p])[0] for p in range(50)]
    assert alone == sample(LOGITS.repeat(50, 1), [params] * 50, list(range(50)))
    assert alone != draws(50, seed=8)
    assert 0.0 <= uniform(1, 2) < 1.0


def plain(logits, params):
    """(ids in the order of the draw, their cumulative shares) of one row, in float64.

    The reference: temperature, min-p, top-k, then top-p; equal logits in the order of their ids.
    """
    scaled = (logits.double() - logits.max()) / params.temperature
    if params.min_p:
        scaled = scaled.masked_fill(scaled < math.log(params.min_p), -math.inf)
    shares = scaled.softmax(-1)
    if not 0 < params.top_k < len(shares) and params.top_p == 1.0:
        return torch.arange(len(shares)), shares.cumsum(-1)
    shares, order = shares.sort(descending=True, stable=True)
    if params.top_k:
        shares, order = shares[: params.top_k], order[: params.top_k]
    mass = shares.cumsum(-1) / shares.sum()
    if params.top_p < 1.0:
        # what float32 may see on either side of the cut
        last = min(int((mass < params.top_p + CLOSE).sum()), len(mass) - 1)
        mass, order = mass[: last + 1], order[: last + 1]
    return order, mass


def is_right(token, logits, params, point):
    """Whether a draw at `point`, off by CLOSE at most, can be `token` in the reference."""
    order, mass = plain(logits, params)
    (at,) = (order == token).nonzero()[0].tolist()
    below = float(mass[at - 1]) if at else 0.0
    total = float(mass[-1])
    # the cut itself may be a token earlier, which shortens the whole
    least = total if params.top_p == 1.0 else min(total, max(params.top_p - CLOSE, float(mass[0])))
    return below <= point * total + CLOSE and float(mass[at]) >= point * least - CLOSE


CLOSE = 1e-5
requests = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 1e-300, 0.2, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 300, 10**9]),
    min_p=st.sampled_from([0.0, 0.0, 0.03, 0.3, 1.0]),
    seed=st.integers(0, 10**9),
)


@st.composite
def batches(draw):
    """Rows of logits with ties and forbidden tokens, peaked and flat, and what each row asks."""
    asked = draw(st.lists(requests, min_size=1, max_size=9))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    vocab = draw(st.sampled_from([5, 255, 257, 3000]))
    logits = torch.randn(len(asked), vocab, generator=random) * draw(st.sampled_from([0.3, 3, 12]))
    if draw(st.booleans()):
        logits = logits.bfloat16()  # many equal logits
    if draw(st.booleans()):
        logits[:, ::3] = float("-inf")
    positions = draw(st.lists(st.integers(0, 9999), min_size=len(asked), max_size=len(asked)))
    return logits, asked, positions


@settings(max_examples=100)
@given(batches())
def test_a_batch_draws_what_each_row_draws_alone_and_what_the_plain_method_allows(batch):
    logits, asked, positions = batch
    ids = sample(logits, asked, positions)
    for row, (token, params, position) in enumerate(zip(ids, asked, positions, strict=True)):
        assert sample(logits[row : row + 1], [params], [position]) == [token]
        if params.greedy:
            assert token == int(logits[row].argmax())
        else:
            assert is_right(token, logits[row], params, uniform(params.seed, position))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_rows_beside_it_and_the_threads_change_no_draw(threads):
    logits = torch.randn(33, 49_152, generator=torch.Generator().manual_seed(3)) * 2
    asked = [
        SamplingParams(max_tokens=1, seed=row, top_p=(1.0, 0.95, 0.4)[row % 3], top_k=row % 2 * 50)
        for row in range(33)
    ]
    positions = list(range(33))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ids = sample(logits, asked, positions)
        for some in (range(0, 33, 2), range(7), [32]):
            alone = sample(
                logits[list(some)], [asked[i] for i in some], [positions[i] for i in some]
            )
            assert alone == [ids[i] for i in some]
    finally:
        torch.set_num_threads(before)
