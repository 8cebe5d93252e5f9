"""Print how large the project is: `make size`."""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from argosy_operator.api.crd import serving_deployments
from tests.scaling.known import EVERY_S, metrics
from tests.support.model import converged

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("operator", "engine")


def count_lines(*folders: str) -> int:
    """Count the lines of all Python files below the folders."""
    return sum(len(file.read_text().splitlines()) for file in list_files(*folders))


def list_files(*folders: str) -> list[Path]:
    """List the Python files below the folders."""
    return [file for folder in folders for file in (ROOT / folder).rglob("*.py")]


def list_fields(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """List the paths of all fields that hold a value, without those below a `template`."""
    schema = schema.get("items", schema)
    for name, field in schema.get("properties", {}).items():
        inner = list(list_fields(field, f"{path}.{name}")) if name != "template" else []
        yield from inner or [f"{path}.{name}"]


def trace_round() -> set[str]:
    """Return the files of the product that one round enters, from metrics to status."""
    slo = {"ttft": {"target": "200ms"}, "tpot": {"target": "50ms"}}
    model = converged(mode="disaggregated", slo=slo)
    model.tick(EVERY_S)
    model.metrics = metrics(model.now, 8.0, {"prefill": 1, "decode": 1})
    products = tuple(str(ROOT / program) for program in PROGRAMS)
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(products):
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    model.round()
    sys.setprofile(None)
    return files


def main() -> None:
    """Print each figure beside the most that it should be."""
    crd = serving_deployments()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    figures = (
        ("files that one round enters", len(trace_round()), 55),
        ("fields under spec", len(list(list_fields(crd["properties"]["spec"]))), 120),
        ("lines of the programs", count_lines(*PROGRAMS), 58_000),
        ("lines of bench", count_lines("bench"), 6_500),
        ("lines of tests", count_lines("tests"), 75_000),
        ("Python files of the programs", len(list_files(*PROGRAMS)), 380),
        ("import contracts", len(project["tool"]["importlinter"]["contracts"]), 15),
    )
    for name, figure, most in figures:
        print(f"{name:32} {figure:7,} {most:7,}")


if __name__ == "__main__":
    main()
