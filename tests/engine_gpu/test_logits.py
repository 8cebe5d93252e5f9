"""The logits of the trunk and its kernels beside transformers', both on the GPU."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import transformers  # noqa: E402

from argosy_engine.core.step import flatten  # noqa: E402
from argosy_engine.model.attention.triton_pool import TritonPool  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_gpu.engines import chunk_of, load_runner, plan_of  # noqa: E402

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
CASES = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 128},
    "MistralForCausalLM": {"sliding_window": 64},
}
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CLOSE = {"float32": 1e-5, "bfloat16": 3e-2}
"""Relative error; an H200 had 1.2e-6 and 1.4e-2."""
PROMPT, LENGTH = 297, 300


@pytest.fixture(scope="module", params=CASES)
def model(request, tmp_path_factory):
    """(folder, transformers' module) of a random model."""
    folder = write_tiny(tmp_path_factory.mktemp("models") / request.param)
    kind = getattr(transformers, request.param)
    torch.manual_seed(0)
    made = kind(kind.config_class(**SIZES | CASES[request.param])).float().eval()
    made.save_pretrained(folder)
    return folder, made


@pytest.mark.parametrize("dtype", CLOSE)
def test_logits_of_a_prompt_and_of_decodes_are_those_of_transformers(model, gpu, dtype):
    folder, made = model
    runner = load_runner(folder, dtype)
    assert isinstance(runner._pool, TritonPool)
    ids = torch.randint(5, 990, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = [(0, PROMPT), *((at, 1) for at in range(PROMPT, LENGTH))]
    with torch.inference_mode():
        found = [
            runner.trunk.logits(flatten(plan_of(chunk_of(ids, *row))), runner._pool)[0]
            .float()
            .clone()
            for row in rows
        ]
        beside = made.to(gpu, getattr(torch, dtype))
        right = beside(torch.tensor([ids], device=gpu)).logits[0, PROMPT - 1 :].float()
    made.float().cpu()
    runner.close()
    for mine, theirs in zip(found, right, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < CLOSE[dtype]
