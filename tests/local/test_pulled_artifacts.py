"""What a node pulls from a registry: logins, manifests, layers, and what layers may not do."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.cluster.cri.oci.artifacts import Artifact, Artifacts
from local.cluster.cri.oci.reference import Login, PullError, Reference
from local.cluster.cri.oci.registry import Layer
from local.cluster.cri.oci.unpack import add_layer
from tests.support import registry
from tests.support.registry import TAR, Rules, push, serving

ALLOWED = Login("reader", "right")


def layer(*members: tuple[str, bytes | None] | tarfile.TarInfo) -> bytes:
    """A tar of files (name, content), folders (name, None) and whatever a TarInfo is."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info, content = tarfile.TarInfo(member[0]), member[1]
            info.mode = 0o644
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            info.size = len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
    return packed.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def pushed(tmp_path: Path) -> Path:
    """The registry's folder."""
    return tmp_path / "registry"


@pytest.fixture
def at(pushed: Path, rules: Rules) -> Iterator[str]:
    with serving(pushed, rules) as address:
        yield address


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "node")


def pull(artifacts: Artifacts, text: str, login: Login | None = None) -> Artifact:
    reference = Reference.parse(text)
    assert reference is not None
    return artifacts.keep(reference, artifacts.pull(reference, login))


def files(artifacts: Artifacts, artifact: Artifact) -> dict[str, bytes]:
    folder = artifacts.folder(artifact)
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_layers_are_unpacked_in_their_order(artifacts: Artifacts, pushed: Path, at: str) -> None:
    first = layer(("config.json", b"old"), ("sub", None), ("sub/tokenizer.json", b"t"))
    second = gzip.compress(layer(("./config.json", b"new"), ("model.safetensors", b"weights")))
    digest = push(pushed, "models/tiny:v1", [first, second])
    pulled = pull(artifacts, f"{at}/models/tiny:v1")
    assert files(artifacts, pulled) == {
        "config.json": b"new",
        "sub/tokenizer.json": b"t",
        "model.safetensors": b"weights",
    }
    assert (pulled.id, pulled.size) == (digest, 11)
    assert set(pulled.names) == {f"{at}/models/tiny:v1", f"{at}/models/tiny@{digest}"}


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_a_registry_that_asks_for_a_login_gets_that_of_the_pull_secret(
    artifacts: Artifacts, pushed: Path, at: str, rules: Rules, scheme: str
) -> None:
    push(pushed, "models/tiny:v1", [layer(("config.json", b"{}"))])
    rules.user, rules.password, rules.asks_for = ALLOWED.user, ALLOWED.password, scheme
    for login, said in ((Login("reader", "wrong"), "password"), (None, "imagePullSecrets")):
        with pytest.raises(PullError, match=said) as caught:
            pull(artifacts, f"{at}/models/tiny:v1", login)
        assert "(401)" in str(caught.value)
        assert "wrong" not in str(caught.value).replace("is wrong", "")
    assert artifacts.all() == []
    pulled = pull(artifacts, f"{at}/models/tiny:v1", ALLOWED)
    assert files(artifacts, pulled) == {"config.json": b"{}"}


def test_one_who_may_not_read_it_gets_it_from_no_node_that_has_it(
    artifacts: Artifacts, pushed: Path, at: str, rules: Rules
) -> None:
    push(pushed, "models/tiny:v1", [layer(("config.json", b"{}"))])
    rules.user, rules.password = ALLOWED.user, ALLOWED.password
    pull(artifacts, f"{at}/models/tiny:v1", ALLOWED)
    with pytest.raises(PullError, match="401"):
        pull(artifacts, f"{at}/models/tiny:v1", Login("reader", "wrong"))


def test_the_login_does_not_follow_a_redirect_to_another_host(
    artifacts: Artifacts, pushed: Path, at: str, rules: Rules
) -> None:
    push(pushed, "models/tiny:v1", [layer(("config.json", b"{}"))])
    rules.user, rules.password = ALLOWED.user, ALLOWED.password
    elsewhere = Rules()
    with serving(pushed, elsewhere) as store:
        rules.blobs_at = f"http://{store}"
        pulled = pull(artifacts, f"{at}/models/tiny:v1", ALLOWED)
    assert files(artifacts, pulled) == {"config.json": b"{}"}
    assert [said for _, said in elsewhere.asked] == [""]


def test_nothing_is_asked_of_another_machine_without_tls(
    artifacts: Artifacts, pushed: Path, at: str, rules: Rules
) -> None:
    push(pushed, "models/tiny:v1", [layer(("config.json", b"{}"))])
    rules.blobs_at = "http://192.0.2.1"
    with pytest.raises(PullError, match="without TLS"):
        pull(artifacts, f"{at}/models/tiny:v1")
    reference = Reference.parse("192.0.2.1:5000/models/tiny:v1")
    assert reference is not None
    assert reference.url == "https://192.0.2.1:5000/v2/models/tiny"


def test_bytes_that_are_not_those_of_the_digest_are_refused(
    artifacts: Artifacts, pushed: Path, at: str, rules: Rules, tmp_path: Path
) -> None:
    content = layer(("config.json", b"{}"))
    digest = push(pushed, "models/tiny:v1", [content])
    rules.spoils = {registry.digest_of(content)}
    with pytest.raises(PullError, match="other bytes"):
        pull(artifacts, f"{at}/models/tiny:v1")
    rules.spoils = {digest}
    with pytest.raises(PullError, match="digest"):
        pull(artifacts, f"{at}/models/tiny@{digest}")
    assert list((tmp_path / "node/artifacts").iterdir()) == []


def added(folder: Path, content: bytes, *, as_root: bool = False, **fields: object) -> None:
    """Add one layer to a folder."""
    folder.mkdir(exist_ok=True)
    blob = folder.with_name("blob")
    blob.write_bytes(content)
    kind, annotations = fields.get("media_type", TAR), fields.get("annotations", {})
    found = Layer(str(kind), "", len(content), annotations)  # type: ignore[arg-type]
    add_layer(found, blob, folder, as_root=as_root)


def test_whiteouts_remove_what_earlier_layers_brought(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    added(folder, layer(("a", b"1"), ("d", None), ("d/x", b"1"), ("d/y", b"1"), ("e/z", b"1")))
    added(folder, layer(("d/new", b"2"), ("d/.wh..wh..opq", b""), (".wh.a", b""), (".wh.e", b"")))
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == ["d", "d/new"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("/etc/passwd", b"x")], "relative"),
        ([("a/../../x", b"x")], "without"),
        ([("../.wh.secret", b"")], "without"),
        ([special("out", tarfile.SYMTYPE, "/etc")], "out of the artifact"),
        ([special("d/out", tarfile.SYMTYPE, "../../x")], "out of the artifact"),
        ([special("s", tarfile.SYMTYPE, "."), special("t", tarfile.SYMTYPE, "s/s/../..")], "out"),
        ([special("out", tarfile.LNKTYPE, "../secret")], "without"),
        ([special("out", tarfile.LNKTYPE, "/etc/passwd")], "relative"),
        ([("d", None), special("l", tarfile.SYMTYPE, "d"), ("l/x", b"x")], "no folder"),
        ([special("null", tarfile.CHRTYPE)], "device"),
        ([special("pipe", tarfile.FIFOTYPE)], "device"),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path, members, said: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "secret").write_text("kept")
    with pytest.raises(PullError, match=said):
        added(tmp_path / "files", layer(*members))
    assert (tmp_path / "secret").read_text() == "kept"


PATHS = st.lists(st.sampled_from(["a", "b", "..", ".", "", ".wh.a", ".wh..wh..opq", ".wh..."]),
                 min_size=1, max_size=4).map("/".join)  # fmt: skip
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@given(layers=st.lists(st.lists(st.tuples(PATHS, KINDS, PATHS), max_size=5), max_size=3))
def test_no_layer_touches_what_is_outside(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[tuple[str, bytes, str]]]
) -> None:
    place = tmp_path_factory.mktemp("outside")
    for name in ("a", "b", "secret"):
        (place / name).write_text("kept")
    for members in layers:
        try:
            added(place / "files", layer(*(special(*member) for member in members)))
        except PullError:
            break
    (place / "blob").unlink(missing_ok=True)
    assert {p.name for p in place.iterdir()} <= {"a", "b", "secret", "files"}
    assert all((place / name).read_text() == "kept" for name in ("a", "b", "secret"))
    root = os.path.realpath(place / "files")
    for path in (place / "files").rglob("*"):
        assert os.path.realpath(path).startswith(root)


def test_the_root_of_containers_keeps_its_links_and_gets_no_devices(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    members = [
        ("etc", None),
        special("etc/mtab", tarfile.SYMTYPE, "/proc/mounts"),
        special("dev/null", tarfile.CHRTYPE),
        special("away", tarfile.SYMTYPE, str(outside)),
    ]
    added(root, layer(*members), as_root=True)
    assert os.readlink(root / "etc" / "mtab") == "/proc/mounts"
    assert not (root / "dev").exists()
    # A link is kept, and never followed while layers are added.
    with pytest.raises(PullError, match="is no folder"):
        added(root, layer(("away/file", b"x")), as_root=True)
    assert not outside.exists()
