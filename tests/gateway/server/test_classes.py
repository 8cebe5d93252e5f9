"""Classes and flows: what a client asks for in headers, what it is judged by, where it waits."""

import json

import httpx
import pytest

from argosy_gateway.cli import parse
from argosy_gateway.config import Slo, SloClass
from tests.gateway.engines import Call, Engine, answer, front

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
SLO = Slo(5.0, 5.0)
BATCH = SloClass("batch", Slo(1e-9, 5.0), 7)
CLASSES = {"slo": SLO, "slo_classes": (BATCH,)}
ARGS = ["run", "--fleet=f", "--namespace=n", "--served-name=m"]
WITH_SLO = [*ARGS, "--slo-ttft-ms=1000", "--slo-tpot-ms=50"]


async def asked(f, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f.url, timeout=10, verify=False) as web:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await web.post("/v1/chat/completions", json=ASK, headers=named)
    await f.settled()
    return response


def scored(f, slo_class: str) -> dict[str, float]:
    labels = {"role_mode": "colocated", "class": slo_class, "tpot": "ok"}
    return {
        ttft: f.count("argosy_slo_requests_total", ttft=ttft, **labels) for ttft in ("ok", "miss")
    }


async def test_a_request_is_judged_by_the_limits_of_its_class():
    async with front(Engine("e", answer), **CLASSES) as f:
        assert (await asked(f)).status_code == 200
        assert (await asked(f, x_argosy_class="default")).status_code == 200
        assert (await asked(f, x_argosy_class="batch")).status_code == 200
        assert scored(f, "default") == {"ok": 2, "miss": 0}
        assert scored(f, "batch") == {"ok": 0, "miss": 1}


async def test_an_unknown_class_is_refused_with_the_names_that_there_are():
    async with front(Engine("e", answer), **CLASSES) as f:
        response = await asked(f, x_argosy_class="gold")
        assert response.status_code == 400
        error = response.json()["error"]
        assert "default, batch" in error["message"]
        assert (error["code"], error["param"]) == ("class_not_found", "x-argosy-class")
        assert f.count("argosy_requests_received_total", outcome="invalid") == 1


@pytest.mark.parametrize(
    ("flow", "status"),
    [("A.z_9-0", 200), ("x" * 128, 200), ("", 400), ("a b", 400), ("x" * 129, 400), ("a/b", 400)],
)
async def test_a_flow_is_1_to_128_letters_digits_dots_underscores_or_hyphens(flow, status):
    async with front(Engine("e", answer)) as f:
        response = await asked(f, x_argosy_flow=flow)
        assert response.status_code == status
        if status == 400:
            assert response.json()["error"]["param"] == "x-argosy-flow"


async def test_the_engine_is_told_the_priority_of_the_class_and_neither_class_nor_flow():
    seen = []

    async def behaviour(call: Call) -> None:
        seen.append(call.headers)
        await answer(call)

    async with front(Engine("e", behaviour), **CLASSES) as f:
        await asked(f, x_argosy_flow="tenant-1", x_argosy_priority="-9")
        await asked(f, x_argosy_class="batch")
    assert [headers.get("x-argosy-priority") for headers in seen] == [None, "7"]
    assert not any("flow" in json.dumps(headers) or "x-argosy-class" in headers for headers in seen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WITH_SLO, "--slo-class", "default:1:1:0"], "and not 'default'"),
        ([*WITH_SLO, "--slo-class", "a:1:1:0", "--slo-class", "a:1:1:0"], "a name of its own"),
        ([*WITH_SLO, "--slo-class", "a:1:1"], "a:1:1 is not NAME:TTFT_MS:TPOT_MS:PRIORITY"),
        ([*WITH_SLO, "--slo-class", "a:0:1:0"], "0 is not a positive number"),
        ([*ARGS, "--slo-class", "a:1:1:0"], "--slo-class needs --slo-ttft-ms"),
    ],
)
def test_a_class_that_is_not_whole_is_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        parse(words)
    assert message in capsys.readouterr().err
