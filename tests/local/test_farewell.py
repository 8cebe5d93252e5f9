"""The demo's last lines work as printed, also where curl is missing."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

from local.demo.places.farewell import commands, settings, try_out


@pytest.fixture
def answering():
    """The address of a server that answers every POST with the prompt that it read."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = asked["prompt"].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("curl", [False, True])
def test_the_request_that_is_printed_is_answered(answering: str, curl: bool) -> None:
    if curl and shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    *_, line = commands("demo", "sim-70b", {"smol": answering}, curl=curl)
    assert ("curl" in line) == curl
    assert try_out([], [line]) == []
    gone = line.replace(answering, "http://127.0.0.1:1")
    assert len(try_out([], [gone])) == 1


def test_commands_are_found_through_the_settings_alone(tmp_path: Path) -> None:
    plugin = tmp_path / "bin dir" / "argosy-look"
    plugin.parent.mkdir()
    plugin.write_text('#!/bin/sh\n[ "$KUBECONFIG" = "$1" ]\n')
    plugin.chmod(0o755)
    config = tmp_path / "kube config"
    look = f"argosy-look '{config}'"
    assert try_out(settings(config, plugin.parent), [look]) == []
    assert len(try_out([], [look])) == 1


def test_only_fleets_that_run_have_an_address() -> None:
    text = "\n".join(commands("demo", "sim-70b", {"smol": "http://127.0.0.1:1"}))
    assert "smol-colocated" not in text
    assert "http://127.0.0.1:1/v1/completions" in text
