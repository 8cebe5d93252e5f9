"""The page which-models.md says of each family what the check of its config.json says.

The configs have the members of the published ones that the check looks at, and small sizes.
"""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model import huggingface  # noqa: E402
from argosy_engine.model.spec import read_spec, trunk_knows  # noqa: E402
from argosy_fetch.check import check_config  # noqa: E402
from argosy_fetch.source import FetchError  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "which-models.md"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 259,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = ROUTED | {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
FP8 = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}
OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 6}
SEES = {"text_config": {"model_type": "text"}, "vision_config": {"model_type": "vision"}}

# By the second column of the page: model_type and the members that matter.
CONFIGS: dict[str, dict] = {
    "`LlamaForCausalLM`": {"model_type": "llama", "rope_scaling": LLAMA3},
    "`MllamaForConditionalGeneration`": {"model_type": "mllama", **SEES},
    "`Llama4ForConditionalGeneration`": {"model_type": "llama4", **SEES},
    "`Llama4ForCausalLM`": {
        "model_type": "llama4_text",
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
    },
    "`Qwen2ForCausalLM`": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 70,
    },
    "`Qwen3ForCausalLM`": {"model_type": "qwen3", "attention_bias": False, "sliding_window": None},
    "`Qwen3MoeForCausalLM`": {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": []},
    "`Qwen3NextForCausalLM`": {
        "model_type": "qwen3_next",
        **EXPERTS,
        **LINEAR,
        "shared_expert_intermediate_size": 32,
    },
    "`Qwen3_5ForConditionalGeneration`": {"model_type": "qwen3_5", **SEES},
    "`Qwen3_5MoeForConditionalGeneration`": {"model_type": "qwen3_5_moe", **SEES},
    "`Qwen3_5ForCausalLM`": {"model_type": "qwen3_5_text", **LINEAR},
    "`DeepseekV3ForCausalLM`": {"model_type": "deepseek_v3", **LATENT, **FP8, **OWN_CODE},
    "`DeepseekV32ForCausalLM`": {
        "model_type": "deepseek_v32",
        **LATENT,
        **FP8,
        "index_head_dim": 8,
        "index_n_heads": 2,
        "index_topk": 16,
    },
    "`DeepseekV3ForCausalLM` (`kimi_k2`)": {
        "model_type": "kimi_k2",
        **LATENT,
        **FP8,
        **OWN_CODE,
    },
    "`KimiK25ForConditionalGeneration`": {"model_type": "kimi_k25", **SEES, **OWN_CODE},
    "`GptOssForCausalLM`": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "rope_scaling": YARN,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "`Gemma2ForCausalLM`": {"model_type": "gemma2", "sliding_window": 8},
    "`Gemma3ForCausalLM`": {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    },
    "`Gemma3ForConditionalGeneration`": {"model_type": "gemma3", **SEES},
    "`Gemma4ForConditionalGeneration`": {"model_type": "gemma4", **SEES},
    "`Gemma4ForCausalLM`": {"model_type": "gemma4_text", "sliding_window": 8},
    "`MistralForCausalLM`": {"model_type": "mistral", "sliding_window": None},
    "`Mistral3ForConditionalGeneration`": {"model_type": "mistral3", **SEES},
    "`MixtralForCausalLM`": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "`Phi3ForCausalLM`": {"model_type": "phi3", "sliding_window": None, "rope_scaling": None},
    "`Phi3ForCausalLM` (longrope)": {
        "model_type": "phi3",
        "rope_scaling": LONG,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 512,
        **OWN_CODE,
    },
    "`Glm4MoeForCausalLM`": {
        "model_type": "glm4_moe",
        **ROUTED,
        "n_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
}


def rows() -> dict[str, str]:
    """What the page says, by the second column."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]
    return {architecture: verdict for _, architecture, verdict, _ in cells}


def write(folder: Path, row: str, *without: str) -> Path:
    config = SMALL | {"architectures": [row.split("`")[1]]} | CONFIGS[row]
    config = {name: value for name, value in config.items() if name not in without}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def answer(folder: Path) -> str:
    """What the engine says of a folder, in the page's words; LoadError if it does not serve it."""
    if trunk_knows(folder):
        read_spec(folder)
        return "natively"
    foreign = huggingface.read(folder)
    device = torch.device("cpu")
    module = huggingface.load(folder, foreign, torch.float32, device, dummy=True)
    huggingface.TransformersTrunk(foreign.spec, module)
    return "through transformers"


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as refused:
        answer(folder)
    assert refused.value.reason == "UnsupportedArchitecture"
    return refused.value.message


def test_the_page_has_each_family_that_is_tried_and_no_other():
    assert set(rows()) == set(CONFIGS)


@pytest.mark.parametrize("row", [row for row, says in rows().items() if says != "no"])
def test_a_family_is_served_as_the_page_says(row, tmp_path):
    assert answer(write(tmp_path, row)) == rows()[row]


@pytest.mark.parametrize("row", [row for row, says in rows().items() if says == "no"])
def test_a_family_that_the_page_says_no_to_is_refused_with_what_to_do(row, tmp_path):
    message = refusal(write(tmp_path, row))
    assert row.split("`")[1].removesuffix("ForCausalLM") in message
    assert "engine.type: vllm" in message
    assert "NoneType" not in message


@pytest.mark.parametrize("row", CONFIGS)
def test_the_job_that_fetches_takes_what_the_engine_computes_natively(row, tmp_path):
    path = write(tmp_path, row) / "config.json"
    if rows()[row] == "natively":
        check_config(path, any_architecture=False)
        return
    with pytest.raises(FetchError) as refused:
        check_config(path, any_architecture=False)
    assert refused.value.reason == "UnsupportedArchitecture"
    assert "set engine.type: vllm" in refused.value.message
