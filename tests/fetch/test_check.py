"""Which models are refused, and with which words, before or after their files came."""

import json
from pathlib import Path

import pytest

from argosy_fetch.check import check_config, check_weights, wanted
from argosy_fetch.errors import FetchError
from argosy_fetch.source import RemoteFile


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1) for name in names]


def test_weights_settings_and_tokenizer_are_wanted_in_the_order_of_their_names() -> None:
    taken = ["config.json", "chat.jinja", "merges.txt", "m-2.safetensors", "m-1.safetensors",
             "tokenizer.model", "x_tokenizer.v3.model", "a.b-c.json"]  # fmt: skip
    left = ["README.md", "sub/m.safetensors", "m.bin", "run.py", "vocab.txt", "other.model"]
    assert [file.name for file in wanted(remote(*left, *taken))] == sorted(taken)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["b.bin", "a.pt", "x.md"], "OnlyPickles: the only weights are pickles: a.pt, b.bin"),
        (
            ["d.ckpt", "c.pth", "b.bin", "a.pt"],
            "OnlyPickles: the only weights are pickles: a.pt, b.bin, c.pth, d.ckpt",
        ),
        (
            ["f.pickle", "e.pkl", "d.ckpt", "c.pth", "b.bin", "a.pt"],
            "OnlyPickles: the only weights are pickles: a.pt, b.bin, c.pth, d.ckpt and 2 more",
        ),
        (
            ["config.json", "README.md"],
            "WeightsInvalid: there are no *.safetensors files, only README.md, config.json",
        ),
        ([], "WeightsInvalid: there are no *.safetensors files, only nothing"),
        (["m.safetensors"], "WeightsInvalid: there is no config.json beside the weights"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(names: list[str], says: str) -> None:
    with pytest.raises(FetchError) as refused:
        wanted(remote(*names))
    assert str(refused.value) == says


RUNS = "the engine runs LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
NONE_NAMED = f"UnsupportedArchitecture: the model says architectures=[]; {RUNS}"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, NONE_NAMED),
        ({"architectures": "LlamaForCausalLM"}, NONE_NAMED),
        (
            {"architectures": ["Mamba", 5]},
            f"UnsupportedArchitecture: the model says architectures=['Mamba', '5']; {RUNS}",
        ),
        ([], "WeightsInvalid: config.json cannot be read: it must hold a JSON object"),
    ],
)
def test_a_config_that_the_engine_does_not_run_is_refused(
    config: object, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(FetchError) as refused:
        check_config(path, any_architecture=False)
    assert str(refused.value) == says
    if isinstance(config, dict):
        check_config(path, any_architecture=True)


def test_one_known_architecture_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["Mamba", "Qwen3ForCausalLM"], "by": "Müller"}')
    check_config(path, any_architecture=False)


def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(FetchError, match="cannot be read: "):
        check_config(tmp_path / "config.json", any_architecture=True)


def safetensors(header: object, body: int = 0, says: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if says is None else says).to_bytes(8, "little") + text + bytes(body)


def tensors(*ends: int) -> dict[str, object]:
    return {str(end): {"data_offsets": [0, end]} for end in ends}


@pytest.mark.parametrize(
    "content",
    [
        safetensors({}),
        safetensors(tensors(8), 8),
        safetensors(tensors(4, 8, 6), 8),
        safetensors({"__metadata__": {"format": "pt"}, **tensors(3)}, 3),
    ],
)
def test_a_file_whose_tensors_end_where_it_does_is_whole(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(content)
    check_weights(tmp_path / "m")


NOT_OBJECT = "'list' object has no attribute 'items'"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "its header would be 0 bytes long"),
        (safetensors({}, says=1), "its header would be 1 bytes long"),
        (safetensors({}, says=3), "its header would be 3 bytes long"),
        (safetensors({}, 1), "its tensors end at 10 of 11"),
        (safetensors(tensors(8), 7), "its tensors end at 47 of 46"),
        (safetensors({"t": 5}), "'int' object is not subscriptable"),
        (safetensors({"t": {}}), "'data_offsets'"),
        (safetensors({"t": {"data_offsets": [0]}}), "list index out of range"),
        (safetensors([]), NOT_OBJECT),
    ],
)
def test_a_file_that_is_not_whole_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(FetchError) as refused:
        check_weights(tmp_path / "m.safetensors")
    whole = f"WeightsInvalid: m.safetensors is not a whole safetensors file: {why}"
    assert str(refused.value) == whole


def test_a_header_that_no_model_has_is_not_read(tmp_path: Path) -> None:
    longest = 100 << 20
    with (tmp_path / "m").open("wb") as file:
        file.write((longest + 1).to_bytes(8, "little"))
        file.truncate(longest + 100)
    with pytest.raises(FetchError, match=f"its header would be {longest + 1} bytes long"):
        check_weights(tmp_path / "m")
