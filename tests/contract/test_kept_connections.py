"""How long gateways keep connections to engines, and how long engines do."""

import signal

import httpx
import pytest

from argosy_engine.server.serve import KEEP_ALIVE_S
from argosy_gateway.config import Limits
from tests.engine.processes import eventually, sim_engines

VLLM_KEEP_ALIVE_S = 5
"""The default of its VLLM_HTTP_TIMEOUT_KEEP_ALIVE."""
ASK = {"model": "m", "prompt": "one two three", "max_tokens": 3}


def test_a_gateway_closes_idle_connections_before_any_engine_does() -> None:
    assert 0 < Limits().kept_s < VLLM_KEEP_ALIVE_S < KEEP_ALIVE_S


@pytest.mark.slow
def test_an_engine_keeps_connections_and_closes_them_when_it_drains() -> None:
    with sim_engines("colocated") as (engine,):
        url = f"http://127.0.0.1:{engine.api}"
        with httpx.Client(base_url=url, verify=False) as idle, httpx.Client(base_url=url) as used:
            for web in (idle, used):
                answered = web.post("/v1/completions", json=ASK)
                assert answered.status_code == 200
                assert "connection" not in answered.headers
            body = {**ASK, "max_tokens": 2000, "stream": True, "ignore_eos": True}
            with used.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("data: ")
                engine.process.send_signal(signal.SIGTERM)
                eventually(lambda: engine.page("/drain").json()["draining"])
                refused = idle.post("/v1/completions", json=ASK)
                assert refused.status_code == 503
                assert refused.headers["connection"] == "close"
        assert engine.process.wait(20) == 0
