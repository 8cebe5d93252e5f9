"""How many threads compute."""

import subprocess
import sys
from pathlib import Path

import pytest

from local.weights.tiny import write_tiny
from tests.engine_torch.engines import engine

pytestmark = pytest.mark.torch
ONE_TEAM = """
import os, sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.ones(512, 512) @ torch.ones(512, 512)
torch.ones(1 << 20).exp()
print(len(os.listdir("/proc/self/task")))
"""


def test_load_and_steps_share_one_openmp_team(tmp_path):
    """A second team makes libgomp count more threads than cores, and sleep instead of spin."""
    model, engines, one_team = write_tiny(tmp_path / "tiny"), {}, {}
    for threads in ("1", "4"):
        log = tmp_path / f"{threads}.log"
        with engine(model, "colocated", log, "--compute", "torch", "--threads", threads) as started:
            started.complete("a prompt that is long enough for every thread " * 4, 4)
            engines[threads] = len(list(Path(f"/proc/{started.pid}/task").iterdir()))
        done = subprocess.run(
            [sys.executable, "-c", ONE_TEAM, threads], capture_output=True, check=True, timeout=100
        )
        one_team[threads] = int(done.stdout)
    assert engines["4"] - engines["1"] == one_team["4"] - one_team["1"]
