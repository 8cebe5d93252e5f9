"""Logits to ids: greedy, filters, and draws that depend on seed and position alone."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.sampler import sample, uniform  # noqa: E402

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def draws(count=400, **options):
    params = SamplingParams(max_tokens=1, **options)
    rows = LOGITS.repeat(count, 1)
    return sample(rows, [params] * count, list(range(count)))


def test_greedy_takes_the_largest():
    assert draws(3, temperature=0.0) == [1, 1, 1]


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
