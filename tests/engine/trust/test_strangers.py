"""A stranger on the engine's ports: no text of its making, no prompt to it, no drain by it."""

import asyncio

import httpx
import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.core.runner import InPlace
from argosy_engine.server import proof
from argosy_engine.server.admin import Admin
from argosy_engine.server.gateway_headers import NamedApp
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.server.role import EngineRole
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from argosy_engine.transfer.verifier import Verifier
from tests.engine.trust.tokens import ENGINE, GATEWAY, OPERATOR, Signer, peers, write
from tests.kv.nodes import BLOCK, Node, node

SIGNER = Signer("one")
PROMPT = [i % 200 for i in range(4 * BLOCK + 3)]
ASK = {"model": "m", "prompt": PROMPT, "max_tokens": 2}
UID = "5f0c3a52-0000-4000-8000-00000000000a"


def bearer(account, **claims):
    return {"authorization": f"Bearer {SIGNER.token(account, **claims)}"}


class ServedNode(Node):
    """A node that the API of this test's event loop submits to."""

    def __init__(self) -> None:
        self.aio = asyncio.get_running_loop()
        super().__init__("decode", "text")

    def _deliver(self, batch) -> None:
        self.aio.call_soon_threadsafe(super()._deliver, batch)


@pytest.fixture
def verifier(tmp_path):
    return Verifier(write(tmp_path / "peers.json", peers(SIGNER)))


@pytest.fixture
async def decode():
    started = ServedNode()
    yield started
    await asyncio.to_thread(started.close)


@pytest.fixture
def stranger():
    """Speaks the KV protocol as a prefill engine does, and hands out KV of another text."""
    with node("prefill") as started:
        block = memoryview(b"\x07\0\0\0" * BLOCK)
        started.runner.outgoing = lambda ids: InPlace([block] * len(ids))
        yield started


def client(decode, verifier, **options) -> httpx.AsyncClient:
    config = EngineConfig(
        model="sim:text",
        served_name="m",
        role="decode",
        pod_name="decode-pod",
        pod_uid=UID,
        **options,
    )
    api = OpenAiApi(config, decode.loop, ByteTokenizer(256))
    transport = httpx.ASGITransport(api.app(verifier))
    return httpx.AsyncClient(transport=transport, base_url="http://engine")


async def test_a_strangers_choice_of_peers_fills_no_prefix_cache(decode, stranger, verifier):
    """Its KV would be served to the next honest prompt as text, with 200."""
    async with client(decode, verifier) as http:
        sent = {"x-argosy-prefill": stranger.address}
        answer = await http.post("/v1/completions", json=ASK, headers=sent)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "unproven_caller"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-argosy-decode-pod"] == "decode-pod"
        assert decode.text_of(PROMPT) == []
        honest = await http.post("/v1/completions", json=ASK, headers=bearer(GATEWAY))
        assert honest.status_code == 200
    assert decode.text_of(PROMPT) == PROMPT[: 4 * BLOCK]
    assert stranger.text_of(PROMPT) == []  # no prompt of ours went there


async def test_a_gateway_of_the_fleet_chooses_the_peers(decode, stranger, verifier):
    """What the proof stands against, seen from the other side: here the peer is believed."""
    async with client(decode, verifier) as http:
        sent = {"x-argosy-prefill": stranger.address, **bearer(GATEWAY)}
        assert (await http.post("/v1/completions", json=ASK, headers=sent)).status_code == 200
    assert decode.text_of(PROMPT) == [7] * 4 * BLOCK
    assert stranger.text_of(PROMPT) == PROMPT[: 4 * BLOCK]


@pytest.mark.parametrize("account", [ENGINE, OPERATOR])
async def test_other_accounts_of_the_fleet_are_no_gateways(decode, verifier, account):
    async with client(decode, verifier) as http:
        answer = await http.post("/v1/completions", json=ASK, headers=bearer(account))
    assert answer.status_code == 401
    assert f"{account} may not call this port" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "shown", ["", "Bearer", "Basic YTpi", "Bearer  ", "Bearer abc", "Bearer a b c"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/models", "/x"])
async def test_without_a_proof_every_path_answers_401(decode, verifier, path, shown):
    async with client(decode, verifier) as http:
        for method in ("GET", "POST"):
            answer = await http.request(method, path, headers={"authorization": shown})
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"


async def test_the_probe_of_the_api_port_is_open_and_only_to_look(decode, verifier):
    async with client(decode, verifier) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ping")).status_code == 200
        assert (await http.head("/health")).status_code == 200
        assert (await http.post("/health")).status_code == 401


async def test_a_call_that_means_another_pod_gets_421_and_is_not_served(decode, verifier):
    async with client(decode, verifier) as http:
        for meant, status in ((UID, 200), ("", 200), (UID[:-1] + "b", 421), ("x" * 999, 421)):
            headers = {**bearer(GATEWAY), "x-argosy-pod-uid": meant}
            answer = await http.post("/v1/completions", json=ASK, headers=headers)
            assert answer.status_code == status, meant[:40]
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("wrong_pod", "x-argosy-pod-uid")
        assert error["message"] == (f"this is not the pod {'x' * 64}: look up its address again")
        assert len(answer.json()["error"]["message"]) < 200
        stranger = await http.post("/v1/completions", headers={"x-argosy-pod-uid": "other"})
        assert stranger.status_code == 401  # who may not call is told nothing of pods


async def test_a_refused_body_is_read_to_its_end(decode, verifier):
    """Closing on unread bytes resets the connection: the caller would see a broken engine."""
    async with client(decode, verifier) as http:
        read = []

        async def body():
            for _ in range(3):
                read.append(1)
                yield b" " * 1000

        answer = await http.post("/v1/completions", content=body())
        assert (answer.status_code, len(read)) == (401, 3)


class Sender:
    """A caller at the other end of ASGI: it sends `body` and then nothing more."""

    def __init__(self, *body: dict) -> None:
        self._body = list(body)
        self.sent: list[dict] = []

    async def receive(self) -> dict:
        if not self._body:
            await asyncio.Event().wait()
        return self._body.pop(0)

    async def send(self, message: dict) -> None:
        self.sent.append(message)


SCOPE = {"type": "http", "method": "POST", "path": "/drain", "headers": []}


async def test_a_refusal_is_one_whole_answer_that_ends_the_connection(verifier):
    caller = Sender({"type": "http.request", "body": b"x", "more_body": False})
    await Admin(verifier=verifier).app()(SCOPE, caller.receive, caller.send)
    head, body = caller.sent
    assert (head["type"], head["status"]) == ("http.response.start", 401)
    assert head["headers"] == [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body["body"])).encode()),
        (b"connection", b"close"),
        (b"www-authenticate", b"Bearer"),
    ]
    assert (body["type"], body["more_body"]) == ("http.response.body", False)


async def test_a_refused_caller_that_never_ends_its_body_is_left_after_a_while(
    verifier, monkeypatch
):
    monkeypatch.setattr(proof, "_UNREAD_S", 0.05)
    caller = Sender({"type": "http.request", "body": b"x", "more_body": True})
    async with asyncio.timeout(20):
        await Admin(verifier=verifier).app()(SCOPE, caller.receive, caller.send)
    assert [message["type"] for message in caller.sent] == [
        "http.response.start",
        "http.response.body",
    ]


async def _named(role, *, drains):
    """The messages of an answer of a pod that has this role now."""

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a"})

    caller, now = Sender(), EngineRole("prefill")
    named = NamedApp(app, now, "pod-1", lambda: drains)
    now.now = role
    await named(SCOPE, caller.receive, caller.send)
    return caller.sent


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("decode", b"x-argosy-decode-pod"),
        ("prefill", b"x-argosy-pod"),
        ("colocated", b"x-argosy-pod"),
    ],
)
async def test_every_answer_names_its_pod_by_the_role_of_now(role, name):
    assert await _named(role, drains=False) == [
        {"type": "http.response.start", "status": 200, "headers": [(name, b"pod-1")]},
        {"type": "http.response.body", "body": b"a"},
    ]


async def test_an_answer_of_an_engine_that_drains_is_the_last_of_its_connection():
    start, _ = await _named("decode", drains=True)
    assert start["headers"] == [(b"x-argosy-decode-pod", b"pod-1"), (b"connection", b"close")]


ORDERS = [("POST", "/drain"), ("DELETE", "/drain"), ("GET", "/drain"), ("GET", "/drain/")]


@pytest.mark.parametrize(("method", "path"), ORDERS)
async def test_only_the_operator_drains(verifier, method, path):
    admin = Admin(verifier=verifier, pod_uid=UID)
    transport = httpx.ASGITransport(admin.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        for shown in ({}, bearer(GATEWAY), bearer(ENGINE)):
            answer = await http.request(method, path, headers=shown)
            assert answer.status_code == 401
        answer = await http.request(method, path, headers=bearer(OPERATOR))
        assert answer.status_code in (200, 307, 409, 503)  # this engine does not serve yet
        for page in ("/health", "/ready", "/metrics"):
            assert (await http.get(page)).status_code in (200, 503)


async def test_refused_calls_are_counted_by_port_and_by_what_is_wrong(tmp_path, decode):
    admin = Admin()
    file = write(tmp_path / "peers.json", peers(SIGNER))
    verifier = Verifier(file, on_refused=admin.count_refused)
    verifier.check(None, "api")  # before the model is loaded: nobody counts
    admin.metrics = decode.metrics
    async with client(decode, verifier) as http:
        await http.post("/v1/completions", headers=bearer(OPERATOR))
    verifier.check(None, "kv")
    name = "argosy_calls_refused_total"
    assert decode.metric(name, port="api", reason="account") == 1
    assert decode.metric(name, port="kv", reason="missing") == 1
    assert decode.metric(name, port="api", reason="missing") == 0
