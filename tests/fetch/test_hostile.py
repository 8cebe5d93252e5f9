"""Sources that lie: a hub and a store that answer what no honest one does."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.test_fetch import CONFIG, HUB, S3, weights

pytest.importorskip("obstore")

from argosy_fetch import check, cli, fill, hub, s3
from argosy_fetch.source import MARKER, RemoteFile

COMMIT = "a" * 40
Answer = Callable[["_Handler"], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: dict[str, Answer]
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        path = self.path.partition("?")[0]
        found = next((a for end, a in self.answers.items() if path.endswith(end)), None)
        (found or sends(b"", 404))(self)

    def do_HEAD(self) -> None:
        sends(b"", 403)(self)

    def log_message(self, *_: object) -> None:
        pass


def sends(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(to: _Handler) -> None:
        to.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        to.wfile.write(body)

    return answer


def endless(to: _Handler) -> None:
    """Sends until the client leaves."""
    to.close_connection = True
    to.send_response(200)
    to.end_headers()
    try:
        while True:
            to.wfile.write(b" " * 65536)
    except OSError:
        pass


def onward(to: str) -> Answer:
    return sends(b"", 302, Location=to)


@contextmanager
def hostile(answers: dict[str, Answer]) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Host and port of a server with these answers by the end of the path; and what was asked."""
    seen: list[tuple[str, dict[str, str]]] = []
    handler = type("Handler", (_Handler,), {"answers": answers, "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


class Place:
    """A claim in a folder of its own, so that what is written beside it is found."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.claim = folder, folder / "deep/claim"
        self.claim.mkdir(parents=True)
        self.monkeypatch = monkeypatch
        self.files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights()}

    def listing(self, commit: object = COMMIT, **other: object) -> Answer:
        """The files as they are; in `other` their sizes as the hub says them."""
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest(),
            }
            for name, content in self.files.items()
        ]
        return sends(
            json.dumps({"id": "org/tiny", "sha": commit, "siblings": siblings} | other).encode()
        )

    def answers(self) -> dict[str, Answer]:
        return {"/revision/main": self.listing()} | {
            f"/{name}": sends(content) for name, content in self.files.items()
        }

    def fetch(self, uri: str, endpoint: str) -> tuple[int, dict[str, Any]]:
        for name in ("constants.ENDPOINT", "hf_api.constants.ENDPOINT"):
            self.monkeypatch.setattr(f"huggingface_hub.{name}", endpoint)
        self.monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "HF_TOKEN": "hf_token",
        }.items():
            self.monkeypatch.setenv(name, value)
        said = self.folder / "said"
        words = ["--uri", uri, "--root", str(self.claim), "--fleet", "chat"]
        words += ["--progress-port", "0", "--termination-message", str(said)]
        status = cli.main(["run", *words])
        return status, json.loads(said.read_text())

    def refused(self, answers: dict[str, Answer], uri: str = HUB) -> tuple[str, str]:
        with hostile(answers) as (host, _):
            status, said = self.fetch(uri, f"http://{host}")
        assert status == 1
        outside = {p for p in self.folder.rglob("*") if p.is_file()} - {self.folder / "said"}
        assert all(path.is_relative_to(self.claim) for path in outside)
        assert not list(self.claim.rglob(MARKER))
        return said["reason"], said["message"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_a_hub_that_is_honest_is_believed(place: Place) -> None:
    with hostile(place.answers()) as (host, seen):
        status, said = place.fetch(HUB, f"http://{host}")
    assert (status, said["commit"]) == (0, COMMIT), said
    assert {asked["authorization"] for _, asked in seen} == {"Bearer hf_token"}
    assert len(seen) == 3, "the listing and two files, and nothing else"


@pytest.mark.parametrize(
    "commit", ["../" * 13 + "x", "A" * 40, "g" * 40, "a" * 39 + "\n", "/" + "a" * 39, None, ["a"]]
)
def test_a_commit_that_is_no_forty_hex_digits_is_refused(place: Place, commit: object) -> None:
    reason, message = place.refused(place.answers() | {"/revision/main": place.listing(commit)})
    assert reason == "SourceUnreachable"
    assert "does not say the commit of org/tiny" in message


def test_a_hub_that_answers_another_commit_than_it_was_asked_for_is_refused(place: Place) -> None:
    asked = "b" * 40
    answers = place.answers() | {f"/revision/{asked}": place.listing()}
    reason, message = place.refused(answers, f"hf://org/tiny@{asked}")
    assert reason == "SourceUnreachable"
    assert f"answers {COMMIT} for org/tiny@{asked}" in message


def test_no_more_is_written_than_was_announced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, why_unfit = 0, fill._why_unfit

    def measured(path: Path, file: RemoteFile) -> str | None:
        nonlocal most
        most = max(most, path.stat().st_size)
        return why_unfit(path, file)

    monkeypatch.setattr(fill, "_why_unfit", measured)
    reason, message = place.refused(place.answers() | {"/model.safetensors": endless})
    assert reason == "FilesIncomplete"
    assert f"more than {len(weights())} bytes came" in message
    assert most == len(weights()) + 1, "by the one byte it is seen"


@pytest.mark.parametrize("size", [-1, 1.5, float("nan"), float("inf"), "1000", [1], True])
def test_a_size_that_is_no_whole_number_from_0_on_is_refused(place: Place, size: object) -> None:
    siblings = [{"rfilename": "config.json", "size": size}]
    listing = place.listing(siblings=siblings)
    reason, message = place.refused(place.answers() | {"/revision/main": listing})
    assert reason == "SourceUnreachable"
    assert "'config.json'" in message


def test_a_size_that_no_claim_has_is_refused_before_anything_comes(place: Place) -> None:
    place.files["model.safetensors"] = weights()
    siblings = [
        {"rfilename": "config.json", "size": 100},
        {"rfilename": "model.safetensors", "size": 10**400},
    ]
    answers = place.answers() | {"/revision/main": place.listing(siblings=siblings)}
    assert place.refused(answers)[0] == "VolumeFull"
    assert not [path for path in place.claim.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"sha": ' + b"[" * 100_000,
        b"[]",
        b"null",
        b"\xff",
        b"",
        b'{"sha": "%s", "siblings": 1}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": [1]}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": [{"rfilename": ["a"], "size": 1}]}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": [{"rfilename": "a", "size": 1, "lfs": 1}]}' % COMMIT.encode(),
    ],
)
def test_a_listing_of_another_form_is_refused(place: Place, body: bytes) -> None:
    assert place.refused({"/revision/main": sends(body)})[0] == "SourceUnreachable"


@pytest.mark.parametrize(
    "name", ["../x.json", "/etc/x.json", "a/b.json", "..", "x\0.json", "a\\b.json", "x.json\n"]
)
def test_a_file_outside_the_folder_of_the_model_is_left(place: Place, name: str) -> None:
    place.files[name] = b"{}"
    with hostile(place.answers()) as (host, _):
        status, said = place.fetch(HUB, f"http://{host}")
    assert status == 0, said
    names = {path.name for path in (place.claim / said["path"]).iterdir()}
    assert names == {"config.json", "model.safetensors", MARKER}


def test_a_file_with_the_name_of_our_marker_is_left(place: Place) -> None:
    place.files[MARKER] = b'{"commit": "other"}'
    with hostile(place.answers()) as (host, seen):
        status, said = place.fetch(HUB, f"http://{host}")
        before = len(seen)
        assert place.fetch(HUB, f"http://{host}")[0] == 0
    assert status == 0, said
    assert json.loads((place.claim / said["path"] / MARKER).read_text())["commit"] == COMMIT
    assert len(seen) == before + 1, "it is there already"


@pytest.mark.parametrize("names", [("a.json", "a.json"), ("A.json", "a.json")])
def test_two_files_with_one_name_are_refused(place: Place, names: tuple[str, str]) -> None:
    siblings = [{"rfilename": name, "size": 2} for name in (*place.files, *names)]
    listing = place.listing(siblings=siblings)
    reason, message = place.refused(place.answers() | {"/revision/main": listing})
    assert reason == "WeightsInvalid"
    assert all(name in message for name in names)


def test_a_file_that_is_read_as_a_whole_is_refused_where_it_is_huge(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check._LARGEST, "config.json", 10)
    reason, message = place.refused(place.answers())
    assert reason == "WeightsInvalid"
    assert "config.json" in message


@pytest.mark.parametrize(
    "header", [b"[" * 60_000, b'{"a":' * 60_000, b'{"t": {"data_offsets": [0, 1e999]}}']
)
def test_weights_whose_header_is_deep_are_refused(place: Place, header: bytes) -> None:
    place.files["model.safetensors"] = len(header).to_bytes(8, "little") + header
    reason, message = place.refused(place.answers())
    assert reason == "FilesIncomplete"
    assert "not a whole safetensors file" in message


@pytest.mark.parametrize("layers", [10**12, 10**5])
def test_a_config_of_more_layers_than_any_model_has_is_refused(place: Place, layers: int) -> None:
    place.files["config.json"] = json.dumps(CONFIG | {"num_hidden_layers": layers}).encode()
    reason, message = place.refused(place.answers())
    assert reason == "WeightsInvalid"
    assert "num_hidden_layers" in message


@pytest.mark.parametrize("path", ["/revision/main", "/config.json"])
@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_endless_answer_of_an_error_is_not_read(place: Place, path: str, status: int) -> None:
    def answer(to: _Handler) -> None:
        to.send_response = lambda *_: BaseHTTPRequestHandler.send_response(to, status)  # type: ignore[method-assign]
        endless(to)

    reason, message = place.refused(place.answers() | {path: answer})
    assert reason in ("SourceUnreachable", "SourceNotFound")
    assert str(status) in message


def test_an_endless_listing_is_not_read_to_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_LARGEST_LISTING", 1 << 20)
    reason, message = place.refused({"/revision/main": endless})
    assert reason == "SourceUnreachable"
    assert str(1 << 20) in message
    monkeypatch.setattr(hub, "_LARGEST_LISTING", 1 << 40)
    monkeypatch.setattr(hub, "LISTING_S", 0.0)
    reason, message = place.refused({"/revision/main": endless})
    assert reason == "SourceUnreachable"


def test_a_compressed_listing_is_not_unpacked(place: Place) -> None:
    """A thousand bytes of it would be a million. Clients ask for none."""
    answer = sends(b"\x1f\x8b" + bytes(100), Content_Encoding="gzip")
    assert place.refused({"/revision/main": answer})[0] == "SourceUnreachable"


def test_a_part_of_another_place_in_the_file_is_not_appended(place: Place) -> None:
    """Without a digest the mistake would stay in the file."""
    sizes = [{"rfilename": name, "size": len(content)} for name, content in place.files.items()]
    content = place.files["model.safetensors"]

    def other(to: _Handler) -> None:
        if "Range" in to.headers:
            sends(content[5:], 206, Content_Range=f"bytes 5-{len(content)}/{len(content)}")(to)
        else:
            sends(content)(to)

    partial = place.claim / ".partial/chat" / COMMIT
    partial.mkdir(parents=True)
    (partial / "model.safetensors.part").write_bytes(content[:100])
    answers = place.answers() | {
        "/revision/main": place.listing(siblings=sizes),
        "/model.safetensors": other,
    }
    with hostile(answers) as (host, _):
        status, said = place.fetch(HUB, f"http://{host}")
    assert status == 0, said
    assert (place.claim / said["path"] / "model.safetensors").read_bytes() == content


def test_the_token_is_not_sent_on_to_another_host(place: Place) -> None:
    with hostile(place.answers()) as (elsewhere, seen):
        answers = place.answers() | {
            "/model.safetensors": onward(f"http://{elsewhere}/model.safetensors")
        }
        with hostile(answers) as (host, _):
            status, said = place.fetch(HUB, f"http://{host}")
    assert status == 0, said
    assert len(seen) == 1
    assert "authorization" not in seen[0][1]
    assert "hf_token" not in str(seen)


@pytest.mark.parametrize(
    "to",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://localhost:1/x",
        "http://[::1]:1/x",
        "http://0.0.0.0:1/x",
        "//169.254.169.254/x",
        "http://[",
    ],
)
@pytest.mark.parametrize("path", ["/revision/main", "/config.json"])
def test_a_redirect_to_what_no_hub_is_is_not_followed(place: Place, path: str, to: str) -> None:
    assert place.refused(place.answers() | {path: onward(to)})[0] == "SourceUnreachable"


def test_a_redirect_that_leaves_tls_is_not_followed() -> None:
    httpx = pytest.importorskip("httpx")
    here, there = httpx.URL("https://hub.example.com/a"), httpx.URL("http://hub.example.com/a")
    assert hub._why_not_there(here, there) is not None
    assert hub._why_not_there(there, here) is None
    assert hub._why_not_there(here, here) is None


def test_redirects_without_end_are_named(place: Place) -> None:
    reason, message = place.refused({"/revision/main": onward("/api/models/revision/main")})
    assert reason == "SourceUnreachable"
    assert "5 times" in message


@pytest.mark.parametrize("uri", [HUB, S3])
@pytest.mark.parametrize("status", [401, 404, 500, 307])
def test_a_password_in_the_address_of_a_source_is_not_shown(
    place: Place, uri: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with hostile({"": sends(b"", status)}) as (host, seen):
        code, said = place.fetch(uri, f"http://us%40er:pa%2Fss@{host}")
    assert (code, bool(seen)) == (1, True)
    shown = f"{said} {capfd.readouterr()}"
    assert host in shown
    assert "us%40er" not in shown
    assert "pa%2Fss" not in shown


def test_an_address_that_is_none_is_named_without_its_password(place: Place) -> None:
    code, said = place.fetch(HUB, "http://user:pass@[::bad")
    assert (code, said["reason"]) == (1, "SourceUnreachable")
    assert "pass" not in str(said)


def test_the_at_sign_of_a_revision_is_no_user(place: Place) -> None:
    reason, message = place.refused({})
    assert reason == "SourceNotFound"
    assert "org/tiny@main" in message


def test_a_refusal_is_never_longer_than_the_kubelet_keeps(place: Place) -> None:
    architectures = ["\N{WINKING FACE}" * 5000]
    place.files["config.json"] = json.dumps({"architectures": architectures}).encode()
    reason, message = place.refused(place.answers())
    assert reason == "UnsupportedArchitecture"
    assert message.startswith("the model says architectures=")
    assert (place.folder / "said").stat().st_size <= 4096


def listed(*keys: str, size: object = 5, etag: str = "x", more: bool = False) -> Answer:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    token = "<NextContinuationToken>t</NextContinuationToken>" if more else ""
    body = (
        "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/hostname'>]>"
        f"<ListBucketResult><Name>b</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
        f"{token}{contents}</ListBucketResult>"
    )
    return sends(body.encode())


@pytest.mark.parametrize(
    "answer",
    [
        listed("tiny/../x.json"),
        listed("tiny/&e;.json"),
        listed("tiny/x&#0;.json"),
        listed("tiny/config.json", size=-5),
        listed("tiny/config.json", size="NaN"),
        listed("tiny/config.json", size=10**30),
        listed("tiny/config.json", etag="&e;"),
        sends(b"<" * 100_000),
        sends(b"<a>" * 100_000),
        onward("file:///etc/passwd"),
    ],
)
def test_a_list_of_objects_of_another_form_is_refused(place: Place, answer: Answer) -> None:
    assert place.refused({"/org": answer}, S3)[0] in ("SourceUnreachable", "WeightsInvalid")


def test_objects_that_nobody_asked_for_are_left(place: Place) -> None:
    answer = listed("other/config.json", "other/model.safetensors", "/etc/config.json")
    assert place.refused({"/org": answer}, S3)[0] == "SourceNotFound"


def test_pages_of_objects_without_end_are_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "LISTING_S", 0.5)
    reason, message = place.refused({"/org": listed("tiny/config.json", more=True)}, S3)
    assert reason == "SourceUnreachable"
    assert "0.5 s" in message
