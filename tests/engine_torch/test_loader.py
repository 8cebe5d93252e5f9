"""What a broken folder is called, and weights that are made up."""

import json

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402


def start(folder, **options):
    return load(
        EngineConfig(
            model=str(folder), served_name="m", **{"threads": 1, "kv_cache_tokens": 512, **options}
        )
    )


@pytest.fixture
def tiny(tmp_path):
    return write_tiny(tmp_path / "tiny")


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def reason_of(folder, **options):
    with pytest.raises(LoadError) as failure:
        start(folder, **options)
    return failure.value.reason, failure.value.message


def test_a_missing_folder_and_a_missing_file_are_not_found(tmp_path, tiny):
    assert reason_of(tmp_path / "none")[0] == "ModelNotFound"
    (tiny / "model.safetensors").unlink()
    (tiny / "pytorch_model.bin").touch()
    reason, message = reason_of(tiny)
    assert reason == "ModelNotFound"
    assert "never loaded: convert them to safetensors" in message


def test_a_truncated_file_and_foreign_shapes_are_invalid_weights(tiny):
    change(tiny, intermediate_size=96)
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert "config.json and weights are of different models" in message
    file = tiny / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert reason_of(tiny)[0] == "WeightsInvalid"


@pytest.mark.parametrize(
    "values", [{"num_attention_heads": 0}, {"rope_scaling": "x"}, {"hidden_size": "wide"}]
)
def test_nonsense_in_the_config_is_a_typed_failure(tiny, values):
    change(tiny, **values)
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert "config.json" in message


def test_the_configs_end_counts_where_the_generation_config_has_none(tiny):
    change(tiny, eos_token_id=0)
    (tiny / "generation_config.json").write_text('{"eos_token_id": null}')
    (tiny / "tokenizer_config.json").unlink()
    runner, _ = start(tiny)
    assert runner.eos_token_ids == {0}


@pytest.mark.parametrize(
    ("ids", "ends"), [([0], {0, 2}), ([None], {2}), ([2], {2}), ([[0, 1]], {0, 1, 2})]
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_end_that_only_the_tokenizer_names_ends_a_text_too(tiny, ids, ends, file):
    change(tiny, eos_token_id=ids[0])
    (tiny / "generation_config.json").unlink()
    (tiny / "tokenizer_config.json").unlink()
    (tiny / file).write_text('{"eos_token": {"content": "<|im_end|>"}}')
    runner, tokenizer = start(tiny)
    assert tokenizer.encode("<|im_end|>") == [2]
    assert runner.eos_token_ids == ends


@pytest.mark.parametrize("end", ["<|nothing|>", None, ""])
def test_an_end_that_the_tokenizer_does_not_have_ends_nothing(tiny, end):
    (tiny / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    runner, _ = start(tiny)
    assert runner.eos_token_ids == {2}


def test_an_unknown_architecture_names_the_known_ones(tiny):
    change(tiny, architectures=["GPT2LMHeadModel"])
    with pytest.raises(LoadError, match="LlamaForCausalLM") as failure:
        read_spec(tiny)
    assert failure.value.reason == "UnsupportedArchitecture"


@pytest.mark.parametrize("names", [None, [], "LlamaForCausalLM"])
def test_a_config_without_a_list_of_architectures_names_the_known_ones(tiny, names):
    change(tiny, architectures=names)
    reason, message = reason_of(tiny)
    assert reason == "UnsupportedArchitecture"
    assert "LlamaForCausalLM, MistralForCausalLM" in message


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"sliding_window": 100}, "sliding_window=100"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2},
            "sliding_window=4096 with layer_types",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 2},
            "layer_types=['chunked_attention', 'chunked_attention']",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]},
            "and 2 layers",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"mlp_bias": True}, "mlp_bias=true"),
    ],
)
def test_what_would_change_the_logits_is_refused_by_name(tiny, values, named):
    change(tiny, **values)
    reason, message = reason_of(tiny)
    assert reason == "UnsupportedArchitecture"
    assert named in message
    assert "choose a checkpoint without it" in message


def test_a_rope_type_that_is_not_computed_names_those_that_are(tiny):
    change(tiny, rope_scaling={"rope_type": "longrope", "factor": 2.0})
    reason, message = reason_of(tiny)
    assert reason == "UnsupportedArchitecture"
    assert "'longrope': the engine computes default, linear, llama3 and yarn" in message


def test_yarn_lengthens_the_context_as_its_factor_says(tiny):
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    change(tiny, rope_scaling=yarn)
    runner, _ = start(tiny, kv_cache_tokens=8192)
    assert runner.max_model_len == 4096


def test_a_window_as_long_as_the_context_is_none(tiny):
    change(tiny, architectures=["MistralForCausalLM"], sliding_window=1024)
    assert read_spec(tiny).windows == (0, 0)
    change(tiny, sliding_window=1023)
    assert read_spec(tiny).windows == (1023, 1023)


def test_a_pool_that_cannot_fit_says_what_to_lower(tiny):
    reason, message = reason_of(tiny, kv_cache_tokens=10**12)
    assert reason == "OutOfMemory"
    assert "lower --kv-cache-tokens" in message


def test_dummy_weights_need_no_file_and_compute_finite_steps(tiny):
    (tiny / "model.safetensors").unlink()
    runner, _ = start(tiny, load_format="dummy")
    runner.warm_up()
    assert runner.kv_layout().capacity_tokens == 512


def test_bfloat16_halves_a_block(tiny):
    wide, _ = start(tiny, dtype="float32")
    narrow, _ = start(tiny, dtype="bfloat16")
    narrow.warm_up()
    assert 2 * narrow.kv_layout().block_bytes == wide.kv_layout().block_bytes
    assert wide.kv_layout().fingerprint != narrow.kv_layout().fingerprint


def test_the_chat_template_of_the_folder_wraps_messages(tiny):
    _, tokenizer = start(tiny)
    text = tokenizer.chat_text([{"role": "user", "content": "hi"}])
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = tokenizer.new_detokenizer([])
    text = "".join(decoder.push(i) for i in ids) + decoder.flush()
    assert "user\nhi" in text
    assert text.endswith("assistant\n")
