"""The kernels between products, executed by Triton's interpreter, beside torch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from argosy_engine.model.attention.between import Fused, Plain  # noqa: E402

TYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Relative and absolute. The interpreter cuts bfloat16 off, where a GPU rounds."""

rows = st.integers(0, 5)
sizes = st.sampled_from([1, 8, 64, 96, 513, 1024, 1500])
seeds = st.integers(0, 1 << 30)


def assert_close(found, right):
    close = CLOSE[right.dtype]
    assert found.dtype == right.dtype
    assert found.is_contiguous()
    torch.testing.assert_close(found, right, rtol=close, atol=close)


@settings(max_examples=20)
@given(rows=rows, size=sizes, dtype=st.sampled_from(TYPES), adds=st.booleans(), seed=seeds)
def test_the_sum_and_its_norm_are_those_of_torch(rows, size, dtype, adds, seed):
    torch.manual_seed(seed)
    hidden, more = (torch.randn(2, rows, size) * 3).to(dtype)
    weight = (torch.rand(size) + 0.5).to(dtype)
    added, total = (more if adds else None), hidden.clone()
    normed = Fused().add_rms_norm(total, added, weight, 1e-5)
    right = hidden.clone()
    assert_close(normed, Plain().add_rms_norm(right, added, weight, 1e-5))
    assert_close(total, right)


@settings(max_examples=20)
@given(rows=rows, inner=sizes, dtype=st.sampled_from(TYPES), seed=seeds)
def test_the_gate_is_that_of_torch(rows, inner, dtype, seed):
    torch.manual_seed(seed)
    gate_up = (torch.randn(rows, 2 * inner) * 3).to(dtype)
    assert_close(Fused().silu_and_mul(gate_up), Plain().silu_and_mul(gate_up.clone()))


def test_large_numbers_overflow_nothing_and_lost_rows_stay_alone():
    hidden = torch.tensor([[3e4, -2e4], [float("nan"), 1.0], [0.0, 0.0]], dtype=torch.float16)
    weight = torch.ones(2, dtype=torch.float16)
    normed = Fused().add_rms_norm(hidden.clone(), None, weight, 1e-5)
    torch.testing.assert_close(normed[0].float(), torch.tensor([1.177, -0.784]), rtol=0, atol=2e-3)
    assert normed[1].isnan().all()
    assert normed[2].tolist() == [0.0, 0.0]
    small, large = Fused().silu_and_mul(torch.tensor([[-80.0, 1e30, 1.0, 1.0]]))[0].tolist()
    assert -1e-30 < small <= 0.0
    assert large == torch.tensor(1e30)
