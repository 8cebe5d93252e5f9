"""What vLLM's prefix cache does, case by case: T16 to T22. A block holds 4 tokens."""

from dataclasses import replace

import pytest

from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import MaxUtilization
from tests.engine.core.test_scheduler import ask, make, step

HEAD = [101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112]


def cache(blocks=10, **more):
    return make(blocks=blocks, size=4, policy=MaxUtilization(), **more)


def finish(scheduler, name, prompt, **more):
    """Compute a prompt to its one token and let go of it."""
    sequence = scheduler.add(ask(name, prompt, max_tokens=1, **more))
    while scheduler.sequences:
        step(scheduler)
    return sequence


def test_t16_the_first_request_has_blocks_1_to_4_and_the_second_shares_its_head():
    scheduler = cache()
    first = scheduler.add(ask("a", [*HEAD, 1, 2], max_tokens=9))
    step(scheduler)
    second = scheduler.add(ask("b", [*HEAD, 7, 8], max_tokens=9))
    step(scheduler)
    assert list(first.blocks) == [1, 2, 3, 4]
    assert list(second.blocks) == [1, 2, 3, 5]
    assert [scheduler.pool.refs(block) for block in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]


def test_t16_what_nobody_shares_is_given_away_first():
    scheduler = cache(blocks=6)
    for name, tail in (("a", 1), ("b", 7)):
        scheduler.add(ask(name, [*HEAD, tail], max_tokens=9))
        step(scheduler)
    scheduler.abort("a")
    scheduler.abort("b")
    pool = scheduler.pool
    assert (pool.free, pool.cached, pool.used) == (3, 3, 0)
    assert pool.allocate(6) == [5, 4, 6, 3, 2, 1]  # tails, never used, the head from its end


def test_t17_the_prefix_that_was_used_longest_ago_goes_first():
    scheduler = cache(blocks=9)
    texts = {name: [start + i for i in range(13)] for name, start in (("a", 100), ("b", 200))}
    for name, text in texts.items():
        finish(scheduler, name, text)
    finish(scheduler, "a again", texts["a"])
    finish(scheduler, "c", list(range(300, 316)))  # 4 blocks: 3 are free, b's tail is the oldest
    hits = {name: len(scheduler.blocks.prefix_hits(of(text))) for name, text in texts.items()}
    assert hits == {"a": 3, "b": 2}


def of(text, **more):
    scheduler = make()
    return scheduler.add(ask("probe", text, **more))


@pytest.mark.parametrize("length", [4, 8, 12])
def test_t18_of_a_prompt_that_is_cached_whole_its_last_block_is_computed(length):
    scheduler = cache()
    finish(scheduler, "a", HEAD[:length])
    again = finish(scheduler, "b", HEAD[:length])
    assert again.cached_tokens == length - 4


def test_t19_a_salt_separates_equal_prompts_and_is_no_part_of_the_text():
    scheduler = cache(blocks=40)
    cached = {}
    for name, salt in (("a", ""), ("b", "s"), ("c", "t"), ("d", "s"), ("e", "")):
        cached[name] = finish(scheduler, name, [*HEAD, 1], cache_salt=salt).cached_tokens
    assert cached == {"a": 0, "b": 0, "c": 0, "d": 12, "e": 12}


def test_t19_equal_prompts_with_other_salts_do_not_wait_for_each_other():
    scheduler = cache(blocks=40)
    for name, salt in (("a", "s"), ("b", "t"), ("c", "s")):
        scheduler.add(ask(name, [*HEAD, 1], max_tokens=1, cache_salt=salt))
    scheduled, _ = step(scheduler)
    assert [chunk.request_id for chunk in scheduled.plan.chunks] == ["a", "b"]


@pytest.mark.parametrize(("known", "hits"), [(3, 0), (4, 1), (7, 1), (8, 2), (11, 2)])
def test_t20_a_block_that_is_not_full_is_never_a_hit(known, hits):
    scheduler = cache()
    finish(scheduler, "a", HEAD[:known])
    assert len(scheduler.blocks.prefix_hits(of([*HEAD, 1]))) == hits


def test_t21_the_cache_is_reset_only_when_nothing_runs():
    scheduler = cache()
    finish(scheduler, "a", [*HEAD, 1])
    scheduler.add(ask("b", [*HEAD, 2], max_tokens=3))
    step(scheduler)
    assert not scheduler.pool.reset()
    assert scheduler.pool.cached + scheduler.pool.used == 4
    while scheduler.sequences:
        step(scheduler)
    assert scheduler.pool.reset()
    pool = scheduler.pool
    assert (pool.free, pool.cached, pool.used) == (10, 0, 0)
    assert finish(scheduler, "c", [*HEAD, 3]).cached_tokens == 0


def test_t21_a_reset_frees_the_blocks_of_the_cache():
    pool = BlockPool(num_blocks=3, block_size=4)
    blocks = pool.allocate(2)
    for block in blocks:
        pool.commit(block, b"%d" % block)
    pool.release(blocks)
    assert pool.reset()
    assert sorted(pool.allocate(3)) == [1, 2, 3]


@pytest.mark.parametrize("ends", ["abort", "fail_step"])
@pytest.mark.parametrize(("steps", "hits"), [(0, 0), (1, 1), (2, 2)])
def test_t22_a_prompt_that_is_left_half_computed_leaves_its_full_blocks(steps, hits, ends):
    scheduler = cache()
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=4)
    scheduler.add(ask("a", [*HEAD, 1]))
    for _ in range(steps):
        step(scheduler)
    if ends == "abort":
        scheduler.abort("a")
    else:
        scheduler.schedule(0.0)  # planned, and never computed
        scheduler.fail_step("the runner raised")
    assert scheduler.pool.used == 0
    assert len(scheduler.blocks.prefix_hits(of([*HEAD, 1]))) == hits
