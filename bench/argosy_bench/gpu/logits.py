"""The logits of random models of several families beside transformers', on the engine's device."""

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from argosy_bench.engine.steps import chunk_of, plan_of
from argosy_bench.gpu.scale import Scale
from argosy_engine.config import EngineConfig
from argosy_engine.core.step import flatten
from argosy_engine.runtime.torch.runner import load
from local.figures import Figure, Target
from local.weights.tiny import write_tiny

CLOSE = {"float32": 1e-5, "bfloat16": 3e-2}
"""Relative errors; an H200 had 1.2e-6 and 1.4e-2."""
_PROMPT, _LENGTH = 297, 300
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
_OF_FAMILY: dict[str, dict[str, object]] = {
    "LlamaForCausalLM": {"rope_parameters": _ROPE},
    "Qwen3ForCausalLM": {"head_dim": 128},
    "MistralForCausalLM": {"sliding_window": 64},
}
_SIZES = {
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


def measure_logits(scale: Scale) -> list[tuple[Figure, float]]:
    """Return the worst error of all families, for each type."""
    return [
        (
            Figure(f"logits_{dtype}_error", target=Target("<=", close), digits=8),
            max(relative_error(family, dtype) for family in scale.families),
        )
        for dtype, close in CLOSE.items()
    ]


def relative_error(family: str, dtype: str) -> float:
    """Return the worst of a prompt and of decodes behind it: |ours - theirs| / |theirs|."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_tiny(Path(name) / "model")
        theirs: Any = getattr(importlib.import_module("transformers"), family)
        torch.manual_seed(0)
        options = _SIZES | _OF_FAMILY.get(family, {})
        module = theirs(theirs.config_class(**options)).float().eval()
        module.save_pretrained(folder)
        config = EngineConfig(
            model=str(folder),
            served_name="m",
            dtype=dtype,  # type: ignore[arg-type]
            kv_cache_tokens=8192,
        )
        runner, _ = load(config)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 990, (_LENGTH,), generator=generator).tolist()
    found = []
    with torch.inference_mode():
        for start, count in ((0, _PROMPT), *((at, 1) for at in range(_PROMPT, _LENGTH))):
            chunk = chunk_of(0, start, count)
            chunk.tokens = ids
            # A copy: some trunks write the logits of each step to the same memory.
            row = runner.trunk.logits(flatten(plan_of((chunk,))), runner._pool)[0]
            found.append(row.float().clone())
        device = found[0].device
        module.to(device, getattr(torch, dtype))
        right = module(torch.tensor([ids], device=device)).logits[0, _PROMPT - 1 :].float()
    runner.close()
    return max(
        float((mine - one).norm() / one.norm()) for mine, one in zip(found, right, strict=True)
    )
