"""An engine that dies before its first byte costs no request: another one answers."""

import contextlib
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.installed import burst

pytestmark = pytest.mark.cluster


def kill(pod):
    """SIGKILL to the engine's process: it ends at once, and no one is told before."""
    own = f"POD_NAME={pod['metadata']['name']}".encode()
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and own in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    assert found, f"no process of pod {pod['metadata']['name']}"
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def metric(url, name):
    """Sum of a metric over its labels."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("mode", "role"), [("disaggregated", "decode"), ("colocated", "colocated")]
)
def test_an_engine_killed_before_its_first_byte_costs_no_request(argosy, cluster, mode, role):
    fleet = f"killed-{role}"
    two = {"replicas": {"min": 2, "max": 2}, "resources": {"gpu": 0}}
    one = {"replicas": {"min": 1, "max": 1}, "resources": {"gpu": 0}}
    roles = {name: two if name == role else one for name in ("prefill", "decode", "colocated")}
    argosy.apply(fleet, mode=mode, roles=roles)
    argosy.until_ready(fleet)
    address = argosy.pods(fleet, "gateway")[0]["status"]["podIP"]
    admin = f"http://127.0.0.1:{cluster.publish(f'{address}:8081', f'{fleet}.admin')}"
    # A fleet is Ready as soon as it can answer: with one of the two.
    serving = f'argosy_gateway_endpoints{{role="{role}",state="serving"}}'
    argosy.until(f"two {role} pods serve", lambda: metric(admin, serving) == 2, 30)
    accepted = 'argosy_requests_received_total{outcome="accepted"}'
    # A prompt takes an engine 0.9 s, so the last ones wait for seconds; one token is all of an
    # answer, so none is between its first byte and its end.
    with burst(argosy.url(fleet), fleet, 8, words=8000, tokens=1) as answers:
        argosy.until("8 accepted", lambda: metric(admin, accepted) == 8, 10)
        waiting = 8 - answers.begun
        kill(argosy.pods(fleet, role)[0])
    assert waiting > 1
    assert answers.outcomes == ["ok"] * 8
    assert metric(admin, "argosy_gateway_retries_total") >= 1
    argosy.kubectl("delete", "sd", fleet, "--wait=false")
