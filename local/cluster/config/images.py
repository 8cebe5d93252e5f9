"""Fills in images.json, which maps image names to programs of this machine."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from local.cluster.layout import SOURCE

TEMPLATE = Path(__file__).with_name("images.json")
# Every pod sees these through its root.
_COMMON = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/opt")


def read_registry() -> str:
    """Return the registry of the chart's images: the one place where the owner sets it."""
    values = yaml.safe_load((SOURCE / "charts" / "argosy" / "values.yaml").read_text())
    registry: str = values["images"]["registry"]
    return registry


def resolve(bin_dir: Path, extra: Path | None = None) -> dict[str, dict[str, Any]]:
    """Image name → entry. Entries of `extra`, the user's file, win. ValueError for bad JSON.

    Where `extra` is the folder of a release, its images take the place of those of the checkout.
    """
    values = {
        "venv": sys.prefix,
        "base_python": sys.base_prefix,
        "source": str(SOURCE),
        "bin": str(bin_dir),
        "registry": read_registry(),
    }
    entries: dict[str, dict[str, Any]] = {}
    released = extra is not None and extra.is_dir()
    for file in (TEMPLATE, None if released else extra):
        if file is None:
            continue
        try:
            entries |= json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"the images file {file} is not valid JSON: {error}") from error
    if extra is not None and released:
        from local.cluster.config.released import read_images

        entries = {name: entry for name, entry in entries.items() if "{registry}" not in name}
        entries |= read_images(extra)
    resolved = {_fill(name, values): _fill(entry, values) for name, entry in entries.items()}
    for entry in resolved.values():
        paths = [str(Path(path)) for path in entry.get("paths", [])]
        entry["paths"] = [path for path in paths if not path.startswith(_COMMON)]
    return resolved


def _fill(value: Any, values: dict[str, str]) -> Any:
    """Replace `{venv}` and the like in every string."""
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, list):
        return [_fill(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, values) for key, item in value.items()}
    return value
