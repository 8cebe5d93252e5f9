"""Every failure is a sentence that says what to do, and an exit status that scripts can read."""

from pathlib import Path

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.cli.kubectl.app import main
from argosy_operator.core.snapshot.actions import ErrorKind

CONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: a}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.fixture(autouse=True)
def kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


def failing(monkeypatch: pytest.MonkeyPatch, kind: ErrorKind, message: str) -> None:
    async def raises(_self: object, of: str, *_: object) -> None:
        raise ClusterError(kind, f"list {of}", message)

    for call in ("list", "get"):
        monkeypatch.setattr(f"argosy_operator.adapters.cluster.ApiCluster.{call}", raises)


@pytest.mark.parametrize(
    ("kind", "message", "status", "says"),
    [
        (ErrorKind.NOT_FOUND, "404 page not found", 5, "Argosy is not installed. Install it with"),
        (ErrorKind.FORBIDDEN, 'User "ann" cannot list', 4, "you may not list ServingDeployment"),
        (ErrorKind.UNAUTHORIZED, "Unauthorized", 4, "log in again"),
        (ErrorKind.TRANSPORT, "no answer within 5.0 s", 3, "no API server can be reached"),
        (ErrorKind.INVALID, "bad", 1, "cannot list ServingDeployment: bad"),
    ],
)
@pytest.mark.parametrize("words", [["status"], ["explain", "chat"]])
def test_a_refusal_of_the_api_server_is_a_sentence(
    kind: ErrorKind,
    message: str,
    status: int,
    says: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, kind, message)
    assert main(words) == status
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith(f"kubectl argosy {words[0]}: ")
    assert len(said.splitlines()) == 1


def test_no_cluster_at_the_address_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 3
    assert "no API server can be reached" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status", "chat", "-A"], ["status", "-o", "xml"], ["stats"]])
def test_a_wrong_command_line_is_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err
