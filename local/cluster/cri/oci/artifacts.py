"""The artifacts that a node has pulled, each unpacked in a folder below the runtime's root.

`artifacts/<hex of its digest>/files` has its files, `artifact.json` beside it what is known of it.
A folder is complete from the moment it has its name: a pull unpacks beside it and renames.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from local.cluster.cri.oci.reference import Login, PullError, Reference

if TYPE_CHECKING:
    from local.cluster.cri.oci.registry import Manifest, Registry

_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One that is here."""

    id: str
    """The digest of what was named: `sha256:…`."""
    names: tuple[str, ...]
    """Every reference that led to it, with tag or digest."""
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull has brought, or found here."""

    id: str
    size: int


class Artifacts:
    """All of one node. `pull` blocks and may run in several threads; the rest is quick."""

    def __init__(self, root: Path) -> None:
        self._root = root / "artifacts"
        self._root.mkdir(parents=True, exist_ok=True)
        for partial in self._root.glob(f"{_PARTIAL}*"):
            shutil.rmtree(partial, ignore_errors=True)
        self._known = {found.id: found for found in self._load()}

    def _load(self) -> Iterator[Artifact]:
        for file in self._root.glob("*/artifact.json"):
            said = json.loads(file.read_text())
            yield Artifact(said["id"], tuple(said["names"]), said["size"])

    def all(self) -> list[Artifact]:
        """Every artifact that is here."""
        return list(self._known.values())

    def find(self, reference: str) -> Artifact | None:
        """By id or by a name that it was pulled by."""
        if reference in self._known:
            return self._known[reference]
        parsed = Reference.parse(reference)
        name = str(parsed) if parsed is not None else reference
        return next((a for a in self._known.values() if name in a.names), None)

    def folder(self, artifact: Artifact) -> Path:
        """Its files."""
        return self._place(artifact.id) / "files"

    def _place(self, digest: str) -> Path:
        return self._root / digest.removeprefix("sha256:")

    def remove(self, artifact: Artifact) -> None:
        """Forget it, and remove its files. A second call changes nothing."""
        self._known.pop(artifact.id, None)
        gone = self._root / f"{_PARTIAL}{secrets.token_hex(8)}"
        if self._place(artifact.id).exists():
            self._place(artifact.id).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def keep(self, reference: Reference, pulled: Pulled) -> Artifact:
        """Know a pulled artifact, by its tag and by its digest. A tag leads to one alone."""
        name = str(reference)
        by_digest = f"{reference.registry}/{reference.repository}@{pulled.id}"
        for other in self.all():
            if name in other.names and other.id != pulled.id:
                self._save(replace(other, names=tuple(n for n in other.names if n != name)))
        known = self._known.get(pulled.id)
        names = dict.fromkeys((*(known.names if known else ()), name, by_digest))
        return self._save(Artifact(pulled.id, tuple(names), pulled.size))

    def _save(self, artifact: Artifact) -> Artifact:
        self._known[artifact.id] = artifact
        partial = self._place(artifact.id) / "artifact.json.new"
        partial.write_text(json.dumps(asdict(artifact)))
        partial.rename(partial.with_suffix(""))
        return artifact

    def pull(self, reference: Reference, login: Login | None) -> Pulled:
        """Ask the registry, and unpack what is not here yet. PullError says why it cannot be.

        The registry is asked even for what is here: it decides who may have it.
        """
        # The import of httpx takes longer than the rest of a node's start, and most pull nothing.
        from local.cluster.cri.oci.registry import Registry

        with Registry(reference, login) as registry:
            manifest = registry.manifest()
            place = self._place(manifest.digest)
            if not place.exists():
                self._fetch(registry, manifest, place)
        files = (path for path in (place / "files").rglob("*") if not path.is_symlink())
        return Pulled(manifest.digest, sum(p.stat().st_size for p in files if p.is_file()))

    def _fetch(self, registry: "Registry", manifest: "Manifest", place: Path) -> None:
        from local.cluster.cri.oci.unpack import add_layer

        partial = self._root / f"{_PARTIAL}{secrets.token_hex(8)}"
        folder, blob = partial / "files", partial / "blob"
        folder.mkdir(parents=True)
        try:
            for layer in manifest.layers:
                registry.blob(layer, blob)
                add_layer(layer, blob, folder)
                blob.unlink()
            if not any(folder.iterdir()):
                raise PullError("the artifact has no files: push some")
            try:
                partial.rename(place)
            except OSError:
                if not place.exists():
                    raise  # else another pull of the same artifact was quicker
        finally:
            shutil.rmtree(partial, ignore_errors=True)
