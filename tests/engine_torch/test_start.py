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


def test_neither_tests_nor_the_engines_that_they_start_see_a_gpu():
    """What they compare is what a CPU computes; `--gpu` is for tests/engine_gpu."""
    ask = "import torch; print(torch.cuda.is_available())"
    words = [sys.executable, "-c", ask]
    asked = subprocess.run(words, env=os.environ, capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def is_loading(admin):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/health", timeout=5) as answer:
            return b"true" in answer.read()
    except OSError:
        return False
