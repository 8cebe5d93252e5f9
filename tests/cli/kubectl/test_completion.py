"""The shell completes verbs, flags, their values and fleets, through kubectl's own completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from argosy_operator.cli.kubectl.app import app, complete, completed, grammar
from tests.cli.kubectl.in_memory import World

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VERBS = {name: grammar(command) for name, command in COMMANDS.items()}


def candidates(*words: str) -> tuple[list[str], str]:
    asked = list[dict[str, str]]()

    def named(of: str, where: dict[str, str]) -> list[str]:
        asked.append(where)
        if of == "pod":
            return ["chat-decode-1", "chat-decode-2"]
        return ["chat", "code", "other-of-" + where.get("namespace", "default")]

    *lines, directive = completed(VERBS, list(words), named).splitlines()
    return [line.split("\t")[0] for line in lines], directive


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        ([""], ["status", "explain", "drain", "render", "lint", "import", "rollout"], ":4"),
        (["rollout", "un"], ["undo"], ":4"),
        (["rollout", "undo", "c"], ["chat", "code"], ":4"),
        (["rollout", "undo", "chat", ""], [], ":4"),
        (["rollout", "status", "chat", "--w"], ["--watch"], ":4"),
        (["st"], ["status"], ":4"),
        (["explain", "c"], ["chat", "code"], ":4"),
        (["explain", "-n", "a", "o"], ["other-of-a"], ":4"),
        (["explain", "--namespace=b", "o"], ["other-of-b"], ":4"),
        (["explain", "chat", ""], [], ":4"),
        (["drain", ""], ["chat-decode-1", "chat-decode-2"], ":4"),
        (["drain", "--timeout", "5m", "chat-decode-2"], ["chat-decode-2"], ":4"),
        (["drain", "chat-decode-1", ""], [], ":4"),
        (["status", "-o", "j"], ["json"], ":4"),
        (["explain", "chat", "-o", "j"], ["json"], ":4"),
        (["drain", "--und"], ["--undo"], ":4"),
        (["status", "--kubeconfig", ""], [], ":0"),
        (["lint", ""], [], ":0"),
        (["none", ""], [], ":4"),
    ],
)
def test_what_may_come_next_is_completed(
    words: list[str], found: list[str], directive: str
) -> None:
    assert candidates(*words) == (found, directive)


def test_drain_is_completed_with_the_engine_pods_that_there_are(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.fleet()
    for name, role in (("chat-decode-2", "decode"), ("chat-prefill-1", "prefill")):
        world.pod(name, role)
    for name, role in (("chat-gateway-1", "gateway"), ("chat-fetch-1", "fetch")):
        world.pod(name, role)
    world.pod("blog-colocated-1", "colocated", "blog", namespace="b")
    assert complete(["drain", ""]) == 0
    assert capsys.readouterr().out.splitlines() == ["chat-decode-2", "chat-prefill-1", ":4"]
    assert complete(["drain", "-n", "b", ""]) == 0
    assert capsys.readouterr().out.splitlines() == ["blog-colocated-1", ":4"]


def test_the_real_kubectl_asks_the_plugin_what_may_come_next(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    where = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(tmp_path / "none"),
    }

    def asked(*words: str) -> list[str]:
        command = [tools / "kubectl", "__complete", "argosy", *words]
        done = subprocess.run(
            command, env=where, capture_output=True, text=True, timeout=60, check=True
        )
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert asked("") == [*VERBS, ":4"]
    assert asked("status", "-o", "w") == ["wide", ":4"]
