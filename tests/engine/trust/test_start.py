"""An engine as a process with and without a peers file."""

import json
import subprocess
import sys

import httpx
import pytest

from argosy_bench.ports import free_ports
from tests.engine.processes import sim_engines
from tests.engine.trust.tokens import ENGINE, GATEWAY, OPERATOR, Signer, peers, write

pytestmark = pytest.mark.slow

SIGNER = Signer("one")
ASK = {"model": "m", "prompt": "one two three", "max_tokens": 3}


def ask(engine, **headers):
    url = f"http://127.0.0.1:{engine.api}/v1/completions"
    return httpx.post(url, json=ASK, headers=headers, timeout=30, verify=False)


def order(engine, method, **headers):
    url = f"http://127.0.0.1:{engine.admin}/drain"
    return httpx.request(method, url, headers=headers, verify=False).status_code


def bearer(account):
    return {"authorization": f"Bearer {SIGNER.token(account)}"}


def test_an_engine_with_a_peers_file_serves_gateways_and_obeys_the_operator(tmp_path):
    file = write(tmp_path / "peers.json", peers(SIGNER))
    with sim_engines("colocated", options=("--peers-file", str(file))) as (engine,):
        assert ask(engine).status_code == 401
        assert ask(engine, **bearer(GATEWAY)).status_code == 200
        assert order(engine, "POST") == 401
        assert order(engine, "POST", **bearer(GATEWAY)) == 401
        assert ask(engine, **bearer(GATEWAY)).status_code == 200  # it takes work on
        assert order(engine, "POST", **bearer(OPERATOR)) == 200
        assert ask(engine, **bearer(GATEWAY)).status_code == 503
        assert order(engine, "DELETE", **bearer(OPERATOR)) == 200
        assert engine.metric('argosy_calls_refused_total{port="admin",reason="account"}') == 1
        write(file, peers(SIGNER, required=False))
        assert ask(engine).status_code == 200


def hand_over(prefill, decode):
    """A prompt that decode is to get from prefill; the answer, and who computed the prompt."""
    candidates = f"127.0.0.1:{prefill.kv}"
    answer = ask(decode, **bearer(GATEWAY), **{"x-argosy-prefill": candidates})
    assert answer.status_code == 200
    return answer.headers.get("x-argosy-prefill-pod")


def test_a_decode_engine_with_its_token_gets_kv_and_one_without_computes_by_itself(tmp_path):
    file = write(tmp_path / "peers.json", peers(SIGNER))
    token = write(tmp_path / "token", SIGNER.token(ENGINE))
    guarded = ("--peers-file", str(file))
    with (
        sim_engines("prefill", options=guarded) as (prefill,),
        sim_engines("decode", options=(*guarded, "--token-file", str(token))) as (decode,),
        sim_engines("decode", options=guarded) as (stranger,),
    ):
        assert hand_over(prefill, decode) == prefill.name
        assert hand_over(prefill, stranger) is None
        refused = 'argosy_calls_refused_total{port="kv",reason="%s"}'
        assert prefill.metric(refused % "missing") == 1
        write(token, SIGNER.token(GATEWAY))  # of another port's callers
        assert hand_over(prefill, decode) is None
        assert prefill.metric(refused % "account") == 1


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), ("{", "property name"), ("{}", "version must be")]
)
def test_an_engine_with_an_unusable_peers_file_does_not_start_and_names_it(tmp_path, content, why):
    file, told = tmp_path / "peers.json", tmp_path / "told"
    if content is not None:
        file.write_text(content)
    api, admin = free_ports(2)
    command = f"""engine serve --model sim:opt-13b-a100 --served-name m --peers-file {file}
        --port {api} --admin-port {admin} --termination-message {told}"""
    ended = subprocess.run([sys.executable, "-m", "argosy", *command.split()], timeout=60)
    assert ended.returncode == 1
    message = json.loads(told.read_text())
    assert message["reason"] == "BadArgument"
    assert message["message"].startswith(f"--peers-file: {file}: ")
    assert why in message["message"]


def test_an_engine_with_an_unusable_token_file_does_not_start_and_names_it(tmp_path):
    told = tmp_path / "told"
    api, admin, kv = free_ports(3)
    command = f"""engine serve --model sim:opt-13b-a100 --served-name m --role decode
        --token-file {tmp_path / "token"} --port {api} --admin-port {admin} --kv-port {kv}
        --termination-message {told}"""
    ended = subprocess.run([sys.executable, "-m", "argosy", *command.split()], timeout=60)
    assert ended.returncode == 1
    assert json.loads(told.read_text())["message"].startswith("--token-file: ")
