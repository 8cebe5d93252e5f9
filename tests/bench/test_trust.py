"""`make bench-trust`, shortened: the pairs serve, and every figure is measured."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_a_short_run_puts_every_figure(tmp_path):
    path = tmp_path / "trust.json"
    words = ("argosy_bench.suites.trust", "--requests", "20", "--json", str(path))
    ended = subprocess.run([sys.executable, "-m", *words], capture_output=True, timeout=100)
    assert path.exists(), ended.stderr  # its status is that of the target, which 20 may miss
    figures = json.loads(path.read_text())["figures"]
    assert set(figures) == {
        "ttft_ms_p50_open",
        "ttft_ms_p50_verified",
        "auth_added_ttft_ms_p50",
        "ttft_ms_p50_tls",
        "tls_added_ttft_ms_p50",
        "verify_known_us",
        "verify_first_us",
    }
    assert figures["verify_known_us"] < figures["verify_first_us"]
