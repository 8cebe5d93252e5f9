"""The logits of the trunk and its kernels beside transformers', both on this machine's GPU."""

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from argosy_bench.gpu.logits import CLOSE, relative_error  # noqa: E402
from argosy_bench.gpu.scale import FULL  # noqa: E402


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("family", FULL.families)
def test_logits_of_a_prompt_and_of_decodes_are_those_of_transformers(family, dtype):
    assert relative_error(family, dtype) < CLOSE[dtype]
