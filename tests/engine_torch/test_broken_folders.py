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
