"""A request on pods that fail: retries, aborts, drains, and the verdicts counted for it."""

import asyncio
import errno

import httpx
import pytest

from argosy_gateway.config import Limits, Slo
from argosy_gateway.pods.endpoints import Role, State
from argosy_gateway.pods.health import HEALTHY
from argosy_gateway.routing.roster import Route
from tests.gateway.engines import Engine, answer, close_early, drain, fail, front

SLO = Slo(ttft_s=0.5, tpot_s=0.1)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=10, verify=False)


@pytest.mark.parametrize("fault", [drain, fail, close_early])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_pod_that_fails_before_the_first_byte_is_replaced_by_another(fault, body):
    bad, good = Engine("bad", fault), Engine("good")
    async with front(bad, good, slo=SLO) as f, client(f) as c:
        # Make the bad one the least loaded, so that it is asked first.
        f.state.in_flight.reserve(_route(good), 1)
        response = await c.post(PATH, json=body, headers={"x-request-id": "abc"})
        assert response.status_code == 200
        assert "three" in response.text
        assert response.headers["x-request-id"] == "abc"
        assert [len(bad.calls), len(good.calls)] == [1, 1]
        assert good.calls[0].headers["x-argosy-attempt"] == "2"
        assert good.calls[0].headers["x-request-id"] == "abc"
        await f.settled()
        reason = {drain: "draining", fail: "server_error", close_early: "closed"}[fault]
        assert f.count("argosy_gateway_retries_total", reason=reason) == 1
        assert f.verdicts() == {("ok", "ok"): 1}


def _route(engine):
    return Route(engine.endpoint())


def _waiting_since(relay):
    return relay._attempt._exchange.waiting_since


async def test_a_pod_that_refuses_connections_is_skipped_and_costs_no_attempt():
    dead, good = Engine("dead"), Engine("good")
    async with front(dead, good) as f, client(f) as c:
        await dead.stop()
        f.state.in_flight.reserve(_route(good), 1)
        response = await c.post(PATH, json=STREAM)
        assert response.status_code == 200
        assert good.calls[0].headers["x-argosy-attempt"] == "1"
        assert f.count("argosy_gateway_retries_total", reason="connect") == 1


@pytest.mark.parametrize("path", [PATH, "/tokenize"])
async def test_a_gateway_without_descriptors_says_so_and_blames_no_pod(monkeypatch, path):
    a, b = Engine("a"), Engine("b")
    async with front(a, b) as f, client(f) as c:
        assert (await c.get("/health")).status_code == 200  # the client's connection is there
        loop = asyncio.get_running_loop()

        async def none_left(*_, **__):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(loop, "create_connection", none_left)
            body = CHAT if path == PATH else {"model": "m", "prompt": "hi"}
            response = await c.post(path, json=body)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "out_of_descriptors"
        assert response.headers["retry-after"] == "1"
        assert [f.state.directory.health.rank(e.endpoint().uid) for e in (a, b)] == 2 * [HEALTHY]
        assert (await c.post(PATH, json=CHAT)).status_code == 200, "both are called again at once"


async def test_a_whole_answer_that_breaks_halfway_is_retried_because_nothing_was_sent():
    async def half(call):
        await call.begin(200, "content-length: 900")
        await call.write(b"{")
        call.writer.transport.abort()

    a, b = Engine("a", half), Engine("b", answer)
    async with front(a, b) as f, client(f) as c:
        f.state.in_flight.reserve(_route(b), 1)
        assert (await c.post(PATH, json=CHAT)).status_code == 200
        assert f.count("argosy_gateway_retries_total", reason="closed") == 1


@pytest.mark.parametrize(
    ("body", "cut"),
    [(CHAT, b'{"choices": [{"message": {"content": "one'), (CHAT, b""), (STREAM, b"data: {")],
    ids=["whole", "empty", "stream"],
)
async def test_an_answer_without_a_length_that_ends_early_is_asked_of_another_pod(body, cut):
    async def half(call):
        await call.begin()
        await call.write(cut)

    a, b = Engine("a", half), Engine("b", answer)
    async with front(a, b) as f, client(f) as c:
        f.state.in_flight.reserve(_route(b), 1)
        response = await c.post(PATH, json=body)
        assert (response.status_code, len(a.calls)) == (200, 1)
        assert "three" in response.text
        assert f.count("argosy_gateway_retries_total", reason="closed") == 1


@pytest.mark.parametrize("name", ["another-pod", ""])
@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_answer_of_another_pod_on_a_reused_address_is_asked_of_our_own(status, name, body):
    async def another_pod(call):
        call.pod = ("x-argosy-pod", name) if name else ("server", "nginx")
        if status == 200:
            await answer(call)
        else:
            await call.status(status, {"error": {}}, x_argosy_draining="1")

    a, b = Engine("a", another_pod), Engine("b", answer)
    async with front(a, b) as f, client(f) as c:
        f.state.in_flight.reserve(_route(b), 1)
        for _ in range(3):
            response = await c.post(PATH, json=body)
            assert response.headers["x-argosy-pod"] == "b"
            assert "three" in response.text
        assert (len(a.calls), len(b.calls)) == (1, 3)
        assert f.count("argosy_gateway_retries_total", reason="wrong_pod") == 1


async def test_a_request_waits_for_a_pod_and_goes_as_soon_as_one_serves():
    a = Engine("a")
    async with front(a) as f, client(f) as c:
        f.state.directory.put(a.endpoint(State.UNREADY))
        waiting = asyncio.create_task(c.post(PATH, json=CHAT))
        await f.until(lambda: f.state.relays)
        assert f.count("argosy_gateway_inflight_requests") == 1
        f.state.directory.put(a.endpoint())
        assert (await waiting).status_code == 200


@pytest.mark.parametrize("state", [State.UNREADY, State.DRAINING, None])
async def test_without_a_ready_prefill_pod_decode_gets_the_prompt_at_once(state):
    d = Engine("d", role=Role.DECODE, revision="r1")
    p = Engine("p", role=Role.PREFILL, revision="r1")
    async with front(d, p, slo=SLO) as f, client(f) as c:
        if state is None:
            f.state.directory.remove("p")
        else:
            f.state.directory.put(p.endpoint(state))
        assert (await c.post(PATH, json=STREAM)).status_code == 200
        assert "x-argosy-prefill" not in d.calls[0].headers
        await f.settled()
        labels = {"role_mode": "disaggregated", "class": "default", "ttft": "ok", "tpot": "ok"}
        assert f.count("argosy_slo_requests_total", **labels) == 1
        f.state.directory.put(p.endpoint())
        assert (await c.post(PATH, json=STREAM)).status_code == 200
        assert "x-argosy-prefill" in d.calls[1].headers


async def test_the_usage_chunk_is_always_asked_for_and_shown_only_to_who_asked():
    engine = Engine("a")
    async with front(engine) as f, client(f) as c:
        hidden = await c.post(PATH, json=STREAM)
        shown = await c.post(PATH, json={**STREAM, "stream_options": {"include_usage": True}})
        assert all(call.body["stream_options"] == {"include_usage": True} for call in engine.calls)
        assert "completion_tokens" not in hidden.text
        assert shown.text.count("completion_tokens") == 1
        await f.settled()
        assert f.count("argosy_gateway_output_tokens_sum") == 6
        assert f.count("argosy_gateway_prompt_tokens_squared_total") == 2 * 49


@pytest.mark.parametrize(
    ("wait_s", "verdicts"), [(0.0, {}), (0.2, {("miss", "ok"): 1})], ids=["at once", "late"]
)
async def test_a_client_that_leaves_closes_the_engines_connection(wait_s, verdicts):
    closed = asyncio.Event()

    async def hang(call):
        await call.gone()
        closed.set()

    engine = Engine("a", hang)
    async with front(engine, slo=Slo(0.1, 0.1)) as f, client(f) as c:
        request = asyncio.create_task(c.post(PATH, json=STREAM))
        await f.until(lambda: engine.calls)
        f.advance(wait_s)
        request.cancel()
        async with asyncio.timeout(2):
            await closed.wait()
        await f.settled()
        assert f.verdicts() == verdicts
        assert f.count("argosy_requests_completed_total", result="client_gone") == 1
        assert f.state.in_flight.loads == {}


async def test_a_client_that_leaves_while_waiting_for_a_pod_leaves_the_queue():
    async with front(slo=SLO) as f, client(f) as c:
        request = asyncio.create_task(c.post(PATH, json=CHAT))
        await f.until(lambda: f.state.relays)
        request.cancel()
        await f.settled()
        assert f.count("argosy_gateway_inflight_requests") == 0


async def test_an_engines_4xx_passes_through_unchanged_and_is_no_verdict():
    error = {"error": {"message": "too long", "code": "context_length_exceeded"}}

    async def too_long(call):
        await call.status(400, error, x_should_retry="false")

    engine = Engine("a", too_long)
    async with front(engine, slo=SLO) as f, client(f) as c:
        response = await c.post(PATH, json=STREAM)
        assert (response.status_code, response.json()) == (400, error)
        assert response.headers["x-should-retry"] == "false"
        assert len(engine.calls) == 1
        await f.settled()
        assert f.verdicts() == {}


@pytest.mark.parametrize(("body", "status"), [(CHAT, 200), (STREAM, 504)], ids=["whole", "stream"])
async def test_an_answer_in_one_piece_may_take_longer_than_a_first_token(body, status):
    go_on = asyncio.Event()

    async def slow(call):
        await go_on.wait()
        await answer(call)

    engine = Engine("a", slow)
    async with front(engine, limits=Limits(first_token_s=0.02)) as f, client(f) as c:
        request = asyncio.create_task(c.post(PATH, json=body))
        await f.until(lambda: engine.calls and _waiting_since(*f.state.relays) is not None)
        f.advance(0.05)
        f.state.sweep()
        go_on.set()
        assert (await request).status_code == status


async def test_counters_agree_after_many_concurrent_requests_and_random_departures():
    async def slow(call):
        await call.begin_stream()
        for _ in range(5):
            await call.token("x")
            await asyncio.sleep(0.005)
        await call.finish(5)

    async with front(Engine("a", slow), Engine("b", slow), slo=SLO) as f, client(f) as c:
        tasks = [asyncio.create_task(c.post(PATH, json=STREAM)) for _ in range(60)]
        for i, task in enumerate(tasks):
            if i % 3 == 0:
                await asyncio.sleep(0.002)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await f.settled()
        ended = sum(
            f.count("argosy_requests_completed_total", result=r)
            for r in ("ok", "failed", "client_gone")
        )
        assert ended == f.count("argosy_requests_received_total", outcome="accepted")
        assert f.count("argosy_requests_completed_total", result="ok") >= 40
        assert f.count("argosy_requests_completed_total", result="failed") == 0
        assert f.state.in_flight.loads == {}
        assert f.count("argosy_gateway_inflight_requests") == 0
