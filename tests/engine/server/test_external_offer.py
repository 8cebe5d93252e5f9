"""A prompt that a router asks a prefill engine for: what is answered, and what is held when."""

import asyncio
import json

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.fit import prompt_digest
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from tests.kv.nodes import BLOCK, Node, node

PROMPT = [i % 200 for i in range(2 * BLOCK + 3)]
ASK = {
    "model": "m",
    "prompt": PROMPT,
    "max_tokens": 9,
    "kv_transfer_params": {"do_remote_decode": True},
}


class Call:
    """One request to the API of `engine`; `leave` closes its connection."""

    def __init__(
        self, engine: Node, called: tuple[str, int] | None = ("10.9.8.7", 8000), **options
    ) -> None:
        config = EngineConfig(
            model="sim:text",
            served_name="m",
            role="prefill",
            external_routers=True,
            kv_port=9002,
            **options,
        )
        self._app = OpenAiApi(config, engine.loop, ByteTokenizer(256)).app()
        self._called = called
        self._inbox: asyncio.Queue = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": json.dumps(ASK).encode()})
        self.sent: list[dict] = []

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [],
            "server": self._called,
        }
        await asyncio.wait_for(self._app(scope, self._inbox.get, self._keep), 20)

    async def _keep(self, message) -> None:
        self.sent.append(message)

    @property
    def answer(self) -> tuple[int, dict]:
        return self.sent[0]["status"], json.loads(self.sent[1]["body"])


@pytest.fixture
def prefill():
    with node("prefill") as started:
        yield started


@pytest.mark.parametrize(
    ("pod_ip", "called", "host"),
    [
        ("10.0.0.1", ("10.9.8.7", 8000), "10.0.0.1"),
        ("", ("10.9.8.7", 8000), "10.9.8.7"),
        ("", None, ""),
    ],
)
async def test_the_answer_says_where_the_kv_is(prefill, pod_ip, called, host):
    call = Call(prefill, called, pod_ip=pod_ip)
    await call.run()
    status, body = call.answer
    assert status == 200
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 35, "completion_tokens": 1, "total_tokens": 36}
    params = body["kv_transfer_params"]
    offer = prefill.loop.claim(params.pop("argosy_ticket"), 30.0)
    assert offer.prompt == prompt_digest(PROMPT)
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.loop.engine_epoch,
        "remote_block_ids": [0, 1, 2],
        "remote_host": host,
        "remote_port": 9002,
        "remote_request_id": offer.ready.key.request_id,
    }
    prefill.loop.release(offer.ready.key)


async def test_a_router_that_leaves_before_the_answer_leaves_nothing_behind(prefill):
    computing, go_on = prefill.hold_steps()
    call = Call(prefill)
    running = asyncio.create_task(call.run())
    assert await asyncio.to_thread(computing.wait, 10)
    call.leave()
    await running
    assert call.sent == []
    go_on.set()
    await asyncio.to_thread(prefill.assert_empty)


async def test_a_prompt_that_could_not_be_computed_is_500_and_not_held(prefill):
    def fails(_plan):
        raise RuntimeError("out of luck")

    prefill.runner.execute = fails
    call = Call(prefill)
    await call.run()
    status, body = call.answer
    assert (status, body["error"]["code"]) == (500, "failed")
    assert "out of luck" in body["error"]["message"]


async def test_an_engine_that_stops_prefilling_meanwhile_says_that_another_one_must(prefill):
    prefill.loop.prefills_for_peers = False
    call = Call(prefill)
    await call.run()
    status, body = call.answer
    assert (status, body["error"]["code"]) == (503, "draining")


async def test_a_prompt_whose_lease_ended_before_its_offer_can_be_asked_for_again(prefill):
    leases = prefill.loop.leases
    offer = leases.offer

    def too_late(offered):
        leases.release(offered.ready.key)
        offer(offered)

    leases.offer = too_late
    call = Call(prefill)
    await call.run()
    status, body = call.answer
    assert (status, body["error"]["type"]) == (503, "server_error")
    assert body["error"]["message"].startswith("the prompt is not held: lease ")
