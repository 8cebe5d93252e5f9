"""A request can be followed through the logs of the processes that serve it."""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from argosy import logs
from argosy_bench.ports import free_ports
from tests.contract.test_logs import KEYS
from tests.engine.processes import eventually, sim_engines
from tests.gateway.engines import front

pytestmark = pytest.mark.slow

ASK = {"model": "m", "prompt": "one two three", "max_tokens": 40, "stream": True}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What this process writes as its log."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs._Json())
    logging.getLogger().addHandler(handler)
    yield handler.stream
    logging.getLogger().removeHandler(handler)


def lines(log: Path) -> list[dict[str, object]]:
    """Whole lines; each is an object with agreed keys."""
    text = log.read_text()
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    for line in found:
        assert {"time", "level", "logger", "message"} <= set(line) <= KEYS
    return found


def about(log: Path, request_id: str, level: str = "debug") -> list[dict[str, object]]:
    return [x for x in lines(log) if x.get("request_id") == request_id and x["level"] == level]


@contextlib.contextmanager
def gateway(pods: list[dict[str, object]], folder: Path, *options: str) -> Iterator[str]:
    """A gateway process with its log in `folder`; its address."""
    (folder / "endpoints.json").write_text(json.dumps(pods))
    port, admin = free_ports(2)
    words = f"""-m argosy gateway run --fleet f --namespace n --served-name m --host 127.0.0.1
        --port {port} --admin-port {admin} --endpoints {folder}/endpoints.json --log-level debug"""
    with (folder / "gateway").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words.split(), *options],
            stderr=log,
            env={**os.environ, "NO_PROXY": "*"},
        )
    try:
        eventually(
            lambda: httpx.get(f"http://127.0.0.1:{admin}/ready", verify=False).status_code == 200
        )
        yield f"http://127.0.0.1:{port}/v1/completions"
    finally:
        process.kill()
        process.wait()


def test_one_request_id_is_on_lines_of_the_gateway_of_prefill_and_of_decode(tmp_path: Path):
    longest = "x" * 119
    with sim_engines("prefill", "decode", options=("--log-level", "debug"), logs=tmp_path) as made:
        prefill, decode = (tmp_path / engine.name for engine in made)
        with gateway([engine.entry() for engine in made], tmp_path) as url:
            for name in ("chat-1", longest):
                answer = httpx.post(url, json=ASK, headers={"x-request-id": name}, verify=False)
                assert answer.headers["x-argosy-prefill-pod"] == made[0].name
                for log in (tmp_path / "gateway", prefill, decode):
                    eventually(lambda log=log, name=name: about(log, name))
                    assert {x["attempt"] for x in about(log, name) if "attempt" in x} == {1}
                    assert len(about(log, name)) < 5  # none for each token
            for line in lines(tmp_path / "gateway"):
                assert (line["namespace"], line["fleet"]) == ("n", "f")
            made[0].process.kill()
            made[0].process.wait()
            httpx.post(url, json=ASK, headers={"x-request-id": "chat-2"}, verify=False)
            eventually(lambda: about(decode, "chat-2", "warning"))


async def test_a_failure_inside_the_gateway_can_be_matched_to_its_request(written):
    async with front() as f:
        f.state.groups = None  # a fault of ours: it cannot be called
        async with httpx.AsyncClient(verify=False) as web:
            url = f"{f.url}/v1/completions"
            answer = await web.post(url, json=ASK, headers={"x-request-id": "lost"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "lost")
    (line,) = [x for x in map(json.loads, written.getvalue().splitlines()) if "exception" in x]
    assert line["request_id"] == "lost"
    assert "NoneType" in line["exception"]
