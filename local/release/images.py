"""Builds the images with buildah, without a daemon, each with a list of what is in it."""

import json
import os
import platform as machine
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.release.checks import MACHINES, ReleaseError

ROOT = Path(__file__).resolve().parents[2]
IMAGES = {
    "operator": "The operator of Argosy",
    "gateway": "The gateway of a fleet of Argosy",
    "fetch": "The Job that fetches the models of fleets of Argosy",
    "engine": "Argosy's engine with torch for CUDA",
    "engine-cpu": "Argosy's engine with torch for CPUs",
}
DEBOOTSTRAP = "debootstrap"
_OWN_BASE = "localhost/argosy/base:trixie"
_SCAN = '"$@" "dir:$(buildah mount "$0")"'
_CATALOGERS = "dpkg-db-cataloger,python-installed-package-cataloger"


@dataclass(frozen=True, slots=True)
class Base:
    """The image that all others begin with."""

    name: str
    """What buildah is given."""
    digest: str
    """`sha256:…`, or empty for one that was made here."""


def native_platform() -> str:
    """Return the platform of this machine, as images name it."""
    archs = {of: arch for arch, of in MACHINES.items()}
    return f"linux/{archs.get(machine.machine(), machine.machine())}"


def find_base(name: str) -> Base:
    """Return a base by its digest. Only the registry knows the one of a name without it."""
    if name == DEBOOTSTRAP:
        return Base(_make_base(), "")
    if "@" in name:
        return Base(name, name.partition("@")[2])
    words = ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{name}"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise ReleaseError(
            f"the digest of {name} cannot be read: {asked.stderr.strip().splitlines()[-1]}\n"
            f"Name an image of Debian 13 that is within reach, BASE=registry/debian:trixie-slim, "
            f"or have one made from Debian's packages, as root: BASE={DEBOOTSTRAP}"
        )
    digest = asked.stdout.strip()
    return Base(f"{name}@{digest}", digest)


def _make_base() -> str:
    """Make Debian 13 from its packages, for machines that reach no registry, and keep it."""
    if _run("buildah", "images", "--quiet", "--filter", f"reference={_OWN_BASE}").strip():
        return _OWN_BASE
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        _run("debootstrap", "--variant=minbase", "trixie", str(root), quiet=True)
        for left in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            _run("find", str(root / left), "-type", "f", "-delete")
        container = _run("buildah", "from", "scratch").strip()
        try:
            _run("buildah", "add", "--quiet", container, str(root), "/")
            _run("buildah", "commit", "--quiet", container, _OWN_BASE)
        finally:
            _run("buildah", "rm", container)
    return _OWN_BASE


def check_platforms(platforms: tuple[str, ...]) -> None:
    """Refuse a platform whose programs this machine cannot start while an image is built."""
    for asked in platforms:
        os_, _, arch = asked.partition("/")
        if os_ != "linux" or arch not in MACHINES:
            raise ReleaseError(f"PLATFORMS={asked}: write linux/amd64, linux/arm64 or both")
        started_by = Path(f"/proc/sys/fs/binfmt_misc/qemu-{MACHINES[arch]}")
        if asked != native_platform() and not started_by.exists():
            raise ReleaseError(
                f"this machine cannot start programs of {asked}: apt-get install qemu-user-static "
                "(dnf install qemu-user-static), or build on such a machine"
            )


def labels_of(
    image: str, version: str, commit: Mapping[str, str], source: str, base: Base
) -> dict[str, str]:
    """Return an image's labels, in the words of the OCI specification."""
    known = {
        "title": f"argosy-{image}",
        "description": IMAGES[image],
        "version": version,
        "revision": commit["id"],
        "created": commit["time"],
        "source": source,
        "licenses": "Apache-2.0",
        "base.name": base.name.partition("@")[0],
        "base.digest": base.digest,
    }
    return {f"org.opencontainers.image.{key}": value for key, value in known.items() if value}


def build_image(
    image: str, out: Path, name: str, version: str, platforms: tuple[str, ...], base: Base,
    labels: Mapping[str, str],
) -> Path:  # fmt: skip
    """Write the image for all platforms as one OCI archive, and an SBOM for each.

    `name` is the archive's reference, such as registry.example.com/operator:0.1.0: what imports
    the archive, as `kind load` does, knows the image by it.
    """
    tagged = {}
    for asked in platforms:
        arch = asked.partition("/")[2]
        tagged[arch] = f"localhost/argosy/{image}:{version}-{arch}"
        _build(image, tagged[arch], version, asked, base, labels)
        _list_contents(tagged[arch], out / f"{image}-{version}-{arch}.cdx.json", labels)
    archive = out / f"{image}-{version}.oci.tar"
    index = f"localhost/argosy/{image}:{version}"
    subprocess.run(["buildah", "manifest", "rm", index], capture_output=True, check=False)
    _run("buildah", "manifest", "create", index)
    for tag in tagged.values():
        _run("buildah", "manifest", "add", index, tag)
    _run("buildah", "manifest", "push", "--all", "--quiet", index, f"oci-archive:{archive}:{name}")
    _run("buildah", "manifest", "rm", index)
    return archive


def _build(
    image: str, tag: str, version: str, platform: str, base: Base, labels: Mapping[str, str]
) -> None:
    words = ["buildah", "build", "--quiet", "--layers", "--isolation", "chroot"]
    words += ["--platform", platform, "--target", image, "--tag", tag]
    words += ["--build-arg", f"BASE={base.name}", "--build-arg", f"VERSION={version}"]
    authorities = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if authorities:
        words += ["--volume", f"{authorities}:/run/ca.crt:ro", "--build-arg", "CA=/run/ca.crt"]
    for key, value in labels.items():
        words += ["--label", f"{key}={value}"]
    _run(*words, str(ROOT))


def _list_contents(tag: str, file: Path, labels: Mapping[str, str]) -> None:
    """Write the image's SBOM in CycloneDX: Debian's packages and Python's."""
    container = _run("buildah", "from", tag).strip()
    try:
        syft = str(Path(sys.executable).with_name("syft"))
        title = labels["org.opencontainers.image.title"]
        version = labels["org.opencontainers.image.version"]
        words = ["sh", "-ec", _SCAN, container, syft, "scan", "--quiet"]
        words += ["--override-default-catalogers", _CATALOGERS]
        words += ["--source-name", title, "--source-version", version]
        words += ["--output", f"cyclonedx-json={file}"]
        # Who is not root sees what is mounted only in the namespace where it is mounted.
        _run(*(() if os.geteuid() == 0 else ("buildah", "unshare")), *words)
    finally:
        _run("buildah", "rm", container)
    if not json.loads(file.read_text()).get("components"):
        raise ReleaseError(f"syft found nothing in {tag}: {file.name} would be empty")


def _run(*words: str, quiet: bool = False) -> str:
    """Run a program and return its output; its last lines are in the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ReleaseError(f"{' '.join(words[:4])} … failed:\n{said}")
    return "" if quiet else done.stdout
