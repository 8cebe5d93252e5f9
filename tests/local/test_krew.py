"""`make krew` writes an archive and a manifest as krew documents them, and the archive runs.

The rules are those of krew's guide for plug-in manifests.
"""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.krew.__main__ import archive, build, manifest

RELEASES = "https://releases.example.com/argosy"
TOOLS = Path(sys.executable).parent


def check(described: dict[str, Any]) -> None:
    """Krew's rules."""
    assert described["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert described["kind"] == "Plugin"
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", described["metadata"]["name"])
    spec = described["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    assert spec["description"]
    selected = [tuple(p["selector"]["matchLabels"].values()) for p in spec["platforms"]]
    assert len(set(selected)) == len(selected) > 0
    for platform in spec["platforms"]:
        assert set(platform["selector"]["matchLabels"]) <= {"os", "arch"}
        assert platform["uri"].startswith("https://")
        assert re.search(r"\.(tar\.gz|zip)$", platform["uri"])
        assert re.fullmatch("[0-9a-f]{64}", platform["sha256"])
        assert platform["bin"]
        assert platform["files"]


def test_a_manifest_keeps_krews_rules() -> None:
    check(manifest("1.2.3", f"{RELEASES}/a.tar.gz", b"content"))


def test_equal_files_make_an_equal_archive() -> None:
    files = {"b": (b"2", 0o644), "a": (b"1", 0o755)}
    assert archive(files) == archive(dict(reversed(files.items())))


@pytest.mark.slow
def test_the_archive_is_what_the_manifest_says_and_runs(tmp_path: Path) -> None:
    packed, described = build(tmp_path / "out", RELEASES)
    found = yaml.safe_load(described.read_text())
    check(found)
    assert described.stem == found["metadata"]["name"]
    (platform,) = {(p["uri"], p["sha256"], p["bin"]) for p in found["spec"]["platforms"]}
    assert platform[0] == f"{RELEASES}/{packed.name}"
    assert platform[1] == hashlib.sha256(packed.read_bytes()).hexdigest()
    with tarfile.open(packed) as tar:
        assert all(entry.isfile() and "/" not in entry.name for entry in tar)
        names = tar.getnames()
        tar.extractall(tmp_path / "store", filter="data")
    assert {"LICENSE", "requirements.txt", platform[2]} < set(names)
    # Krew links the program into a folder of the PATH under the plug-in's name.
    link = tmp_path / "bin" / "kubectl-argosy"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "store" / platform[2])
    env = {**os.environ, "ARGOSY_PLUGIN_HOME": str(tmp_path / "home"), "ARGOSY_PYTHON": "false"}
    refused = subprocess.run([link], env=env, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "false is not Python 3.11 or newer: name one in ARGOSY_PYTHON" in refused.stderr
    (wheel,) = (name for name in names if name.endswith(".whl"))
    installed = tmp_path / "home" / wheel.removesuffix(".whl")
    (installed / "bin").mkdir(parents=True)
    (installed / "bin" / "kubectl-argosy").symlink_to(TOOLS / "kubectl-argosy")
    (installed / "ready").touch()
    said = subprocess.check_output([link, "lint", "--help"], env=env, text=True)
    assert "kubectl argosy lint" in said
