"""An engine that is told to end while it loads."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from argosy_bench.ports import free_ports
from tests.engine.processes import eventually

pytestmark = pytest.mark.torch


def test_sigterm_during_the_load_ends_the_engine_at_once_with_status_0(tmp_path):
    os.mkfifo(tmp_path / "config.json")  # nothing writes to it: the load does not end
    api, admin = free_ports(2)
    command = f"""engine serve --model {tmp_path} --served-name m --load-format dummy
        --host 127.0.0.1 --port {api} --admin-port {admin}"""
    process = subprocess.Popen([sys.executable, "-m", "argosy", *command.split()])
    try:
        eventually(lambda: is_loading(admin))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == 0
    finally:
        process.kill()
        process.wait()


def is_loading(admin):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/health", timeout=5) as answer:
            return b"true" in answer.read()
    except OSError:
        return False
