"""What the gateway shows to engines, and what it does when one does not take it."""

import dataclasses
from dataclasses import dataclass

import pytest

from argosy_gateway.errors import CredentialsError
from argosy_gateway.pods.endpoints import State
from argosy_gateway.pods.proof import Proof
from argosy_gateway.routing.roster import Route
from tests.gateway.direct import direct
from tests.gateway.engines import Call, Engine, answer

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def unproven(call: Call) -> None:
    await call.status(401, {"error": {"code": "unproven_caller"}}, www_authenticate="Bearer")


async def means_another(call: Call) -> None:
    await call.status(421, {"error": {"code": "wrong_pod"}})


def replace(path, text):
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def test_each_call_shows_the_token_of_now_and_names_the_pod_it_means(tmp_path):
    file = tmp_path / "token"
    file.write_text("one.two.three\n")
    engine = Engine("a")
    async with direct(engine, token_file=file) as f:
        await f.answered(CHAT)
        replace(file, "four.five.six\n")
        await f.answered(CHAT)
    shown = [call.headers["authorization"] for call in engine.calls]
    assert shown == ["bearer one.two.three", "bearer four.five.six"]  # the fake writes small
    assert {call.headers["x-argosy-pod-uid"] for call in engine.calls} == {engine.endpoint().uid}


@pytest.mark.parametrize("text", ["", "\n", "a\r\nx-argosy-prefill: b", "ä"])
def test_a_gateway_without_a_usable_token_does_not_start(tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(CredentialsError, match="token"):
        Proof(file)
    with pytest.raises(CredentialsError, match="No such file"):
        Proof(tmp_path / "none")


def test_an_unusable_new_token_leaves_the_one_before_and_is_reported_once(tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text("one")
    proof = Proof(file)
    for make in (lambda: replace(file, ""), file.unlink):
        make()
        for _ in range(2):
            assert proof.headers() == (("authorization", "Bearer one"),)
    assert len(caplog.records) == 2
    replace(file, "two")
    assert proof.headers() == (("authorization", "Bearer two"),)


async def test_an_engine_that_does_not_take_the_token_costs_the_request_nothing():
    a, b = Engine("a", unproven), Engine("b", answer)
    async with direct(a, b) as f:
        f.state.in_flight.reserve(Route(b.endpoint()), 1)  # so that a is asked first
        for _ in range(2):
            client = await f.answered(CHAT)
            assert (client.status, "three" in client.text) == (200, True)
        assert (len(a.calls), len(b.calls)) == (1, 2)
        assert f.count("argosy_gateway_retries_total", reason="unproven") == 1


async def test_an_engine_that_is_not_the_pod_that_was_meant_is_the_wrong_pod():
    a, b = Engine("a", means_another), Engine("b", answer)
    async with direct(a, b) as f:
        f.state.in_flight.reserve(Route(b.endpoint()), 1)  # so that a is asked first
        client = await f.answered(CHAT)
        assert (client.status, "three" in client.text) == (200, True)
        assert f.count("argosy_gateway_retries_total", reason="wrong_pod") == 1
        assert f.state.directory.health.rank("a") is None


@dataclass
class OtherEngine(Engine):
    """A server of the OpenAI API that takes its pod's uid as key and names no pod."""

    key: str = "a"

    def endpoint(self, state=State.SERVING):
        return dataclasses.replace(super().endpoint(state), engine="vllm")

    def pod(self):
        return "server", "uvicorn"

    async def asks_for_its_key(self, call):
        if call.headers["authorization"] != f"bearer {self.key}":
            await call.status(401, {"error": "Unauthorized"})
        else:
            await answer(call)

    def __post_init__(self):
        self.behaviour = self.asks_for_its_key


async def test_another_engine_is_shown_its_pods_uid_as_key_and_no_token(tmp_path):
    file = tmp_path / "token"
    file.write_text("one.two.three")
    engine = OtherEngine("a")
    async with direct(engine, token_file=file) as f:
        answered = await f.answered(CHAT)
    assert answered.status == 200
    assert engine.calls[0].headers["authorization"] == "bearer a"
    assert "x-argosy-pod-uid" not in engine.calls[0].headers


async def test_another_engine_with_the_key_of_another_pod_serves_nothing():
    stranger, right = OtherEngine("a", key="z"), OtherEngine("b", key="b")
    async with direct(stranger, right) as f:
        answers = [await f.answered(CHAT) for _ in range(4)]
    assert [one.status for one in answers] == [200] * 4
    assert len(stranger.calls) <= 1


async def test_another_engine_that_ends_is_left_like_one_that_drains():
    async def ends(call):
        await call.status(503, {"error": "shutting down"})

    leaving, right = OtherEngine("a"), OtherEngine("b", key="b")
    async with direct(leaving, right) as f:
        leaving.behaviour = ends
        answers = [await f.answered(CHAT) for _ in range(4)]
    assert [one.status for one in answers] == [200] * 4
