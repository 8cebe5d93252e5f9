"""The images file maps an image name to programs of this machine.

`{"name": {"paths": [...], "root": "/…", "env": {...}, "entrypoint": [...], "cmd": [...],
"user": uid, "working_dir": "/"}}`; every field is optional. A name without a tag matches every tag.
The file is read again when it changes.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ImageUnknownError(Exception):
    """The image is not in the images file; the text says what to write there."""


@dataclass(frozen=True, slots=True)
class Image:
    """One entry of the file."""

    name: str
    id: str
    """Changes with the entry's content, as an image's digest does."""
    paths: tuple[str, ...] = ()
    """Absolute host paths that its containers see, read-only."""
    root: str = ""
    """Absolute host path of an unpacked image, which is all that its containers see. Empty: they
    see the system's folders of this machine."""
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: int = 0
    """Uid of its processes, unless the pod asks for another; 0 as Docker's default."""
    working_dir: str = "/"


_FIELDS = {"paths", "root", "env", "entrypoint", "cmd", "user", "working_dir"}


def parse(name: str, entry: dict[str, Any]) -> Image:
    """One entry. ValueError names the image and the field."""
    unknown = set(entry) - _FIELDS
    if unknown:
        raise ValueError(
            f"image {name!r}: unknown fields {sorted(unknown)}; the fields are {sorted(_FIELDS)}"
        )
    named = [*entry.get("paths", ()), entry.get("root") or "/"]
    relative = [path for path in named if not path.startswith("/")]
    if relative:
        raise ValueError(f"image {name!r}: paths must be absolute, not {relative}")
    digest = hashlib.sha256(json.dumps([name, entry], sort_keys=True).encode()).hexdigest()
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return Image(name=name, id=f"sha256:{digest}", **values)


class Images:
    """All entries of one images file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._images: dict[str, Image] = {}

    def all(self) -> list[Image]:
        """Every image. ValueError if the file is not valid."""
        try:
            stat = self._file.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                entries = json.loads(self._file.read_text())
                self._images = {name: parse(name, entry) for name, entry in entries.items()}
                self._stamp = stamp
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"the images file {self._file} cannot be used: {error}") from error
        return list(self._images.values())

    def find(self, reference: str) -> Image:
        """By id, exact name, name without `:latest` or name without tag. ImageUnknownError."""
        images = self.all()
        by_id = {image.id: image for image in images}
        if reference in by_id:
            return by_id[reference]
        plain = reference.split("@")[0]
        head, _, tag = plain.rpartition(":")
        untagged = head if head and "/" not in tag else plain
        for name in (reference, plain, untagged, f"{untagged}:latest"):
            if name in self._images and (name != f"{untagged}:latest" or plain == untagged):
                return self._images[name]
        known = ", ".join(sorted(self._images)) or "none"
        raise ImageUnknownError(
            f"image {reference!r} is not in {self._file} (known: {known}). This one-machine "
            "cluster pulls models for image volumes, from registries at an IP address, and no "
            f'programs: add "{reference}": {{"paths": [...], "entrypoint": [...]}} '
            "there, or use a known name"
        )
