"""What the API answers without an engine: models, wrong paths, overload, failures of its own."""

import json

import pytest

from argosy_gateway.config import Limits, Slo, SloClass
from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.server import app
from argosy_gateway.server.app import api_app
from tests.gateway.server.asked import Client, asked, gateway_of

CHAT = "/v1/chat/completions"
HI = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CREATED = 1_700_000_000
MODEL = {
    "id": "m",
    "object": "model",
    "created": CREATED,
    "owned_by": "argosy",
    "max_model_len": None,
}
NO_PATH = (
    "No such path; this fleet has /v1/chat/completions, /v1/completions, /tokenize, /detokenize, "
    "/tokenizer_info, /version and /v1/models."
)
NOT_OURS = " Others below /v1 reach engines of type vllm or sglang in mode colocated."
ID = (b"x-request-id", b"mine")
POD = Endpoint("a", "a", "10.0.0.1", Role.COLOCATED, "r", State.SERVING)


def json_headers(body, **more):
    return {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": "mine",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


async def ask(gateway, path=CHAT, method="GET", body=b"", headers=()):
    return await asked(api_app(gateway), path, method, body, (ID, *headers))


async def error_of(gateway, path=CHAT, method="GET", body=b"", headers=()):
    """Status, headers of its own and error of a refused request."""
    answer = await ask(gateway, path, method, body, headers)
    usual = json_headers(answer.body)
    assert {name: answer.headers[name] for name in usual} == usual
    own = {name: value for name, value in answer.headers.items() if name not in usual}
    (error,) = json.loads(answer.body).values()
    return answer.status, own, error


def error(message, type_="invalid_request_error", param=None, code=None):
    return {"message": message, "type": type_, "param": param, "code": code}


OVERLOADED = error("The fleet is overloaded; try again later.", "overloaded", None, "overloaded")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/health", {"status": "ok"}),
        ("/ping", {"status": "ok"}),
        ("/ping/", {"status": "ok"}),
        ("/health/", {"status": "ok"}),
        ("/v1/models", {"object": "list", "data": [MODEL]}),
        ("/v1/models/", {"object": "list", "data": [MODEL]}),
        ("/v1/models/m", MODEL),
        ("/v1/models/m/", MODEL),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_needs_no_engine_is_answered_without_one(path, method, says, monkeypatch):
    monkeypatch.setattr(app.time, "time", lambda: CREATED + 0.5)
    answer = await ask(gateway_of(), path, method)
    assert (answer.status, answer.headers) == (200, json_headers(answer.body))
    assert json.loads(answer.body) == says


async def test_another_model_is_not_found():
    for name in ("x", "m2", "v1/models/m"):
        assert await error_of(gateway_of(), f"/v1/models/{name}") == (
            404,
            {},
            error("No such model; this fleet serves 'm'.", param="model", code="model_not_found"),
        )


@pytest.mark.parametrize("path", ["/", "/v2", "/v1", "/v1/modelsx", "/v1/embeddings", "/healthy"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_another_path_is_not_found_and_the_paths_are_named(path, method):
    gateway = gateway_of()
    said = NO_PATH + (NOT_OURS if path.startswith("/v1/") else "")
    assert await error_of(gateway, path, method) == (404, {}, error(said))
    assert received(gateway) == {}


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/m", "/v1/models/x"])
async def test_what_is_read_only_takes_no_other_method(path):
    assert await error_of(gateway_of(), path, "POST") == (
        405,
        {"allow": "GET"},
        error(f"POST is not allowed on {path}; use GET."),
    )


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_completion_is_posted(path):
    gateway = gateway_of()
    assert await error_of(gateway, path, "GET") == (
        405,
        {"allow": "POST"},
        error(f"GET is not allowed on {path}; use POST."),
    )
    assert received(gateway) == {"invalid": 1}


async def test_a_gateway_that_drains_closes_after_an_error():
    gateway = gateway_of()
    gateway.draining = True
    _, own, _ = await error_of(gateway, "/v2")
    assert own == {"connection": "close"}
    _, own, _ = await error_of(gateway, method="GET")
    assert own == {"allow": "POST", "connection": "close"}


# What counts as received, and how.


def received(gateway):
    """The counts of requests by their outcome that are not 0."""
    return {
        sample.labels["outcome"]: sample.value
        for family in gateway.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "argosy_requests_received_total" and sample.value
    }


def verdicts(gateway):
    return {
        (s.labels["class"], s.labels["role_mode"], s.labels["ttft"], s.labels["tpot"]): s.value
        for family in gateway.metrics.registry.collect()
        for s in family.samples
        if s.name == "argosy_slo_requests_total" and s.value
    }


@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        (b"{}", (), "'messages' is required."),
        (b"x" * 101, ((b"content-length", b"101"),), "The request body is larger than 100 bytes."),
        (
            HI,
            ((b"x-argosy-class", b"gold"),),
            "No such class in x-argosy-class; this fleet has default.",
        ),
        (
            HI,
            ((b"x-argosy-flow", b"a b"),),
            "x-argosy-flow must be 1 to 128 letters, digits, dots, underscores or hyphens.",
        ),
    ],
)
async def test_a_wrong_request_is_invalid_and_judged_by_no_slo(body, headers, says):
    gateway = gateway_of(slo=Slo(1, 1), limits=Limits(body_bytes=100))
    _, _, refused = await error_of(gateway, CHAT, "POST", body, headers)
    assert refused["message"].startswith(says.removesuffix("."))
    assert received(gateway) == {"invalid": 1}
    assert verdicts(gateway) == {}
    assert (gateway.bodies.arriving, gateway.bodies.held) == (0, 0)


async def test_a_body_that_is_announced_as_far_too_long_is_refused_unread():
    """Eight times the limit would be read and dropped, so that the client sees the answer."""
    gateway = gateway_of(limits=Limits(body_bytes=100))
    for size, status in ((b"800", 400), (b"801", 413)):
        headers = ((b"content-length", size),)
        assert (await ask(gateway, CHAT, "POST", b"{}", headers)).status == status


@pytest.mark.parametrize("role", list(Role))
async def test_a_full_gateway_sheds_and_names_the_time(role):
    batch = SloClass("batch", Slo(9, 9))
    gateway = gateway_of(max_queue=2, slo=Slo(1, 1), slo_classes=(batch,))
    gateway.directory.put(Endpoint("a", "a", "10.0.0.1", role, "r", State.UNREADY))
    gateway.relays |= {"one", "two"}  # type: ignore[arg-type]
    headers = ((b"x-argosy-class", b"batch"),)
    assert await error_of(gateway, CHAT, "POST", HI, headers) == (
        429,
        {"retry-after": "1", "retry-after-ms": "1000"},
        OVERLOADED,
    )
    assert received(gateway) == {"shed": 1}
    mode = "colocated" if role is Role.COLOCATED else "disaggregated"
    assert verdicts(gateway) == {("batch", mode, "miss", "miss"): 1}


def predicts(monkeypatch, seconds):
    """The fleet's prediction of a TTFT; `test_admission.py` has how it comes about."""
    seen = []

    def predicted(groups, loads, *, tokens, pace):
        seen.append((groups, loads, tokens, pace))
        return seconds

    monkeypatch.setattr(app, "predict_ttft_s", predicted)
    return seen


@pytest.mark.parametrize(
    ("predicted_s", "retry_ms"),
    [
        (2.01, "100"),
        (2.2, "200"),
        (61.5, "59500"),
        (62.0, "60000"),
        (90.0, "60000"),
    ],
)
async def test_what_would_miss_its_limit_by_its_factor_is_shed(monkeypatch, predicted_s, retry_ms):
    seen = predicts(monkeypatch, predicted_s)
    gateway = gateway_of(slo=Slo(1.0, 1), shed_ttft_factor=2.0)
    gateway.directory.put(POD)
    status, own, refused = await error_of(gateway, CHAT, "POST", HI)
    assert (status, own["retry-after-ms"], refused) == (429, retry_ms, OVERLOADED)
    ((groups, loads, tokens, pace),) = seen
    assert [pod.uid for group in groups for pod in group.heads] == ["a"]
    assert (loads, tokens, pace) == (gateway.in_flight.loads, 1, gateway.pace)
    assert verdicts(gateway) == {("default", "colocated", "miss", "miss"): 1}


@pytest.mark.parametrize(
    ("predicted_s", "settings"),
    [
        (2.0, {"slo": Slo(1.0, 1), "shed_ttft_factor": 2.0}),
        (None, {"slo": Slo(1.0, 1), "shed_ttft_factor": 2.0}),
        (99.0, {"slo": Slo(1.0, 1)}),
        (99.0, {"shed_ttft_factor": 2.0}),
    ],
)
async def test_other_requests_are_admitted(monkeypatch, predicted_s, settings):
    predicts(monkeypatch, predicted_s)
    gateway = gateway_of(max_queue=1, **settings)
    begun = relays(monkeypatch)
    await ask(gateway, CHAT, "POST", HI)
    assert len(begun) == 1
    assert received(gateway) == {}


def relays(monkeypatch):
    """The requests for which relays begin; each relay ends at once."""
    begun = []

    class Relay:
        def __init__(self, gateway, request, send, client):
            self.send, self.client = send, client
            begun.append((request, client))

        async def run(self):
            assert self.client.when_gone == self.stop
            await self.send({"type": "http.response.start", "status": 200, "headers": []})
            await self.send({"type": "http.response.body", "body": b""})

        def stop(self):
            pass

    monkeypatch.setattr(app, "Relay", Relay)
    return begun


async def test_a_relay_is_told_what_the_server_knows_of_its_request(monkeypatch):
    begun = relays(monkeypatch)
    batch = SloClass("batch", Slo(9, 9))
    gateway = gateway_of(slo=Slo(1, 1), slo_classes=(batch,))
    headers = ((b"x-argosy-class", b"batch"), (b"x-argosy-flow", b"tenant"))
    long = HI.replace(b"hi", b"x" * 400)
    client = Client()
    await asked(api_app(gateway), CHAT, "POST", long, (ID, *headers), client=client)
    ((request, told),) = begun
    assert told is client
    assert client.when_gone is None, "a connection that waits keeps no request in memory"
    assert (request.request_id, request.path, request.body) == ("mine", CHAT, long)
    assert (request.slo_class, request.flow) == ("batch", "tenant")
    assert (request.prompt_chars, request.prompt_tokens) == (400, 100)
    assert (request.received_at, request.prefixes) == (1000.0, ())


@pytest.mark.parametrize(("strategy", "hashed"), [("prefixHash", True), ("leastLoad", False)])
async def test_only_a_strategy_that_looks_at_prefixes_has_them_computed(
    monkeypatch, strategy, hashed
):
    begun = relays(monkeypatch)
    long = HI.replace(b"hi", b"x" * 400)
    await ask(gateway_of(strategy=strategy), CHAT, "POST", long)
    assert bool(begun[0][0].prefixes) is hashed


async def test_a_failure_of_the_gateway_says_that_it_is_its_own(monkeypatch, caplog):
    monkeypatch.setattr(app, "Relay", None)
    gateway = gateway_of()
    assert await error_of(gateway, CHAT, "POST", HI) == (
        500,
        {},
        error("The gateway failed.", "server_error"),
    )
    assert "a request failed inside the gateway" in caplog.text
    assert (gateway.bodies.arriving, gateway.bodies.held) == (0, 0)
