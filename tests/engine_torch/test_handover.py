"""Prefill and decode apart give the text that one engine gives, over real sockets."""

import pytest

from local.weights.tiny import write_tiny
from tests.engine_torch.engines import engine

pytestmark = pytest.mark.torch
PROMPTS = ("hello world", "x", "The quick brown fox jumps over the lazy dog, again and again. " * 3)
RECEIVED = 'argosy_kv_transfer_seconds_count{side="receive"}'
FELL_BACK = "argosy_local_prefill_fallback_total"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """(prefill, decode, colocated) over one tiny model; all three start at once would be faster
    on more cores than tests may assume."""
    folder = tmp_path_factory.mktemp("fleet")
    model = write_tiny(folder / "tiny")
    with (
        engine(model, "prefill", folder / "p.log") as prefill,
        engine(model, "decode", folder / "d.log") as decode,
        engine(model, "colocated", folder / "c.log") as colocated,
    ):
        yield prefill, decode, colocated


def test_greedy_texts_of_64_tokens_are_equal_apart_and_together(fleet):
    prefill, decode, colocated = fleet
    before = decode.metric(RECEIVED)
    apart = [decode.complete(prompt, 64, prefill) for prompt in PROMPTS]
    assert apart == [colocated.complete(prompt, 64) for prompt in PROMPTS]
    assert decode.metric(RECEIVED) - before == len(PROMPTS)


def test_decode_computes_the_prompt_itself_when_no_prefill_engine_answers(fleet):
    from argosy_bench.ports import free_port
    from tests.engine_torch.engines import Engine

    _, decode, colocated = fleet
    before = decode.metric(FELL_BACK)
    absent = Engine(0, 0, free_port())
    assert decode.complete("no peer is there", 16, absent) == colocated.complete(
        "no peer is there", 16
    )
    assert decode.metric(FELL_BACK) == before + 1


def test_leases_are_gone_when_the_texts_are_whole(fleet):
    prefill, decode, _ = fleet
    decode.complete("leases end", 2, prefill)
    assert prefill.metric("argosy_kv_leases_active") == 0


def test_a_penalised_text_is_equal_apart_and_together(fleet):
    prefill, decode, colocated = fleet
    more = {"repetition_penalty": 1.3, "skip_special_tokens": False}
    apart = decode.complete("again and again", 32, prefill, **more)
    assert apart == colocated.complete("again and again", 32, **more)
    assert apart != colocated.complete("again and again", 32)
