"""The shell completes verbs, flags, their values and fleets, through kubectl's own completion."""

import pytest
import typer

from argosy_operator.cli.kubectl.app import app, complete
from argosy_operator.cli.kubectl.completion import completed, grammar

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VERBS = {name: grammar(command) for name, command in COMMANDS.items()}


def candidates(*words: str) -> tuple[list[str], str]:
    asked = list[dict[str, str]]()

    def fleets(where: dict[str, str]) -> list[str]:
        asked.append(where)
        return ["chat", "code", "other-of-" + where.get("namespace", "default")]

    *lines, directive = completed(VERBS, list(words), fleets).splitlines()
    return [line.split("\t")[0] for line in lines], directive


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        ([""], ["status", "explain", "top", "logs", "drain", "render", "lint"], ":4"),
        (["st"], ["status"], ":4"),
        (["explain", "c"], ["chat", "code"], ":4"),
        (["explain", "-n", "a", "o"], ["other-of-a"], ":4"),
        (["explain", "--namespace=b", "o"], ["other-of-b"], ":4"),
        (["explain", "chat", ""], [], ":4"),
        (["status", "-o", "j"], ["json"], ":4"),
        (["logs", "chat", "--role", "p"], ["prefill"], ":4"),
        (["logs", "--fol"], ["--follow"], ":4"),
        (["status", "--kubeconfig", ""], [], ":0"),
        (["lint", ""], [], ":0"),
        (["none", ""], [], ":4"),
    ],
)
def test_what_may_come_next_is_completed(
    words: list[str], found: list[str], directive: str
) -> None:
    assert candidates(*words) == (found, directive)


def test_every_verb_says_what_it_does() -> None:
    assert all(verb.help for verb in VERBS.values())
    assert all(flag.help for verb in VERBS.values() for flag in verb.flags)


def test_a_cluster_that_does_not_answer_completes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/none")
    assert complete(["explain", ""]) == 0
    assert capsys.readouterr().out == ":4\n"
