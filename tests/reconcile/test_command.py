"""`argosy operator run` hands its flags on."""

from pathlib import Path

import pytest

from argosy_operator.cli import main
from argosy_operator.shell import app


def test_the_token_of_prometheus_is_read_from_the_named_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[app.Options] = []

    async def run(options: app.Options) -> int:
        given.append(options)
        return 0

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr("os._exit", leave)
    token = tmp_path / "token"
    with pytest.raises(SystemExit):
        main(["run", "--prometheus-url", "https://p", "--prometheus-token-file", str(token)])
    assert given[0].prometheus_token_file == token
