"""A gateway and simulated engines that speak TLS with each other."""

from dataclasses import replace

import httpx
import pytest
from cryptography import x509

from argosy_gateway.errors import CredentialsError, UnreachableError
from argosy_gateway.pods.endpoints import Directory, State
from argosy_gateway.pods.health import HEALTHY
from argosy_gateway.pods.proof import Certificates
from argosy_gateway.wire import http1
from tests.engine.processes import sim_engines
from tests.engine.trust.certificates import Secret, authority, pair, root
from tests.gateway.engines import endpoint_of, front

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


async def called(engine, certificates):
    exchange = await http1.call(
        "127.0.0.1",
        engine.api,
        method="GET",
        target="/health",
        connect_s=10,
        tls=certificates.context(),
    )
    try:
        return (await exchange.head()).status
    finally:
        exchange.abort()


@pytest.mark.slow
async def test_the_error_says_which_side_has_the_wrong_certificate(secret, tmp_path):
    ours = Certificates(secret.folder)
    foreign = Secret(tmp_path / "foreign", TWO, trusts=root(ONE))
    with sim_engines("colocated", options=foreign.option) as (engine,):
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await called(engine, ours)
        secret.write(ONE, trusts=root(TWO))
        assert await called(engine, ours) == 200
        secret.write(ONE, trusts=root(TWO), expired=True)
        with pytest.raises(UnreachableError, match=r"tls\.crt has expired: renew the Secret"):
            await called(engine, ours)


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


def test_a_certificate_is_used_until_the_second_in_which_it_ends(secret):
    ends = x509.load_pem_x509_certificate((secret.folder / "tls.crt").read_bytes())
    now = ends.not_valid_after_utc.timestamp() - 1
    ours = Certificates(secret.folder, clock=lambda: now)
    ours.context()
    now += 1
    with pytest.raises(UnreachableError, match=r"tls\.crt has expired: renew the Secret"):
        ours.context()


def test_unusable_files_at_the_start_are_named(secret):
    with pytest.raises(UnreachableError, match="start it with --tls-dir"):
        Certificates(None).context()
    certificate, key = pair(ONE)
    for contents, why in (
        ((certificate, key, b""), "/ca.crt: no certificate in PEM form"),
        ((certificate, key, certificate), "/ca.crt: holds no authority (CA:TRUE)"),
        (
            (certificate, pair(ONE)[1], root(ONE)),
            ": tls.crt and tls.key must be PEM files that fit",
        ),
    ):
        secret.put(*contents)
        with pytest.raises(CredentialsError) as error:
            Certificates(secret.folder)
        assert str(error.value) == f"--tls-dir: {secret.folder}{why}"
    (secret.folder / "ca.crt").unlink()
    with pytest.raises(CredentialsError, match=r"ca\.crt: No such file or directory"):
        Certificates(secret.folder)
