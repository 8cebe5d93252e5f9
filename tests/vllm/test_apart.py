"""vLLM with prefill and decode apart, for real: what moves, and what a failure costs a client.

Two pods of vLLM's CPU build run on a one-machine Kubernetes. A pod hangs as vLLM's do: what
computes is stopped, and the server answers probes. Between the phases means: decode hangs, so the
request with the parameters waits there.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from argosy_bench.cluster.vllm import NAME, running
from argosy_bench.cluster.vllm_apart import APART, COMPUTED, MOVED, READ_LATE
from tests.vllm.fleet import START_S, TOKENS, Fleet

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1200)]

PEER = Path(__file__).parents[2] / ".venv-peer"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
STORY = "The sailor looked at the wide sea and said nothing to the others. "


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    if not (PEER / ".ready").exists():
        pytest.fail("vLLM's CPU build is not installed: make .venv-peer/.ready")
    with running(PEER, **APART) as (kube, url):
        yield Fleet(kube, url)


def prompt_of(title: str) -> str:
    """A prompt that no other test has, of more than one block."""
    return f"{title}. " + 12 * STORY


def await_phase_1(fleet: Fleet, since: dict[str, float]) -> None:
    name = "vllm:request_success_total"
    fleet.until("prefill computed", lambda: fleet.grown("prefill", name, since))


def test_the_kv_moves_and_the_text_is_that_of_decode_alone(fleet: Fleet):
    prompt = prompt_of("Moved")
    before = fleet.counters("decode")
    text = fleet.ask(prompt)
    assert fleet.grown("decode", COMPUTED, before) == 0
    assert fleet.grown("decode", MOVED, before) > 12 * len(STORY.split())
    assert text == fleet.ask_decode_alone(prompt)


def test_a_client_that_leaves_while_its_prompt_is_computed_holds_no_kv(fleet: Fleet):
    before = fleet.counters("prefill")
    body = {"model": NAME, "prompt": prompt_of("Left"), "max_tokens": TOKENS}
    with fleet.stopped("prefill"), pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=5)
    fleet.until("no KV", lambda: fleet.counters("prefill")["vllm:kv_cache_usage_perc"] == 0)
    assert fleet.grown("prefill", EXPIRED, before) == 0


def test_a_prefill_pod_that_hangs_between_the_phases_delays_an_answer(fleet: Fleet):
    prompt = prompt_of("Hung")
    before, computed = fleet.counters("prefill"), fleet.counters("decode")
    with fleet.stopped("decode"):
        answer = fleet.begin(prompt)
        await_phase_1(fleet, before)
        fleet.stop("prefill")
    try:
        text = answer.result()
    finally:
        fleet.go_on("prefill")
    assert fleet.grown("decode", COMPUTED, computed) > 0
    assert text == fleet.ask_decode_alone(prompt)


def test_kv_that_decode_would_read_after_its_lease_is_not_used(fleet: Fleet):
    prompt = prompt_of("Late")
    before = fleet.counters("prefill")
    with fleet.stopped("decode"):
        answer = fleet.begin(prompt)
        await_phase_1(fleet, before)
        fleet.until("its lease is over", lambda: fleet.grown("prefill", EXPIRED, before))
    text = answer.result()
    assert fleet.grown("prefill", READ_LATE, before) == 0
    assert text == fleet.ask_decode_alone(prompt)


def test_a_prefill_pod_that_is_killed_between_the_phases_loses_no_request(fleet: Fleet):
    prompt = prompt_of("Killed")
    before = fleet.counters("prefill")
    with fleet.stopped("decode"):
        answer = fleet.begin(prompt)
        await_phase_1(fleet, before)
        fleet.kill("prefill")
    assert answer.result() == fleet.ask_decode_alone(prompt)
    # It starts again at the same address, with another engine id.
    fleet.until("not Ready", lambda: not fleet.is_whole())
    assert fleet.ask(prompt_of("Absent")) == fleet.ask_decode_alone(prompt_of("Absent"))
    fleet.until("Ready again", fleet.is_whole, START_S)
    moved = fleet.counters("decode")
    fleet.until("led again", lambda: fleet.ask(prompt_of(f"Back at {time.time()}")))
    assert fleet.grown("decode", MOVED, moved) > 0
