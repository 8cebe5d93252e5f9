"""Which models are refused, and with which words, before or after their files came."""

import json
from pathlib import Path

import pytest

from argosy_fetch.check import check_index, check_weights, wanted
from argosy_fetch.source import FetchError, RemoteFile


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1) for name in names]


def test_weights_settings_and_tokenizer_are_wanted_in_the_order_of_their_names() -> None:
    taken = ["config.json", "chat.jinja", "merges.txt", "m-2.safetensors", "m-1.safetensors",
             "tokenizer.model", "x_tokenizer.v3.model", "a.b-c.json"]  # fmt: skip
    left = ["README.md", "sub/m.safetensors", "m.bin", "run.py", "vocab.txt", "other.model"]
    chosen = wanted(remote(*left, *taken), any_weights=True)
    assert [file.name for file in chosen] == sorted(taken)


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
        (["model.safetensors"], "WeightsInvalid: there is no config.json beside the weights"),
    ],
)
@pytest.mark.parametrize("any_weights", [False, True])
def test_what_cannot_be_served_is_refused_by_name(
    names: list[str], says: str, any_weights: bool
) -> None:
    with pytest.raises(FetchError) as refused:
        wanted(remote(*names), any_weights=any_weights)
    assert str(refused.value) == says


MISTRALS = [
    "consolidated.safetensors",
    "consolidated-00001-of-00002.safetensors",
    "consolidated.safetensors.index.json",
]


def test_weights_that_are_there_once_more_in_mistrals_format_are_left() -> None:
    """An engine image of one's own may read them: vLLM does with --load-format mistral."""
    files = ["config.json", "model.safetensors", "consolidator.json"]
    for any_weights, taken in ((False, files), (True, files + MISTRALS)):
        chosen = wanted(remote(*files, *MISTRALS), any_weights=any_weights)
        assert [file.name for file in chosen] == sorted(taken)


@pytest.mark.parametrize("name", ["consolidated.safetensors", "m.safetensors"])
def test_weights_under_names_that_the_engine_does_not_open_are_refused(name: str) -> None:
    files = remote(name, "config.json")
    with pytest.raises(FetchError) as refused:
        wanted(files, any_weights=False)
    listed = ", ".join(sorted(["config.json", name]))
    assert str(refused.value) == (
        "WeightsInvalid: there is neither model.safetensors nor model.safetensors.index.json, "
        f"only {listed}"
    )
    assert len(wanted(files, any_weights=True)) == 2
    assert wanted(remote("model.safetensors.index.json", name, "config.json"), any_weights=False)


def index(folder: Path, **shard_of: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": shard_of}))
    return path


def test_files_that_an_index_names_and_the_source_lacks_are_named(tmp_path: Path) -> None:
    path = index(tmp_path, a="2.safetensors", b="3.safetensors", c="1.safetensors", d="1.bin")
    with pytest.raises(FetchError) as refused:
        check_index(path, {"3.safetensors"})
    assert str(refused.value) == (
        "WeightsInvalid: model.safetensors.index.json names 3 of 4 files that are not beside it: "
        "1.bin, 1.safetensors, 2.safetensors"
    )
    check_index(path, {"model.safetensors"})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "JSONDecodeError("),
        ("[]", "TypeError("),
        ("{}", "KeyError('weight_map')"),
        ('{"weight_map": []}', "AttributeError("),
        ('{"weight_map": {"a": 1}}', "TypeError("),
        ("[" * 100_000, "RecursionError("),
    ],
)
def test_an_index_that_cannot_be_read_is_refused(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(FetchError) as refused:
        check_index(path, set())
    said = "WeightsInvalid: model.safetensors.index.json cannot be read: "
    assert str(refused.value).startswith(said + why)


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
