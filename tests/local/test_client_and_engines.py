"""The demo's client in front of the real gateway and real simulated engines."""

import httpx
import pytest

from argosy_gateway.config import Slo
from local.demo.traffic.client import ask
from local.demo.traffic.plan import Due
from local.demo.traffic.score import Limits, met
from tests.engine.processes import sim_engines
from tests.gateway.engines import endpoint_of, front

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engines():
    with sim_engines("prefill", "decode") as started:
        yield started


async def asked(pods):
    due = Due(at_s=0.0, phase=0, prompt_tokens=150, output_tokens=30)
    async with front(slo=Slo(ttft_s=5.0, tpot_s=5.0)) as f:
        f.state.directory.replace([endpoint_of(pod) for pod in pods])
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as web:
            return await ask(web, f.url, "m", 1, due, 0.0)


async def test_an_answer_of_the_product_is_whole_and_names_both_pods(engines):
    prefill, decode = engines
    record = await asked(engines)
    assert (record.outcome, record.problem, record.tokens) == ("ok", "", 30)
    assert (record.prefill_pod, record.decode_pod) == (prefill.name, decode.name)
    assert met(record, Limits(ttft_s=30.0, tpot_s=1.0))


async def test_an_answer_that_a_decode_pod_computed_alone_names_no_prefill_pod(engines):
    _, decode = engines
    record = await asked([decode])
    assert (record.outcome, record.prefill_pod) == ("ok", "")
    assert record.decode_pod == decode.name
