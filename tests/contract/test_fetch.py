"""What the fetching Job says of the engine, and of itself, is what these say."""

import json
import re
import shlex
from pathlib import Path

import pytest

from argosy_fetch import cli
from argosy_operator.adapters.gateways import parse_progress
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.pods import FetchProgress

SEAMS = (Path(__file__).parents[2] / "designs/0001-seams.md").read_text()


def test_the_command_line_is_that_of_the_seams() -> None:
    (line,) = re.findall(r"^(argosy fetch run [^\n]*(?:\n  [^\n]*)*)", SEAMS, re.MULTILINE)
    flags = set(re.findall(r"--[a-z-]+", line))
    parser = cli._parser()
    with pytest.raises(SystemExit):
        parser.parse_args(shlex.split("run --help"))
    runs = next(a for a in parser._actions if a.choices and "run" in a.choices).choices["run"]
    assert flags == {text for action in runs._actions for text in action.option_strings} - {
        "-h",
        "--help",
    }


def test_the_operator_reads_the_progress_that_the_job_tells(tmp_path: Path) -> None:
    assert cli.PORT == names.FETCH_PORT
    said = cli.Progress()
    assert said.read() is None
    said.begin(tmp_path, 10)
    (tmp_path / "model.safetensors.part").write_bytes(b"1234")
    assert parse_progress(json.dumps(said.read()).encode()) == FetchProgress(4, 10)
