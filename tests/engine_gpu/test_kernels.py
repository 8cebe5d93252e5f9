"""The kernels compiled for this GPU beside the plain torch path, as the engine tries them."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy.model_config import read_model  # noqa: E402
from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.model.attention.triton_pool import TritonPool  # noqa: E402
from argosy_engine.runtime.torch.pool import choose_pool, scratch_shape  # noqa: E402

CONFIG = EngineConfig(model="", served_name="m")
SHAPES = [(32, 8, 128), (9, 3, 64), (28, 4, 128), (32, 32, 80), (16, 8, 256), (12, 1, 64)]
"""Heads, KV heads, head dimension."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_the_trial_of_the_kernels_succeeds(gpu, heads, kv_heads, dim, family, dtype, caplog):
    config = {
        "architectures": [family],
        "hidden_size": heads * dim,
        "intermediate_size": 3 * heads * dim,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    spec = read_model(config)
    make = choose_pool(CONFIG, spec, dtype, gpu)
    assert isinstance(make(scratch_shape(CONFIG, spec), dtype, gpu), TritonPool), caplog.text
