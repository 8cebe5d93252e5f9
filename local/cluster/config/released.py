"""Images of a release (`make release`), unpacked for the nodes: name → entry of the images file."""

import json
import platform
import secrets
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from local.cluster.cri.oci.registry import Layer
from local.cluster.cri.oci.unpack import add_layer
from local.cluster.fetch import cache_root
from local.cluster.layout import SOURCE

_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_NAME = "org.opencontainers.image.ref.name"


def find_release() -> Path:
    """Return the folder of the newest release of the checkout. ValueError says how to make one."""
    made = sorted(
        (SOURCE / "build" / "release").glob("*/SHA256SUMS"), key=lambda f: f.stat().st_mtime
    )
    if not made:
        raise ValueError(
            "there is no release in build/release: make release VERSION=0.1.0 BASE=debootstrap "
            'IMAGES="operator gateway fetch engine-cpu"'
        )
    return made[-1].parent


def read_images(release: Path) -> dict[str, dict[str, Any]]:
    """Unpack each archive of the release into the cache, once; return the entries by name."""
    found = {}
    for archive in sorted(release.glob("*.oci.tar")):
        with tempfile.TemporaryDirectory(prefix="argosy-image-") as folder:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            name, entry = _read_layout(Path(folder))
        found[name] = entry
    if not found:
        raise ValueError(f"{release} has no image (*.oci.tar): make release makes them")
    return found


def _read_layout(layout: Path) -> tuple[str, dict[str, Any]]:
    """Return the image's name and entry, from an OCI layout."""
    named = json.loads((layout / "index.json").read_text())["manifests"][0]
    manifest = _blob(layout, named["digest"])
    while "manifests" in manifest:
        fitting = [m for m in manifest["manifests"] if m["platform"]["architecture"] == _ARCH]
        if not fitting:
            raise ValueError(f"{named['annotations'][_NAME]} has no image for {_ARCH}")
        manifest = _blob(layout, fitting[0]["digest"])
    said = _blob(layout, manifest["config"]["digest"]).get("config", {})
    entry = {
        "root": str(_unpack(layout, manifest)),
        "env": dict(pair.split("=", 1) for pair in said.get("Env", ())),
        "entrypoint": said.get("Entrypoint") or [],
        "cmd": said.get("Cmd") or [],
        "user": int((said.get("User") or "0").split(":")[0]),
        "working_dir": said.get("WorkingDir") or "/",
    }
    return named["annotations"][_NAME], entry


def _unpack(layout: Path, manifest: dict[str, Any]) -> Path:
    """Return the folder with the layers, which has its name when it is whole."""
    digest: str = manifest["config"]["digest"]
    place = cache_root() / "images" / digest.removeprefix("sha256:")
    if place.exists():
        return place
    partial = place.with_name(f".partial-{secrets.token_hex(8)}")
    partial.mkdir(parents=True)
    try:
        for said in manifest["layers"]:
            layer = Layer(said["mediaType"], said["digest"], said["size"], {})
            add_layer(layer, _path(layout, said["digest"]), partial, as_root=True)
        partial.chmod(0o755)
        try:
            partial.rename(place)
        except OSError:
            if not place.exists():
                raise  # else another cluster's start was quicker
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_path(layout, digest).read_text())
    return document


def _path(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")
