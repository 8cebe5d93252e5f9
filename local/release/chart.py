"""Packages the chart."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from local.release.checks import ReleaseError
from local.release.wheels import copy_tracked

_CHART = "charts/argosy"


def package_chart(out: Path, version: str) -> Path:
    """Write the chart into `out`; return its path."""
    helm = shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"
    with tempfile.TemporaryDirectory() as folder:
        copy_tracked(Path(folder), (_CHART,))
        words = [helm, "package", str(Path(folder) / _CHART), "--destination", str(out)]
        words += ["--version", version, "--app-version", version]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"helm package failed: {done.stderr.strip()}")
    return out / f"argosy-{version}.tgz"
