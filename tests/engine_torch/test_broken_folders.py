"""A model's folder that is damaged, nonsense or hostile: a typed failure that names the file."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.test_loader import change, reason_of, start  # noqa: E402


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("whole") / "tiny")


@pytest.fixture
def tiny(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "tiny")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"head_dim": 15}, "head_dim must be even, and is 15"),
        ({"head_dim": -16}, "head_dim must be a whole number from 1 on, and is -16"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 on"),
        ({"hidden_size": 64.5}, "hidden_size must be a whole number"),
        ({"vocab_size": True}, "vocab_size must be a whole number"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be a whole number"),
        ({"max_position_embeddings": 1e308}, "max_position_embeddings must be a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be above 0 and finite, and is nan"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be above 0"),
        ({"rope_theta": float("inf")}, "rope_theta must be above 0 and finite"),
        ({"rope_theta": -1}, "rope_theta must be above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor of the rope must be above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": -2}}, "factor of the rope must be above 0"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": -5},
            "sliding_window must be at least 1, and is -5",
        ),
    ],
)
def test_a_number_that_would_end_the_start_or_make_no_number_of_each_logit_is_named(
    tiny, values, named
):
    change(tiny, **values)
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert named in message


@pytest.mark.parametrize("ids", ["x", [None], [[1]], [1.5], -1, {}])
def test_an_end_that_is_no_token_is_named(tiny, ids):
    (tiny / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert "eos_token_id must be a token id or a list of them" in message


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "", '{"a": "b', "\0"])
def test_a_file_of_the_folder_that_is_no_json_object_is_named(tiny, name, text):
    (tiny / name).write_text(text)
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert name in message


@pytest.mark.parametrize(
    "index",
    [
        "[" * 100_000,
        "[]",
        '{"weight_map": null}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": "other.safetensors"}}',
    ],
)
def test_an_index_that_names_no_files_is_named(tiny, index):
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors.index.json").write_text(index)
    assert reason_of(tiny)[0] == "WeightsInvalid"


def test_an_index_reaches_no_file_outside_of_the_folder(tiny):
    outside = tiny.parent / "outside.safetensors"
    (tiny / "model.safetensors").rename(outside)
    index = {"weight_map": {"model.norm.weight": f"../{outside.name}"}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert f"{tiny / outside.name} is not a whole safetensors file" in message


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_never_unpickled_whatever_it_is_called(tiny):
    proof = tiny / "proof"
    (tiny / "model.safetensors").write_bytes(pickle.dumps(Touch(proof)))
    assert reason_of(tiny)[0] == "WeightsInvalid"
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    assert reason_of(tiny)[0] == "ModelNotFound"
    assert not proof.exists()


def test_the_folders_own_code_is_not_run_where_the_engine_has_the_architecture(tiny):
    proof = tiny / "proof"
    (tiny / "modeling_x.py").write_text(f"open({str(proof)!r}, 'w').close()")
    named = {"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M"}
    change(tiny, auto_map=named, trust_remote_code=True)
    start(tiny)
    assert not proof.exists()


def test_a_chat_template_too_deep_to_read_is_named(tiny):
    path = tiny / "tokenizer_config.json"
    source = "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"
    path.write_text(json.dumps({"chat_template": source}))
    reason, message = reason_of(tiny)
    assert reason == "WeightsInvalid"
    assert "tokenizer_config.json: RecursionError" in message
