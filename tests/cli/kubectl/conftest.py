"""A cluster in memory, and command lines that are run on it."""

from collections.abc import Callable

import pytest

from argosy_operator.cli.kubectl.app import main
from tests.cli.kubectl.in_memory import World, connect

Run = Callable[..., tuple[int, str, str]]
"""Words of a command line to exit status, stdout and stderr."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    connect(made, monkeypatch)
    return made


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run
