"""How the claim is filled from a source in memory: what is continued, compared and marked."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from argosy_fetch import cli, fill
from argosy_fetch.fill import PARTIAL, fetch
from argosy_fetch.source import MARKER, FetchError, Listing, RemoteFile, RestartedError

COMMIT = "c" * 40
FOLDER = f"hf/org--tiny/{COMMIT}"
CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        **dict.fromkeys(("num_attention_heads", "num_hidden_layers", "vocab_size"), 2),
        **dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 8),
        "rms_norm_eps": 1e-5,
    }
).encode()
WEIGHTS = (2).to_bytes(8, "little") + b"{}"
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}
SIZE = len(CONFIG)
WHOLE = SIZE + 12


class Shelf:
    """A source: what it has, what it gives, and where it was read from."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.given: dict[str, list[bytes]] = {}
        """What the next reads of a file give, in place of its content."""
        self.restarts = False
        self.read_from: list[tuple[str, int]] = []

    def listing(self) -> Listing:
        files = tuple(RemoteFile(name, len(data)) for name, data in self.files.items())
        return Listing(COMMIT, FOLDER, files)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.read_from.append((file.name, start))
        if self.restarts and start:
            raise RestartedError
        queued = self.given.get(file.name)
        yield queued.pop(0) if queued else self.files[file.name][start:]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.mark.parametrize("trouble", ["marker of another commit", "short file", "no file", "list"])
def test_a_folder_that_does_not_fit_its_marker_is_filled_again(
    trouble: str, shelf: Shelf, tmp_path: Path
) -> None:
    fill.fill(shelf, tmp_path, "chat")
    place = tmp_path / FOLDER
    match trouble:
        case "marker of another commit":
            (place / MARKER).write_text('{"commit": "other"}')
        case "short file":
            (place / "tokenizer.json").write_bytes(b"{")
        case "no file":
            (place / "tokenizer.json").unlink()
        case "list":
            (place / MARKER).write_text("[]")
    fill.fill(shelf, tmp_path, "chat")
    assert json.loads((place / MARKER).read_text())["commit"] == COMMIT
    assert (place / "tokenizer.json").read_bytes() == b"{}"


def asked(name: str, content: bytes, **digests: str) -> RemoteFile:
    return RemoteFile(name, len(content), tuple(digests.items()))


def test_a_short_answer_is_continued_and_a_wrong_one_begins_again(
    shelf: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.files["x"] = b"0123456789"
    shelf.given["x"] = [b"01234"]
    fetch(shelf, asked("x", b"0123456789"), tmp_path)
    assert (tmp_path / "x").read_bytes() == b"0123456789"
    assert shelf.read_from == [("x", 0), ("x", 5)]
    assert caplog.messages == ["x is asked for again: 5 of 10 bytes came"]
    (tmp_path / "x").unlink()
    shelf.read_from.clear()
    shelf.given["x"] = [b"0123456789abc"]
    fetch(shelf, asked("x", b"0123456789"), tmp_path)
    assert shelf.read_from == [("x", 0), ("x", 0)]
    assert not (tmp_path / "x.part").exists()


def test_a_file_that_never_fits_is_named_and_what_is_short_is_kept(
    shelf: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.given["x"] = [b"01", b"2"]
    with pytest.raises(FetchError) as refused:
        fetch(shelf, asked("x", b"0123456789"), tmp_path)
    assert str(refused.value) == (
        "FilesIncomplete: x does not fit what its source says: 3 of 10 bytes came"
    )
    assert len(caplog.messages) == 1
    assert (tmp_path / "x.part").read_bytes() == b"012"
    shelf.given["x"] = [b"3" * 8, b"0" * 11]
    with pytest.raises(FetchError, match="more than 10 bytes came"):
        fetch(shelf, asked("x", b"0123456789"), tmp_path)
    assert not (tmp_path / "x.part").exists()


def test_a_source_that_always_restarts_gives_nothing(tmp_path: Path) -> None:
    class Restarts(Shelf):
        def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
            raise RestartedError
            yield b""

    with pytest.raises(FetchError, match="x does not fit what its source says: nothing came"):
        fetch(Restarts(), asked("x", b"0123"), tmp_path)


@pytest.mark.parametrize(
    ("kind", "digits"),
    [
        ("sha256", "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589"),
        ("md5", "e2fc714c4727ee9395f324cd2e7f331f"),
        ("git", "85df50785d62d3b05ab03d9cbf7e4a0b49449730"),
    ],
)
def test_a_content_is_known_by_its_digest(
    kind: str, digits: str, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests are those of `printf abcd` by sha256sum, md5sum and git hash-object."""
    monkeypatch.setattr(fill, "CHUNK", 3)
    shelf.files["x"] = b"abcd"
    fetch(shelf, asked("x", b"abcd", **{kind: digits}), tmp_path)
    shelf.files["y"] = b"abce"
    with pytest.raises(FetchError, match=f"what its source says: its {kind} digest is another$"):
        fetch(shelf, asked("y", b"abce", **{kind: digits}), tmp_path)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(fill.shutil, "disk_usage", lambda _: SimpleNamespace(free=count))


def test_room_is_counted_without_what_is_there(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, WHOLE - 1)
    with pytest.raises(FetchError) as refused:
        fill.fill(shelf, tmp_path, "chat")
    assert str(refused.value) == (
        f"VolumeFull: the model does not fit into the claim: {WHOLE} more bytes are needed, and "
        f"the claim has {WHOLE - 1} free"
    )
    partial = tmp_path / PARTIAL / "chat" / COMMIT
    (partial / "config.json.part").write_bytes(CONFIG[:10])
    free(monkeypatch, WHOLE - 10)
    fill.fill(shelf, tmp_path, "chat")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, f"VolumeFull: the model does not fit into the claim: it has {WHOLE} bytes, "
         "and no space was left while it was written"),
        (errno.EDQUOT, f"VolumeFull: the model does not fit into the claim: it has {WHOLE} bytes, "
         "and no space was left while it was written"),
        (errno.EROFS, "VolumeNotWritable: {} cannot be written: Read-only file system"),
        (None, "VolumeNotWritable: {} cannot be written: odd"),
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_written_is_named_with_the_cause(
    code: int | None, says: str, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError("odd") if code is None else OSError(code, os.strerror(code))

    monkeypatch.setattr(fill.os, "fsync", fails)
    with pytest.raises(FetchError) as refused:
        fill.fill(shelf, tmp_path, "chat")
    assert str(refused.value) == says.format(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EEXIST, errno.EACCES])
def test_another_fleet_that_was_quicker_keeps_its_folder(
    code: int, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renamed(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "rename", renamed)
    if code == errno.EACCES:
        with pytest.raises(FetchError, match="Permission denied"):
            fill.fill(shelf, tmp_path, "chat")
    else:
        assert fill.fill(shelf, tmp_path, "chat").commit == COMMIT
        assert not (tmp_path / FOLDER / MARKER).exists(), "it is the other one's to mark"


def test_a_model_that_another_engines_fleet_fetched_is_looked_at_too(
    shelf: Shelf, tmp_path: Path
) -> None:
    shelf.files["config.json"] = CONFIG[:-1] + b', "quantization_config": {"bits": 4}}'
    fill.fill(shelf, tmp_path, "vllm", any_architecture=True)
    with pytest.raises(FetchError, match=r"UnsupportedArchitecture: config\.json asks for quanti"):
        fill.fill(shelf, tmp_path, "chat")


SHARDS = ("model-1.safetensors", "model-2.safetensors")


def sharded(shelf: Shelf) -> None:
    del shelf.files["model.safetensors"]
    shelf.files |= dict.fromkeys(SHARDS, WEIGHTS)
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    shelf.files["model.safetensors.index.json"] = json.dumps(index).encode()


@pytest.mark.parametrize("any_architecture", [False, True])
def test_a_shard_that_the_source_lacks_is_named_before_others_are_read(
    any_architecture: bool, shelf: Shelf, tmp_path: Path
) -> None:
    sharded(shelf)
    del shelf.files[SHARDS[1]]
    with pytest.raises(FetchError) as refused:
        fill.fill(shelf, tmp_path, "chat", any_architecture=any_architecture)
    assert str(refused.value) == (
        "WeightsInvalid: model.safetensors.index.json names 1 of 2 files that are not beside it: "
        "model-2.safetensors"
    )
    assert [name for name, _ in shelf.read_from] == ["config.json", "model.safetensors.index.json"]


def test_the_result_is_printed_too_and_a_long_reason_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--root", str(tmp_path), "--fleet", "chat", "--uri"]
    said = tmp_path / "said"
    assert cli.main([*words, "x" * 5000, "--termination-message", str(said)]) == 1
    out, err = capsys.readouterr()
    written = json.loads(said.read_text())
    assert written == json.loads(out)
    assert written == {"reason": "BadArgument", "message": "x" * 3000}
    end = " is not hf://<org>/<name>@<revision> or s3://<bucket>/<prefix>\n"
    assert err == f"BadArgument: {'x' * 5000}{end}"
    monkeypatch.setattr(cli, "_TERMINATION_LOG", str(tmp_path / "none"))
    assert cli.main([*words, "x"]) == 1
    assert not (tmp_path / "none").exists(), "outside a pod there is no such file"
