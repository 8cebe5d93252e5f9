"""Engines as processes with and without `--tls-dir`."""

import json
import socket
import subprocess
import sys

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_engine.server.serve import _bind
from tests.engine.processes import sim_engines
from tests.engine.trust.certificates import Secret, authority, root, stranger

pytestmark = pytest.mark.slow

ONE, TWO = authority(), authority()
ASK = {"model": "m", "prompt": "one two three", "max_tokens": 3}


@pytest.fixture
def secret(tmp_path):
    return Secret(tmp_path / "tls", ONE)


def ask(engine, tls, **headers):
    url = f"https://127.0.0.1:{engine.api}/v1/completions"
    return httpx.post(url, json=ASK, headers=headers, timeout=30, verify=tls)


def hand_over(prefill, decode, tls):
    """The name of the pod that computed the prompt; None if decode did it by itself."""
    answer = ask(decode, tls, **{"x-argosy-prefill": f"127.0.0.1:{prefill.kv}"})
    assert answer.status_code == 200
    return answer.headers.get("x-argosy-prefill-pod")


def test_only_callers_with_a_certificate_are_served(secret):
    with sim_engines("colocated", options=secret.option) as (engine,):
        assert ask(engine, secret.caller()).status_code == 200
        with pytest.raises(httpx.TransportError):
            ask(engine, stranger(secret.folder / "ca.crt"))
        with pytest.raises(httpx.TransportError):
            httpx.post(f"http://127.0.0.1:{engine.api}/v1/completions", json=ASK, verify=False)
        assert engine.page("/health").status_code == 200  # probes have no certificate


def test_an_engine_shows_a_new_certificate_without_a_restart(secret):
    with sim_engines("colocated", options=secret.option) as (engine,):
        old = secret.caller()
        with httpx.Client(verify=old, timeout=30) as kept:
            url = f"https://127.0.0.1:{engine.api}/v1/completions"
            assert kept.post(url, json=ASK).status_code == 200
            secret.write(TWO)
            assert ask(engine, secret.caller()).status_code == 200
            with pytest.raises(httpx.TransportError):
                ask(engine, old)
            assert kept.post(url, json=ASK).status_code == 200  # its connection is open still


def test_kv_travels_between_engines_with_certificates_and_no_other(secret, tmp_path):
    other = Secret(tmp_path / "other", TWO, trusts=root(ONE, TWO))
    with (
        sim_engines("prefill", "decode", options=secret.option) as (prefill, decode),
        sim_engines("decode", options=other.option) as (foreign,),
        sim_engines("decode") as (plain,),
    ):
        caller = secret.caller()
        assert hand_over(prefill, decode, caller) == prefill.name
        assert hand_over(prefill, foreign, other.caller()) is None
        url = f"http://127.0.0.1:{plain.api}/v1/completions"
        candidates = {"x-argosy-prefill": f"127.0.0.1:{prefill.kv}"}
        answer = httpx.post(url, json=ASK, headers=candidates, timeout=30, verify=False)
        assert (answer.status_code, answer.headers.get("x-argosy-prefill-pod")) == (200, None)
        secret.write(TWO)
        assert hand_over(prefill, decode, secret.caller()) == prefill.name


@pytest.mark.parametrize(
    ("breaks", "why"), [("missing", "No such file or directory"), ("expired", "renew the Secret")]
)
def test_an_engine_with_an_unusable_certificate_does_not_start_and_names_it(
    secret, tmp_path, breaks, why
):
    if breaks == "missing":
        (secret.folder / "tls.crt").unlink()
    else:
        secret.write(ONE, expired=True)
    told = tmp_path / "told"
    api, admin = free_ports(2)
    command = f"""engine serve --model sim:opt-13b-a100 --served-name m --port {api}
        --admin-port {admin} --tls-dir {secret.folder} --termination-message {told}"""
    ended = subprocess.run([sys.executable, "-m", "argosy", *command.split()], timeout=60)
    assert ended.returncode == 1
    message = json.loads(told.read_text())
    assert message["reason"] == "BadArgument"
    assert message["message"].startswith(f"--tls-dir: {secret.folder}/tls.crt: ")
    assert why in message["message"]


def test_the_first_event_after_a_handshake_waits_for_no_delayed_ack():
    """Nagle's algorithm holds a second small write back until the first one is acknowledged."""
    (port,) = free_ports(1)
    with _bind("127.0.0.1", port) as listening, socket.create_connection(("127.0.0.1", port)):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
