"""`argosy fetch run` against a hub and an S3 store that run beside the test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stores import Trouble, commit_of, serving

pytest.importorskip("obstore")

from argosy_fetch import cli, fill, hub, s3
from argosy_fetch.source import MARKER, RestartedError, hub_address, s3_address

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    **dict.fromkeys(("num_attention_heads", "num_hidden_layers", "vocab_size"), 2),
    **dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 8),
    "rms_norm_eps": 1e-5,
}
HUB, S3 = "hf://org/tiny@main", "s3://org/tiny"


def weights(numbers: int = 64) -> bytes:
    """A safetensors file with one tensor."""
    header = {"t": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(range(256)) * (numbers // 64)


class Place:
    """Repository `org/tiny` (and the same as a bucket), an empty claim, and what goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.model, self.claim = folder / "served/org/tiny", folder / "claim"
        self.model.mkdir(parents=True)
        self.claim.mkdir()
        self.trouble = Trouble()
        self.said = folder / "said"
        self.put("config.json", json.dumps(CONFIG).encode())
        self.put("model.safetensors", weights())
        self.put("tokenizer.json", b"{}")

    def put(self, name: str, content: bytes) -> None:
        (self.model / name).write_bytes(content)

    def fetch(self, uri: str, *flags: str) -> tuple[int, dict[str, Any]]:
        """Exit status of the command, and what the operator reads."""
        self.said.unlink(missing_ok=True)
        words = ["--uri", uri, "--root", str(self.claim), "--fleet", "chat"]
        words += ["--progress-port", "0"]
        status = cli.main(["run", *words, "--termination-message", str(self.said), *flags])
        return status, json.loads(self.said.read_text())

    def fetched(self, uri: str) -> Path:
        status, said = self.fetch(uri)
        assert status == 0, said
        return self.claim / said["path"]

    def refused(self, uri: str, *flags: str) -> tuple[str, str]:
        status, said = self.fetch(uri, *flags)
        assert status == 1
        assert not list(self.claim.rglob(MARKER))
        return said["reason"], said["message"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(tmp_path)
    with serving(tmp_path / "served", found.trouble) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(fill, "CHUNK", 64)
        monkeypatch.setattr(s3, "CHUNK", 64)
        monkeypatch.setattr(hub, "CHUNK", 64)
        yield found


@pytest.mark.parametrize("uri", [HUB, S3])
def test_a_model_is_fetched_whole_and_marked(place: Place, uri: str) -> None:
    folder = place.fetched(uri)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", MARKER}
    assert (folder / "model.safetensors").read_bytes() == weights()
    assert json.loads((folder / MARKER).read_text())["commit"] == folder.name
    assert not list((place.claim / fill.PARTIAL).iterdir())


@pytest.mark.parametrize("uri", [HUB, S3])
def test_a_model_that_is_there_is_not_fetched_again(place: Place, uri: str) -> None:
    place.fetched(uri)
    place.trouble.asked.clear()
    place.fetched(uri)
    assert place.trouble.asked == []


@pytest.mark.parametrize("uri", [HUB, S3])
def test_another_content_is_another_commit_beside_the_first(place: Place, uri: str) -> None:
    first = place.fetched(uri)
    place.put("tokenizer.json", b'{"a": 1}')
    second = place.fetched(uri)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()


@pytest.mark.parametrize("uri", [HUB, S3])
def test_a_file_that_was_cut_off_is_continued(place: Place, uri: str) -> None:
    place.put("model.safetensors", weights(640))
    place.trouble.cuts["model.safetensors"] = 1000
    status, said = place.fetch(uri)
    if status:  # the hub's client fails at once, and the container starts again
        assert said["reason"] == "SourceUnreachable"
        assert not list(place.claim.rglob(MARKER))
    folder = place.fetched(uri)
    assert (folder / "model.safetensors").read_bytes() == weights(640)
    ranges = [asked for name, asked in place.trouble.asked if name == "model.safetensors"]
    assert len(ranges) == 2
    assert int(ranges[-1].removeprefix("bytes=").rstrip("-")) > 0


def test_a_hub_that_knows_no_ranges_is_not_read_to_its_end_first(place: Place) -> None:
    place.trouble.whole = True
    source = hub.Hub("org/tiny", "main")
    (file,) = (f for f in source.listing().files if f.name == "model.safetensors")
    with pytest.raises(RestartedError):
        next(source.read(file, 10))


def test_a_hub_that_sends_clients_on_is_followed_and_asked_for_bytes_as_they_lie(
    place: Place,
) -> None:
    place.trouble.moved = True
    folder = place.fetched(HUB)
    assert (folder / "model.safetensors").read_bytes() == weights()
    assert place.trouble.encodings == {"identity"}


ENCRYPTION = "x-amz-server-side-encryption"


@pytest.mark.parametrize(
    ("says", "compared"),
    [
        ({}, True),
        ({ENCRYPTION: "AES256"}, True),
        ({ENCRYPTION: "aws:kms"}, False),
        ({f"{ENCRYPTION}-customer-algorithm": "AES256"}, False),
        ({ENCRYPTION: "aws:kms", f"{ENCRYPTION}-customer-algorithm": "AES256"}, False),
    ],
)
def test_the_tag_of_an_object_that_a_key_encrypts_is_no_digest_of_it(
    place: Place, says: dict[str, str], compared: bool
) -> None:
    place.trouble.says = says
    place.trouble.spoils.add("model.safetensors")  # its tag is not the MD5 of what comes
    assert place.fetch(S3)[0] == compared


@pytest.mark.parametrize(
    "there", [b"x" * 100, weights()[:200] + b"x"], ids=["no header", "another number"]
)
def test_a_partial_file_of_other_bytes_is_replaced(place: Place, there: bytes) -> None:
    partial = place.claim / fill.PARTIAL / "chat" / commit_of(place.model)
    partial.mkdir(parents=True)
    (partial / "model.safetensors.part").write_bytes(there)
    folder = place.fetched(HUB)
    assert (folder / "model.safetensors").read_bytes() == weights()


def test_a_folder_without_its_marker_is_read_again_before_it_is_marked(place: Place) -> None:
    folder = place.fetched(HUB)
    (folder / MARKER).unlink()
    (folder / "model.safetensors").write_bytes(weights()[:-1] + b"\0")
    assert place.fetched(HUB) == folder
    assert (folder / "model.safetensors").read_bytes() == weights()


@pytest.mark.parametrize("uri", [HUB, S3])
def test_bytes_that_do_not_fit_their_digest_are_never_served(place: Place, uri: str) -> None:
    place.trouble.spoils.add("model.safetensors")
    reason, message = place.refused(uri)
    assert reason == "FilesIncomplete"
    assert "model.safetensors does not fit what its source says: its" in message


@pytest.mark.parametrize("refuses", [401, 403])
@pytest.mark.parametrize("uri", [HUB, S3])
def test_a_wrong_token_is_named(
    place: Place, uri: str, refuses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.trouble.token, place.trouble.refuses = "right", refuses
    monkeypatch.setenv("HF_TOKEN", "wrong")
    reason, message = place.refused(uri)
    assert reason == "SourceForbidden"
    assert str(refuses) in message
    assert "wrong" not in message


@pytest.mark.parametrize(
    "uri",
    ["hf://org/tiny@0000000000000000000000000000000000000000", "hf://org/none", "s3://org/no"],
)
def test_a_commit_that_has_vanished_is_named(place: Place, uri: str) -> None:
    reason, message = place.refused(uri)
    assert reason == "SourceNotFound"
    assert uri.removeprefix("hf://").partition("@")[0] in message


def test_an_endpoint_that_does_not_answer_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")
    reason, message = place.refused(HUB)
    assert reason == "SourceUnreachable"
    assert "http://127.0.0.1:9" in message


@pytest.mark.parametrize("uri", [HUB, S3])
def test_pickles_alone_are_refused_by_name(place: Place, uri: str) -> None:
    (place.model / "model.safetensors").unlink()
    place.put("pytorch_model.bin", b"never read")
    assert place.refused(uri) == (
        "OnlyPickles",
        "the only weights are pickles: pytorch_model.bin",
    )
    assert place.trouble.asked == []


def test_a_quantised_model_is_refused_before_the_weights(place: Place) -> None:
    place.put("config.json", json.dumps(CONFIG | {"quantization_config": {"bits": 8}}).encode())
    reason, message = place.refused(HUB)
    assert reason == "UnsupportedArchitecture"
    assert message.startswith("config.json asks for quantization_config of no method")
    assert [name for name, _ in place.trouble.asked] == ["config.json"]


def test_an_engine_image_of_ones_own_may_run_any_architecture(place: Place) -> None:
    place.put("config.json", b'{"architectures": ["MambaForCausalLM"]}')
    assert place.fetch(HUB, "--any-architecture")[0] == 0


@pytest.mark.parametrize("config", [b"[]", b"{", b"\xff"])
def test_a_config_that_cannot_be_read_is_refused(place: Place, config: bytes) -> None:
    place.put("config.json", config)
    assert place.refused(HUB)[0] == "WeightsInvalid"


def test_unfinished_files_of_an_earlier_commit_go(place: Place) -> None:
    old = place.claim / fill.PARTIAL / "chat" / ("0" * 40)
    old.mkdir(parents=True)
    other = place.claim / fill.PARTIAL / "other" / ("0" * 40)
    other.mkdir(parents=True)
    place.fetched(HUB)
    assert not old.exists()
    assert other.exists()


@pytest.mark.parametrize("uri", ["hf://org", "hf://org/a@b/c", "s3://b", "s3://b/../x", "pvc://a"])
def test_what_is_no_source_is_refused(place: Place, uri: str) -> None:
    assert hub_address(uri) is None
    assert s3_address(uri) is None
    assert place.refused(uri)[0] == "BadArgument"


def test_the_progress_that_is_served_counts_bytes_and_never_goes_back(tmp_path: Path) -> None:
    with cli.serving(0) as (told, port):
        address = f"http://127.0.0.1:{port}/progress"
        assert httpx.get(address, trust_env=False).status_code == 404
        told.begin(tmp_path, 10)
        (tmp_path / "a.part").write_bytes(b"1234")
        assert httpx.get(address, trust_env=False).json() == {"bytes": 4, "of": 10}
        (tmp_path / "a.part").unlink()
        assert httpx.get(address, trust_env=False).json() == {"bytes": 4, "of": 10}
        (tmp_path / "b").write_bytes(b"x" * 99)
        assert httpx.get(address, trust_env=False).json() == {"bytes": 10, "of": 10}
        assert httpx.get(f"{address}/../etc/passwd", trust_env=False).status_code == 404


def test_a_file_that_is_renamed_while_it_is_counted_stops_no_progress(tmp_path: Path) -> None:
    told = cli.Progress()
    told.begin(tmp_path, 10)
    (tmp_path / "renamed.part").symlink_to(tmp_path / "gone")
    assert told.read() == {"bytes": 0, "of": 10}


def test_a_port_that_is_taken_stops_no_fetch(place: Place) -> None:
    with cli.serving(0) as (_, port):
        assert place.fetch(HUB, "--progress-port", str(port))[0] == 0


def test_a_fetch_tells_what_is_to_come(place: Place) -> None:
    told: list[tuple[Path, int]] = []
    source = cli._source_of(HUB)
    filled = fill.fill(source, place.claim, "chat", begins=lambda *said: told.append(said))
    assert told == [(place.claim / ".partial/chat" / filled.commit, filled.size)]
