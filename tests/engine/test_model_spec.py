"""What a config.json says of a model: every number that the trunk computes with, by both spellings
and with the defaults of Hugging Face's classes, and what is refused."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.model_config import ModelConfigError, ModelSpec, Rope, read_model
from argosy_engine.errors import LoadError
from argosy_engine.model.spec import read_dtype, read_generation, read_spec, trunk_knows

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 259,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
MISTRAL, QWEN2 = {"architectures": ["MistralForCausalLM"]}, {"architectures": ["Qwen2ForCausalLM"]}


@pytest.fixture
def model(tmp_path):
    def write(generation=None, **values):
        """The folder of CONFIG with these values; without those that are Ellipsis."""
        config = {name: value for name, value in (CONFIG | values).items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(config))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return write


def refusal(folder):
    with pytest.raises(LoadError) as refused:
        read_spec(folder)
    return refused.value.reason, refused.value.message


def test_a_small_config_is_read_whole(model):
    spec = read_spec(model(torch_dtype="float32"))
    assert spec == ModelSpec(
        architecture="LlamaForCausalLM",
        layers=3,
        kv_heads=2,
        head_dim=16,
        vocab=259,
        max_positions=1024,
        dtype="float32",
        hidden=64,
        inner=96,
        heads=4,
        norm_eps=1e-5,
        rope=Rope(theta=10000.0),
        windows=(0, 0, 0),
        qkv_bias=False,
        qk_norm=False,
        tied=False,
    )
    assert (spec.q_size, spec.kv_size) == (64, 32)
    assert spec.kv_bytes_per_token(2) == 3 * 2 * 32 * 2
    assert spec.trunk_parameters == 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    assert spec.parameters == spec.trunk_parameters + 2 * 259 * 64


def test_what_architectures_have_beside_the_others(model):
    assert read_spec(model(**QWEN2)).qkv_bias
    assert read_spec(model(architectures=["Other", "Qwen3ForCausalLM"])).qk_norm
    tied = read_spec(model(tie_word_embeddings=True, head_dim=32))
    assert tied.tied
    assert tied.head_dim == 32
    assert tied.parameters == tied.trunk_parameters + 259 * 64
    assert read_spec(model(num_key_value_heads=...)).kv_heads == 4


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "float16", "dtype": "float32"}, "float16"),
        ({}, "bfloat16"),
    ],
)
def test_the_checkpoints_type_is_read_by_its_old_and_its_new_name(model, values, kind):
    folder = model(**values)
    assert read_dtype(folder) == read_spec(folder).dtype == kind


def test_the_generation_config_names_the_ends_before_the_config(model):
    assert read_generation(model({"eos_token_id": [0, 7]}))[0] == {0, 7}
    assert read_generation(model({"eos_token_id": 0}))[0] == {0}
    assert read_generation(model({}))[0] == {2}
    assert read_generation(model({}, eos_token_id=...))[0] == frozenset()


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.5,
    "high_freq_factor": 5.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
ROPES = [
    ({"rope_theta": 5e5}, Rope(theta=5e5)),
    ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, Rope(theta=5e5)),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(theta=10000.0, factor=2.0)),
    (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        Rope(
            theta=10000.0, kind="llama3", factor=8.0, slow_turns=1.5, fast_turns=5.0,
            original_positions=512,
        ),
    ),
    (
        {"rope_scaling": YARN},
        Rope(
            theta=10000.0, kind="yarn", factor=4.0, original_positions=1000, slow_turns=1.0,
            fast_turns=32.0, whole_pairs=True, length=0.1 * math.log(4) + 1,
        ),
    ),
    (
        {"rope_scaling": YARN | {"beta_slow": 2, "beta_fast": 16, "truncate": False}},
        Rope(
            theta=10000.0, kind="yarn", factor=4.0, original_positions=1000, slow_turns=2.0,
            fast_turns=16.0, whole_pairs=False, length=0.1 * math.log(4) + 1,
        ),
    ),
    (
        {"rope_scaling": YARN | {"attention_factor": 1.25}},
        Rope(
            theta=10000.0, kind="yarn", factor=4.0, original_positions=1000, slow_turns=1.0,
            fast_turns=32.0, length=1.25,
        ),
    ),
    (
        {"rope_scaling": YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}},
        Rope(
            theta=10000.0, kind="yarn", factor=4.0, original_positions=1000, slow_turns=1.0,
            fast_turns=32.0, length=(0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1),
        ),
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 256}},
        Rope(
            theta=10000.0, kind="yarn", factor=4.0, original_positions=256, slow_turns=1.0,
            fast_turns=32.0, length=0.1 * math.log(4) + 1,
        ),
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 1.0}},
        Rope(
            theta=10000.0, kind="yarn", factor=1.0, original_positions=1024, slow_turns=1.0,
            fast_turns=32.0, length=1.0,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "rope"), ROPES, ids=str)
def test_rope_is_read_in_both_spellings_with_hugging_faces_defaults(model, values, rope):
    assert read_spec(model(**values)).rope == rope


def test_only_yarn_lengthens_the_context(model):
    assert read_spec(model(rope_scaling=YARN)).max_positions == 4000
    assert read_spec(model(rope_scaling={**YARN, "factor": 1.5})).max_positions == 1500
    assert read_spec(model(rope_scaling={**YARN, "factor": 1.0})).max_positions == 1024
    linear = {"type": "linear", "factor": 4.0}
    assert read_spec(model(rope_scaling=linear)).max_positions == 1024


SLIDES, FULL = "sliding_attention", "full_attention"
QWEN_SLIDES = QWEN2 | {"use_sliding_window": True, "max_window_layers": 1}
WINDOWS = [
    (MISTRAL | {"sliding_window": 100}, (100, 100, 100)),
    (MISTRAL | {"max_position_embeddings": 8192}, (4096, 4096, 4096)),
    (MISTRAL | {"sliding_window": None}, (0, 0, 0)),
    (MISTRAL | {"sliding_window": 1024}, (0, 0, 0)),
    ({"sliding_window": None}, (0, 0, 0)),
    (QWEN_SLIDES | {"sliding_window": 100}, (0, 100, 100)),
    (QWEN_SLIDES | {"max_position_embeddings": 8192}, (0, 4096, 4096)),
    (QWEN2 | {"sliding_window": 100}, (0, 0, 0)),
    (QWEN2 | {"use_sliding_window": True, "sliding_window": 100}, (0, 0, 0)),
    (QWEN_SLIDES | {"sliding_window": 100, "layer_types": [SLIDES, FULL, SLIDES]}, (100, 0, 100)),
    (
        QWEN_SLIDES | {"sliding_window": 100, "num_hidden_layers": 30, "max_window_layers": ...},
        (0,) * 28 + (100, 100),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "windows"), WINDOWS, ids=str)
def test_windows_are_those_of_hugging_faces_classes(model, values, windows):
    assert read_spec(model(**values)).windows == windows


FP8_ALONE = "(only FP8 weights are read)"


def compressed(**weights):
    """As llm-compressor writes it, for FP8 but for `weights`."""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"} | weights
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"dynamic": True}}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


BLOCKS = {"strategy": "block", "block_structure": [128, 128]}
FP8 = [
    ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": []}, None),
    ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]}, (128, 64)),
    (compressed(), None),
    (compressed(strategy="channel"), None),
    (compressed(**BLOCKS), (128, 128)),
]


@pytest.mark.parametrize(("quantization", "block"), FP8, ids=str)
def test_fp8_of_either_format_is_read_with_its_blocks(model, quantization, block):
    spec = read_spec(model(quantization_config=quantization))
    assert (spec.fp8, spec.fp8_block) == (True, block)


def test_other_weights_are_not_fp8(model):
    assert not read_spec(model(quantization_config=None)).fp8


@pytest.mark.parametrize("block", [[128], [0, 128], "ab", 128])
def test_blocks_that_are_none_are_refused(model, block):
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    assert refusal(model(quantization_config=quantization))[0] == "WeightsInvalid"


REFUSED = [
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor=0.25"),
    ({"hidden_act": "gelu"}, "hidden_act=gelu"),
    ({"mlp_bias": True}, "mlp_bias=true"),
    ({"attention_bias": True, "mlp_bias": True}, "mlp_bias=true, attention_bias=true"),
    ({"quantization_config": {"bits": 4}}, f"quantization_config of no method {FP8_ALONE}"),
    *(
        (
            {"quantization_config": {"quant_method": name, "bits": 4}},
            f"quantization_config of {name} {FP8_ALONE}",
        )
        for name in ("awq", "gptq", "mxfp4")
    ),
    (
        {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}},
        f"quantization_config of fp8 {FP8_ALONE}",
    ),
    *(
        (
            {"quantization_config": compressed(**weights)},
            f"quantization_config of compressed-tensors {FP8_ALONE}",
        )
        for weights in (
            {"type": "int"},
            {"num_bits": 4},
            {"symmetric": False},
            {"strategy": "group", "group_size": 128},
        )
    ),
    ({"sliding_window": 100}, "sliding_window=100"),
    (MISTRAL | {"layer_types": [FULL] * 3}, "sliding_window=4096 with layer_types"),
    (
        QWEN2 | {"layer_types": [SLIDES, FULL, FULL]},
        f"layer_types={[SLIDES, FULL, FULL]} with sliding_window=0 and 3 layers",
    ),
    (
        QWEN2 | {"layer_types": [FULL, FULL]},
        f"layer_types={[FULL, FULL]} with sliding_window=0 and 3 layers",
    ),
]


@pytest.mark.parametrize(("values", "named"), REFUSED, ids=str)
def test_what_is_not_computed_is_refused_by_name(model, values, named):
    assert refusal(model(**values)) == (
        "UnsupportedArchitecture",
        f"config.json asks for {named}, which the engine does not compute: choose a checkpoint "
        "without it, or set engine.type: vllm",
    )


def test_a_file_that_lacks_a_number_or_is_not_there_is_named(model, tmp_path):
    assert refusal(tmp_path / "none") == (
        "ModelNotFound",
        f"{tmp_path}/none is not a folder: mount the model there, or give --model its path",
    )
    assert refusal(tmp_path) == (
        "ModelNotFound",
        f"{tmp_path}/config.json does not exist: --model wants a Hugging Face folder",
    )
    assert refusal(model(vocab_size=...)) == (
        "WeightsInvalid",
        f"{tmp_path}/config.json lacks 'vocab_size': copy the model's own file",
    )
    (tmp_path / "config.json").write_text("[]")
    assert refusal(tmp_path) == (
        "WeightsInvalid", f"{tmp_path}/config.json must hold a JSON object",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["LlamaForCausalLM"], True),
        (["Other", "Qwen3ForCausalLM"], True),
        (["Other"], False),
        # Without names the trunk says which there are.
        ([], True),
        (None, True),
        ("Other", True),
    ],
)
def test_the_trunk_leaves_models_to_hugging_face_that_name_another_architecture(
    model, names, known
):
    assert trunk_knows(model(architectures=names)) is known


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
    {"architectures": st.sampled_from([c["architectures"] for c in (CONFIG, MISTRAL, QWEN2)])},
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
def test_any_config_is_read_or_refused_with_a_reason(changes):
    with contextlib.suppress(ModelConfigError):
        assert read_model(CONFIG | changes).layers > 0


def test_more_layers_than_any_model_has_are_refused_at_once(model):
    assert refusal(model(num_hidden_layers=10**12))[0] == "WeightsInvalid"
