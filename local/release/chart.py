"""Packages the chart, whose images come from one registry."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from local.release.checks import ReleaseError
from local.release.wheels import ROOT, copy_tracked

_CHART = "charts/argosy"
_REGISTRY = re.compile(r"^(  registry: ).*$", re.MULTILINE)


def read_registry() -> str:
    """Return the registry of the chart's default images, which the owner sets in values.yaml."""
    values = yaml.safe_load((ROOT / _CHART / "values.yaml").read_text())
    registry: str = values["images"]["registry"]
    return registry


def package_chart(out: Path, version: str, registry: str) -> Path:
    """Write the chart into `out`, with another registry if that is asked for; return its path."""
    helm = shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"
    with tempfile.TemporaryDirectory() as folder:
        copy_tracked(Path(folder), (_CHART,))
        chart = Path(folder) / _CHART
        if registry != read_registry():
            values = chart / "values.yaml"
            values.write_text(_REGISTRY.sub(rf"\g<1>{registry}", values.read_text(), count=1))
        words = [helm, "package", str(chart), "--destination", str(out)]
        words += ["--version", version, "--app-version", version]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"helm package failed: {done.stderr.strip()}")
    return out / f"argosy-{version}.tgz"
