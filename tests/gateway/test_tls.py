"""A gateway and simulated engines that speak TLS with each other."""

from dataclasses import replace

import httpx
import pytest

from argosy_gateway.pods.endpoints import Directory, State
from argosy_gateway.pods.health import HEALTHY
from argosy_gateway.pods.proof import Certificates
from tests.engine.processes import sim_engines
from tests.engine.trust.certificates import Secret, authority, pair
from tests.gateway.engines import endpoint_of, front
from tests.gateway.test_logs import gateway

ONE, TWO = authority(), authority()
ASK = {"model": "m", "prompt": "one two three", "max_tokens": 5}


@pytest.fixture
def secret(tmp_path):
    return Secret(tmp_path / "tls", ONE)


def with_tls(*engines):
    return [replace(endpoint_of(engine), tls=True) for engine in engines]


async def ask(f, body=ASK):
    async with httpx.AsyncClient(base_url=f.url, timeout=60, verify=False) as web:
        return await web.post("/v1/completions", json=body)


@pytest.mark.slow
async def test_a_gateway_serves_from_engines_with_tls_and_follows_a_new_certificate(secret):
    with sim_engines("prefill", "decode", options=secret.option) as (p, d):
        async with front(tls_dir=secret.folder) as f:
            f.state.directory.replace(with_tls(p, d))
            answer = await ask(f)
            assert answer.status_code == 200
            assert answer.headers["x-argosy-prefill-pod"] == p.name
            streamed = await ask(f, {**ASK, "stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
            secret.write(TWO)
            answer = await ask(f)
            assert answer.status_code == 200
            assert answer.headers["x-argosy-prefill-pod"] == p.name


@pytest.mark.slow
async def test_a_kept_connection_with_tls_serves_again_until_the_certificate_changes(secret):
    with sim_engines("colocated", options=secret.option) as (engine,):
        async with front(tls_dir=secret.folder) as f:
            f.state.directory.replace(with_tls(engine))
            for _ in range(3):
                assert (await ask(f, {**ASK, "stream": True})).status_code == 200
                await f.until(lambda: len(f.state.connections) == 1)
            (peer,) = f.state.connections._idle
            f.state.sweep()
            assert len(f.state.connections) == 1
            secret.write(TWO)
            f.state.sweep()
            assert len(f.state.connections) == 0
            assert (await ask(f)).status_code == 200
            await f.until(lambda: len(f.state.connections) == 1)
            assert peer not in f.state.connections._idle
            secret.write(TWO, expired=True)
            f.state.sweep()
            assert len(f.state.connections) == 0


@pytest.mark.slow
def test_a_stream_goes_on_over_its_connection_while_the_certificate_changes(secret, tmp_path):
    """With a gateway as a process: it has another event loop than the tests."""
    with sim_engines("colocated", options=secret.option) as (engine,):
        pods = [{**engine.entry(), "tls": True}]
        with gateway(pods, tmp_path, *secret.option) as url:
            whole = {**ASK, "max_tokens": 50, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", url, json=whole, timeout=60, verify=False) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                secret.write(TWO)
                other = httpx.post(url, json=ASK, timeout=60, verify=False)
                assert other.status_code == 200
                assert list(lines)[-2] == "data: [DONE]"
        # A stream that lost its connection would have had its prompt computed once more.
        each = other.json()["usage"]["prompt_tokens"]
        assert engine.metric("vllm:prompt_tokens_total") == 2 * each


@pytest.mark.slow
async def test_pods_with_and_without_tls_serve_side_by_side_while_one_replaces_the_other(secret):
    with (
        sim_engines("colocated", options=secret.option) as (new,),
        sim_engines("colocated") as (old,),
    ):
        async with front(tls_dir=secret.folder) as f:
            for pods in (with_tls(new), [endpoint_of(old)]):
                f.state.directory.replace(pods)
                assert (await ask(f)).status_code == 200


async def test_a_pod_with_tls_is_asked_for_its_health_with_the_certificate_of_its_gateway(secret):
    with sim_engines("colocated", options=secret.option) as (engine,):
        async with front(tls_dir=secret.folder) as f:
            (pod,) = with_tls(engine)
            f.state.directory.replace([pod])
            health = f.state.directory.health
            health.mark_wrong_pod(pod.uid)
            assert health.rank(pod.uid) != HEALTHY
            f.state.probes.ask(pod, again_s=0)
            await f.until(lambda: health.rank(pod.uid) == HEALTHY)


async def test_a_gateway_without_a_certificate_never_chooses_a_pod_that_asks_for_one(caplog):
    class Sim:
        name, role, api, kv = "a", "colocated", 1, 2

    (pod,) = with_tls(Sim)
    plain = replace(pod, uid="plain", tls=False)
    leaving = replace(pod, uid="leaving", state=State.DRAINING)
    for takes in ("replace", "put"):
        for speaks, serving in ((False, {"plain"}), (True, {"plain", pod.uid})):
            directory = Directory(lambda: 0.0, speaks_tls=speaks)
            if takes == "replace":
                directory.replace([pod, plain, leaving])
            else:
                for one in (pod, plain, leaving):
                    directory.put(one)
            assert {e.uid for e in directory.serving()} == serving
            assert directory.drains("leaving")
            assert len(directory.all()) == 3
    said = [record.message for record in caplog.records]
    assert said == ["a asks for TLS: this gateway needs --tls-dir"] * 2  # once by each


def test_the_context_is_that_of_the_files_of_now_and_unusable_ones_are_reported_once(
    secret, caplog
):
    ours = Certificates(secret.folder)
    first = ours.context()
    assert ours.context() is first
    secret.write(ONE)
    second = ours.context()
    assert second is not first
    secret.put(*pair(ONE), b"x")
    assert ours.context() is second
    assert ours.context() is second
    (said,) = [r.message for r in caplog.records if "stays in use" in r.message]
    assert "ca.crt: no certificate in PEM form" in said
