"""A real engine process over HTTP, with the timing runner: answers, errors, drain, footprint."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from argosy_bench.ports import free_ports

pytestmark = pytest.mark.slow


class Engine:
    def __init__(self, process, api, admin):
        self.process = process
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{api}", timeout=10)
        self.admin = httpx.Client(base_url=f"http://127.0.0.1:{admin}", timeout=10)

    def wait_until(self, predicate, timeout_s=10.0):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            try:
                if predicate():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError("did not come about in time")

    def metric(self, line_start):
        for line in self.admin.get("/metrics").text.splitlines():
            if line.startswith(line_start):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no series {line_start}")


def command(api, admin, *more):
    return [
        sys.executable,
        "-m",
        "argosy",
        "engine",
        "serve",
        "--model",
        "sim:opt-13b-a100",
        "--served-name",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        str(api),
        "--admin-port",
        str(admin),
        *more,
    ]


@contextmanager
def running(*more):
    api, admin = free_ports(2)
    process = subprocess.Popen(command(api, admin, *more), env={**os.environ, "POD_NAME": "pod-a"})
    engine = Engine(process, api, admin)
    try:
        engine.wait_until(lambda: engine.admin.get("/ready").status_code == 200)
        yield engine
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def engine():
    with running("--max-queue", "2", "--max-num-seqs", "4") as started:
        yield started


def ask(**more):
    return {"model": "m", "prompt": "one two three", "max_tokens": 4, **more}


def events(response):
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]


def test_t45_a_stream_carries_each_token_then_usage_then_done(engine):
    body = ask(stream=True, stream_options={"include_usage": True})
    response = engine.api.post("/v1/completions", json=body, headers={"x-request-id": "abc"})
    assert response.headers["x-request-id"] == "abc"
    assert response.headers["x-argosy-pod"] == "pod-a"
    *chunks, done = events(response)
    chunks = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1, 1, 1, 1, 0]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_t45_chat_answers_whole_and_greets_with_a_role_when_streamed(engine):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    whole = engine.api.post("/v1/chat/completions", json=body).json()
    streamed = events(engine.api.post("/v1/chat/completions", json={**body, "stream": True}))
    deltas = [json.loads(event)["choices"][0]["delta"] for event in streamed[:-1]]
    assert deltas[0]["role"] == "assistant"
    content = "".join(delta.get("content", "") for delta in deltas)
    assert content == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{nope", 400, "invalid_json"),
        (ask(model="other"), 404, "model_not_found"),
        (ask(prompt=[5] * 3000), 400, "context_length_exceeded"),
        (ask(max_tokens=4000), 400, "context_length_exceeded"),
        (ask(max_tokens=0), 400, "invalid_value"),
        (ask(n=129), 400, "invalid_value"),
        (ask(logprobs=1), 400, "invalid_value"),
        (ask(prompt=["a", 5]), 400, "invalid_value"),
        (ask(temperature="hot"), 400, "invalid_value"),
        (b" " * (9 << 20), 413, "body_too_large"),
        (b'{"model": "m", "prompt": "\\ud83d"}', 400, "invalid_value"),
        (b'{"model": "m", "prompt": "\xed\xa0\xbd"}', 400, "invalid_json"),
    ],
)
def test_bad_input_is_refused_in_openai_form(engine, body, status, code):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = engine.api.post("/v1/completions", content=content)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("role", "header"),
    [
        ("colocated", "x-argosy-pod"),
        ("prefill", "x-argosy-pod"),
        ("decode", "x-argosy-decode-pod"),
    ],
)
def test_every_answer_names_the_pod_that_gave_it(role, header):
    with running("--role", role, "--kv-port", str(free_ports(1)[0])) as engine:
        wanted = 400 if role == "prefill" else 200
        statuses = {
            engine.api.post("/v1/completions", json=ask()): wanted,
            engine.api.post("/v1/completions", content=b"{"): 400,
            engine.api.post("/v1/completions", content=b" " * (9 << 20)): 413,
            engine.api.get("/v1/completions"): 405,
            engine.api.get("/v2"): 404,
            engine.api.get("/v1/models"): 200,
            engine.api.get("/health"): 200,
        }
        engine.admin.post("/drain")
        statuses[engine.api.post("/v1/completions", json=ask())] = 503
        for response, status in statuses.items():
            assert response.status_code == status
            assert response.headers.get_list(header) == ["pod-a"]


def test_t45_a_client_that_leaves_ends_its_request(engine):
    before = engine.metric('vllm:request_success_total{engine="0",finished_reason="abort"')
    body = ask(max_tokens=1500, stream=True)
    with engine.api.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: collecting it would close the connection
        next(lines)
        engine.wait_until(lambda: engine.admin.get("/drain").json()["running"] == 1)
    engine.wait_until(lambda: engine.admin.get("/drain").json()["running"] == 0, timeout_s=1)
    series = 'vllm:request_success_total{engine="0",finished_reason="abort"'
    engine.wait_until(lambda: engine.metric(series) == before + 1)
    assert engine.metric("vllm:kv_cache_usage_perc") == 0


def test_t47_a_full_queue_is_answered_429_with_retry_after(engine):
    body = ask(max_tokens=1500, stream=True)
    open_streams = [engine.api.stream("POST", "/v1/completions", json=body) for _ in range(4)]
    for stream in open_streams:
        stream.__enter__()
    waiting = [socket.create_connection(("127.0.0.1", engine.api.base_url.port)) for _ in range(2)]
    raw = json.dumps(body).encode()
    for sock in waiting:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw)
            + raw
        )
    engine.wait_until(lambda: engine.metric("vllm:num_requests_waiting{") == 2)
    response = engine.api.post("/v1/completions", json=body)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    for sock in waiting:
        sock.close()
    for stream in open_streams:
        stream.__exit__(None, None, None)
    engine.wait_until(lambda: engine.admin.get("/drain").json()["running"] == 0)


def test_t47_a_drain_refuses_new_work_and_can_be_called_back(engine):
    said = engine.admin.post("/drain").json()
    assert 0 < said.pop("expires_in_s") <= 60
    assert said == {"role": "colocated", "draining": True, "running": 0, "leases": 0}
    assert engine.admin.get("/ready").status_code == 503
    refused = engine.api.post("/v1/completions", json=ask())
    assert (refused.status_code, refused.headers["x-argosy-draining"]) == (503, "1")
    assert engine.admin.delete("/drain").json()["draining"] is False
    assert engine.api.post("/v1/completions", json=ask()).status_code == 200


def test_a_drain_order_that_nobody_repeats_wears_off(engine):
    """A stranger's one, or one whose recall was lost."""
    assert engine.admin.post("/drain", params={"lease_s": 0.3}).json()["draining"] is True
    engine.wait_until(lambda: engine.admin.get("/ready").status_code == 200)
    idle = {"draining": False, "running": 0, "leases": 0, "expires_in_s": None}
    assert engine.admin.get("/drain").json() == {"role": "colocated", **idle}
    assert engine.api.post("/v1/completions", json=ask()).status_code == 200


def test_sigterm_lets_the_running_stream_finish_and_exits_0():
    with running() as engine:
        body = ask(max_tokens=30, stream=True)
        with engine.api.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            engine.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert engine.process.wait(timeout=10) == 0


def test_a_load_failure_writes_a_termination_message_and_exits_1(tmp_path: Path):
    message = tmp_path / "message"
    api, admin = free_ports(2)
    words = command(api, admin, "--termination-message", str(message), "--model", "sim:gpt-9")
    done = subprocess.run(words, timeout=20, check=False, capture_output=True)
    assert done.returncode == 1
    report = json.loads(message.read_text())
    assert report["reason"] == "ModelNotFound"
    assert "'sim:gpt-9'" in report["message"]
    assert "opt-13b-a100" in report["message"]


@pytest.mark.slow
def test_a_simulated_engine_is_small_and_starts_fast():
    with running() as engine:
        engine.api.post("/v1/completions", json=ask())
        status = Path(f"/proc/{engine.process.pid}/status").read_text()
        rss_kib = int(status.split("VmRSS:")[1].split()[0])
        assert rss_kib < 60 * 1024
        assert "torch" not in Path(f"/proc/{engine.process.pid}/maps").read_text()
        assert engine.metric("argosy_engine_start_seconds") < 2 * 2  # a busy machine's margin


def test_steps_that_are_launched_ahead_give_the_answers_of_waiting_for_each():
    asked = [
        ask(max_tokens=9),
        ask(max_tokens=9, stop=["tok"]),
        ask(max_tokens=9, n=3),
    ]

    def texts(*options):
        with running(*options) as started:
            answers = [started.api.post("/v1/completions", json=body).json() for body in asked]
            started.wait_until(lambda: started.metric("vllm:num_requests_running") == 0)
            assert started.metric("vllm:kv_cache_usage_perc") == 0
            return [[c["text"] for c in answer["choices"]] for answer in answers]

    assert texts("--async-scheduling") == texts("--no-async-scheduling")
