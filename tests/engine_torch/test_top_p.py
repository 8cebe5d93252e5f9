"""The kernel that draws with top_p, executed by Triton's interpreter, beside sorted rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.model import top_p  # noqa: E402
from argosy_engine.model.top_p import Draws, TopP  # noqa: E402
from argosy_engine.runtime.torch.sampler import sample_there  # noqa: E402


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Rows of several tiles, though they are short: the interpreter is slow."""
    monkeypatch.setattr(top_p, "_WIDTH", 128)


def by_sorting(logits, point, temperature, share, min_p):
    """The token of one row, with the same whole numbers as masses."""
    x = logits.float().numpy()
    weights = np.exp((x - x.max()) / np.float32(temperature))
    weights = np.where(weights >= np.float32(min_p), weights, np.float32(0))
    order = np.argsort(-weights, kind="stable")
    units = (weights[order] * np.float32(1 << 30) + np.float32(0.5)).astype(np.int64)
    mass = units.cumsum()
    least = max(int(np.ceil(np.float64(np.float32(share)) * mass[-1])), 1)
    kept = int(mass[int((mass < least).sum())])
    at = min(int(point * float(kept)), kept - 1)
    return int(order[int((mass <= at).sum())])


rows = st.tuples(
    st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5, 1 - 2**-53]),
    st.sampled_from([0.2, 0.7, 1.0, 2.0]),
    st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    st.sampled_from([0.0, 0.0, 0.03, 0.3, 1.0]),
)


@settings(max_examples=12, deadline=None)
@given(
    asked=st.lists(rows, min_size=1, max_size=2),
    vocab=st.sampled_from([1, 5, 128, 300]),
    flatness=st.sampled_from([0.0, 0.3, 3.0, 12.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    forbidden=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_a_draw_is_that_of_the_sorted_row(asked, vocab, flatness, dtype, forbidden, seed):
    torch.manual_seed(seed)
    # Rounded, so that many are equal. The row behind is nobody's.
    logits = (torch.randn(len(asked) + 1, vocab) * flatness).round(decimals=1).to(dtype)
    if forbidden:
        logits[:, 1::3] = float("-inf")
    points, temperatures, shares, least = zip(*asked, strict=True)
    draws = Draws(
        points=torch.tensor(points, dtype=torch.float64),
        temperatures=torch.tensor(temperatures),
        top_p=torch.tensor(shares),
        min_p=torch.tensor(least),
    )
    at = list(reversed(range(len(asked))))
    ids = torch.full((len(asked) + 1,), -1)
    TopP().draw_(ids, logits, torch.tensor(at), draws)
    assert ids[at].tolist() == [
        by_sorting(logits[row], *one) for row, one in zip(at, asked, strict=True)
    ]
    assert int(ids[-1]) == -1


def test_a_batch_draws_the_same_tokens_with_the_kernel_as_without():
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(4)) * 2
    asked = [
        SamplingParams(max_tokens=1, temperature=temperature, top_p=share, top_k=top_k, seed=row)
        for row, (temperature, share, top_k) in enumerate(
            (
                (0.0, 1.0, 0),
                (1.0, 0.9, 0),
                (1.0, 1.0, 0),
                (0.7, 0.5, 20),
                (1.5, 0.99, 0),
                (1.0, 0.9, 280),
                (0.8, 0.2, 0),
                (1.0, 0.7, 300),
            )
        )
    ]
    positions = list(range(8))
    found = sample_there(logits, asked, positions, TopP())
    assert found.tolist() == sample_there(logits, asked, positions).tolist()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_row_without_numbers_has_some_token_and_leaves_the_others_theirs(number):
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1))
    asked = [SamplingParams(max_tokens=1, top_p=0.9, seed=3)] * 2
    right = sample_there(logits, asked, [0, 1], TopP())
    logits[0] = float(number)
    found = sample_there(logits, asked, [0, 1], TopP())
    assert 0 <= int(found[0]) < 40
    assert found[1] == right[1]
