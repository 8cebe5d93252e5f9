"""What a broken folder is called, and weights that are made up."""

import json

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
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
