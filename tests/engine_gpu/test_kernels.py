"""The kernels compiled for this GPU beside the plain torch path, as the engine tries them."""

import json
import subprocess
from dataclasses import asdict

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from argosy_engine.model.attention.trial import Wish  # noqa: E402
from argosy_engine.runtime.torch.pool import PROGRAM  # noqa: E402

SHAPES = [(32, 8, 128), (9, 3, 64), (28, 4, 128), (32, 32, 80), (16, 8, 256), (12, 1, 64)]
"""Heads, KV heads, head dimension."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_the_trial_of_the_kernels_succeeds(gpu, heads, kv_heads, dim, dtype):
    wish = Wish(
        heads=heads, kv_heads=kv_heads, block_size=32, head_dim=dim, dtype=dtype, device=str(gpu)
    )
    words = [*PROGRAM, json.dumps(asdict(wish))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
