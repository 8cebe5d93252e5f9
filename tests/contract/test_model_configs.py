"""The Job refuses each `config.json` that the engine refuses, with the same reason and words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.errors import LoadError
from argosy_engine.model.spec import read_spec
from argosy_fetch.check import check_config
from argosy_fetch.source import FetchError

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 259,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
MISTRAL, QWEN2, QWEN3 = (
    {"architectures": [f"{name}ForCausalLM"]} for name in ("Mistral", "Qwen2", "Qwen3")
)
SLIDES, FULL = "sliding_attention", "full_attention"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}

TAKEN: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Llama 3.1": {"rope_scaling": LLAMA3, "num_key_value_heads": 2, "head_dim": 16},
    "a linear rope": {"rope_scaling": {"type": "linear", "factor": 2}},
    "the newer spelling of the rope": {"rope_parameters": {"rope_theta": 1e6, **YARN}},
    "yarn as Qwen's cards have it": QWEN3 | {"rope_scaling": YARN},
    "yarn with its lengths": {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    "Mistral with a window": MISTRAL | {"sliding_window": 4096},
    "Mistral without": MISTRAL | {"sliding_window": None},
    "Qwen2 whose last layers slide": QWEN2
    | {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
    "Qwen2 whose sliding layers begin behind the last": QWEN2
    | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 2},
    "Qwen2 that names a window and does not use it": QWEN2
    | {"use_sliding_window": False, "sliding_window": 32768},
    "layers by kind": QWEN3
    | {"use_sliding_window": True, "sliding_window": 8, "layer_types": [SLIDES, FULL]},
    "nothing odd": {"hidden_act": "silu", "mlp_bias": False, "quantization_config": None},
    "one known architecture": {"architectures": ["Mamba", "Qwen3ForCausalLM"]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "another architecture": {"architectures": ["MixtralForCausalLM"]},
    "no architecture": {"architectures": None},
    "Qwen3-8B-FP8": QWEN3 | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}},
    "longrope": {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
    "a part of each head is turned": {"partial_rotary_factor": 0.5},
    "biases": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    "Llama with a window": {"sliding_window": 100},
    "Qwen2 with a layer that slides nowhere": QWEN2 | {"layer_types": [SLIDES, FULL]},
    "a window below 0": MISTRAL | {"sliding_window": -1},
    "a rope without end": {"rope_theta": float("inf")},
    "yarn that shrinks to nothing": {"rope_scaling": YARN | {"factor": 0}},
    "an odd head": {"head_dim": 15},
    "more layers than any model has": {"num_hidden_layers": 10**12},
}


def answers(folder: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    """What the engine and the Job say of it: reason and message, or None where they take it."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    engine = job = None
    try:
        read_spec(folder)
    except LoadError as error:
        engine = error.reason, error.message.replace(f"{folder}/", "")
    try:
        check_config(path, any_architecture=False)
    except FetchError as error:
        job = error.reason, error.message
    return engine, job


@pytest.mark.parametrize("case", TAKEN)
def test_the_job_takes_what_the_engine_takes(case: str, tmp_path: Path) -> None:
    assert answers(tmp_path, SMALL | TAKEN[case]) == (None, None)


@pytest.mark.parametrize("case", REFUSED)
def test_the_job_refuses_what_the_engine_refuses_in_the_same_words(
    case: str, tmp_path: Path
) -> None:
    engine, job = answers(tmp_path, SMALL | REFUSED[case])
    assert engine is not None
    assert job == engine


@pytest.mark.parametrize("case", REFUSED)
def test_an_engine_image_of_ones_own_may_take_any_of_them(case: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | REFUSED[case]))
    check_config(path, any_architecture=True)


_values = st.sampled_from([None, 0, -1, 1, 2, 3, 0.5, 8.0, "", "2", "x", True, False, [], {}])
_ropes = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic"]),
        **dict.fromkeys(
            (
                *("type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
                *("original_max_position_embeddings", "beta_slow", "beta_fast", "mscale"),
                *("mscale_all_dim", "attention_factor", "partial_rotary_factor"),
            ),
            _values,
        ),
    },
)
_kinds = st.lists(st.sampled_from([SLIDES, FULL, "other"]), min_size=1, max_size=3)
_changes = st.fixed_dictionaries(
    {"architectures": st.sampled_from([c["architectures"] for c in (SMALL, MISTRAL, QWEN2)])},
    optional={
        "rope_scaling": _ropes | _values,
        "rope_parameters": _ropes,
        "layer_types": _kinds | _values,
        **dict.fromkeys(
            (
                *("sliding_window", "use_sliding_window", "max_window_layers", "rope_theta"),
                *("head_dim", "num_key_value_heads", "hidden_act", "attention_bias"),
                *("num_hidden_layers", "hidden_size", "quantization_config"),
            ),
            _values,
        ),
    },
)


@given(changes=_changes)
def test_both_say_the_same_of_any_config(
    changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine, job = answers(tmp_path_factory.mktemp("model"), SMALL | changes)
    assert job == engine
