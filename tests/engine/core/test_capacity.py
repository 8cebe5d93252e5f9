"""How many requests share a step at the default options; what is said when that was too many."""

import logging

from argosy_engine.cli import parse
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.request import NewRequest
from argosy_engine.runtime.sim import load
from argosy_engine.server.openai.request import parse_chat
from argosy_engine.server.serve import _scheduler
from tests.kv.nodes import BLOCK, node, until

EOS = 2
WORDS, ANSWER = 60, 100


def chats(count, tokenizer, max_model_len):
    """Chats whose clients name no max_tokens."""
    for index in range(count):
        text = " ".join(f"{index}-{word}" for word in range(WORDS))
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        parsed = parse_chat(body, tokenizer, served_name="m", max_model_len=max_model_len)
        yield NewRequest(
            request_id=f"r{index}",
            token_ids=parsed.token_ids,
            sampling=parsed.sampling,
            arrival_s=0.0,
        )


def serve(preset, pool_tokens, count):
    """(mean batch of decode steps, preemptions) of an engine at its default options."""
    words = [
        "--model",
        f"sim:{preset}",
        "--served-name",
        "m",
        "--kv-cache-tokens",
        f"{pool_tokens}",
    ]
    config = parse(words)
    runner, tokenizer = load(config)
    runner._sleep = lambda _: None
    scheduler = _scheduler(config, runner)
    for request in chats(count, tokenizer, scheduler.max_model_len):
        scheduler.add(request)
    chunks = steps = preempted = 0
    while scheduler.sequences:
        scheduled = scheduler.schedule(0.0)
        preempted += len(scheduled.preempted)
        out = runner.execute(scheduled.plan)
        drawn = [chunk for chunk in scheduled.plan.chunks if chunk.samples]
        for index, chunk in enumerate(drawn):
            if len(chunk.tokens) >= WORDS + ANSWER:  # the model ends its answer
                out.token_ids[index] = EOS
        scheduler.update(scheduled.plan, out, 0.0)
        if scheduled.plan.kind == "decode":
            chunks, steps = chunks + len(scheduled.plan.chunks), steps + 1
    return chunks / steps, preempted


def test_chats_without_max_tokens_share_a_pool_of_one_context_without_preemption():
    mean_batch, preempted = serve("llama-70b-h100-tp4", 8192, 32)
    assert mean_batch > 30
    assert preempted == 0


def test_chats_without_max_tokens_fill_the_batch_of_the_70b_preset():
    mean_batch, preempted = serve("llama-70b-h100-tp4", 480_000, 256)
    assert mean_batch > 240
    assert preempted == 0


async def test_each_preemption_writes_a_line_with_the_requests_id_and_the_reason(caplog):
    caplog.set_level(logging.INFO)
    with node("colocated", kv_cache_tokens=10 * BLOCK) as engine:
        engine.scheduler.policy = MaxUtilization()
        computing, go_on = engine.hold_steps()
        first = engine.ask([5] * 3 * BLOCK, name="first", max_tokens=4 * BLOCK)
        await until(computing.is_set)
        second = engine.ask([6] * 3 * BLOCK, name="second", max_tokens=4 * BLOCK)
        go_on.set()
        await until(lambda: first.end and second.end, within_s=60)
        preemptions = engine.metric("argosy_preemptions_total", mode="recompute")
    assert (len(first.ids), len(second.ids)) == (4 * BLOCK, 4 * BLOCK)
    records = [record for record in caplog.records if "preempted" in record.message]
    lines = [record.getMessage() for record in records]
    assert records[0].request_id == "second"
    assert len(lines) == preemptions >= 1
    assert "second" in lines[0]
    assert "no KV block is free" in lines[0]
