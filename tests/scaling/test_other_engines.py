"""Metrics of vLLM and SGLang, in the names of our own engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.goals import Windows
from argosy_law.observe import Value
from argosy_law.signals import others, samples
from argosy_law.signals.samples import Round, Series, assemble

WINDOWS = Windows(scrape_s=5, rate_s=60, interval_s=5, down_hold_s=120)
PLACE = {"namespace": "n", "fleet": "f", "role": "colocated", "pod": "p-1"}
INFO = {"num_gpu_blocks": "364", "block_size": "128"}


def page(at, engine, **values):
    """One scrape: values by the names of `others`, in the metrics of an engine."""
    named = {
        "running": samples.RUNNING,
        "kv": samples.KV_CAPACITY,
        "steps": others.STEPS,
        "itl_s": others.SECONDS,
        "itl": others.SEQUENCES,
        "prompt_tokens": others.PREFILL_TOKENS,
        "prompts": others.PREFILLS,
        "cached": others.CACHED,
        "prefill_s": others.PREFILL_SECONDS,
        "waiting": others.WAITING,
    }
    found = {}
    for key, value in values.items():
        if named[key] in engine:
            labels = INFO if engine[named[key]] == "vllm:cache_config_info" else {}
            found[engine[named[key]], tuple(labels.items())] = (at, value)
    return found


def scraped(*pages):
    keys = {key for one in pages for key in one}
    return [
        Series(
            name, PLACE | dict(labels), tuple(p[name, labels] for p in pages if (name, labels) in p)
        )
        for name, labels in keys
    ]


def colocated(series):
    at = max(one.samples[-1][0] for one in series)
    metrics = assemble(Round(at, others.translated(series), 1, 1), WINDOWS)
    return metrics.role("colocated")


BEFORE = {
    "running": 2, "kv": 1, "steps": 1000, "itl_s": 40, "itl": 2000, "prompt_tokens": 5000,
    "prompts": 50, "cached": 1000, "prefill_s": 10, "waiting": 0,
}  # fmt: skip
AFTER = {
    "running": 3, "kv": 1, "steps": 1200, "itl_s": 48, "itl": 2400, "prompt_tokens": 5300,
    "prompts": 53, "cached": 1100, "prefill_s": 10.3, "waiting": 4,
}  # fmt: skip


def test_two_scrapes_of_vllm_are_a_row_of_steps():
    role = colocated(
        scraped(page(100, others.VLLM_SERIES, **BEFORE), page(105, others.VLLM_SERIES, **AFTER))
    )
    (row,) = role.steps
    # 200 steps of 8 s / 400 = 20 ms, and prompts of 0.3 s.
    assert row.seconds == pytest.approx(4.3)
    assert (row.steps, row.decode_sequences, row.prefill_requests) == (200, 400, 3)
    assert row.prefill_tokens == 200  # 300, of which 100 were cached
    # Prompts of 100 tokens, and half of answers of 2400 / 53.
    assert row.context_tokens == pytest.approx(400 * (100 + 2400 / 53 / 2))
    assert role.running == Value(3, 105)
    assert role.kv_capacity_tokens == Value(364 * 128, 105)
    assert role.outstanding_prompt_tokens == Value(400, 105)


def test_sglang_says_the_same_without_a_counter_of_steps():
    kv = {"kv": 50_000}
    role = colocated(
        scraped(
            page(100, others.SGLANG_SERIES, **BEFORE | kv),
            page(105, others.SGLANG_SERIES, **AFTER | kv),
        )
    )
    (row,) = role.steps
    assert row.steps == pytest.approx(400 / 3)
    assert row.seconds == pytest.approx(400 / 3 * 0.02 + 0.3)
    assert role.running == Value(3, 105)
    assert role.kv_capacity_tokens == Value(50_000, 105)


def test_a_restarted_vllm_counts_from_zero():
    new = {key: value / 100 for key, value in BEFORE.items()}
    role = colocated(
        scraped(page(100, others.VLLM_SERIES, **BEFORE), page(105, others.VLLM_SERIES, **new))
    )
    (row,) = role.steps
    assert (row.steps, row.decode_sequences) == (10, 20)


def test_a_vllm_without_one_of_the_counters_teaches_nothing_and_still_says_what_runs():
    part = [
        page(at, others.VLLM_SERIES, **{k: v for k, v in values.items() if k != "prefill_s"})
        for at, values in ((100, BEFORE), (105, AFTER))
    ]
    role = colocated(scraped(*part))
    assert role.steps == ()
    assert role.running == Value(3, 105)


numbers = st.floats(0, 1e6) | st.sampled_from([float("nan"), float("inf"), -1.0, 0.0])


@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(BEFORE, numbers)), min_size=1, max_size=4),
    st.sampled_from(others.ENGINES),
)
def test_whatever_an_engine_reports_its_row_is_plausible(values, engine):
    pages = [page(100 + 5 * i, engine, **one) for i, one in enumerate(values)]
    for one in others.translated(scraped(*pages)):
        if one.name in samples.STEP_COUNTERS:
            assert one.usable
            assert all(a[1] <= b[1] for a, b in zip(one.samples, one.samples[1:], strict=False))


def of_role(role, series):
    placed = [Series(s.name, {**s.labels, "role": role}, s.samples) for s in series]
    at = max(one.samples[-1][0] for one in placed)
    return assemble(Round(at, others.translated(placed), 1, 1), WINDOWS).role(role)


@pytest.mark.parametrize("engine", [others.VLLM_SERIES, others.SGLANG_SERIES])
def test_a_prefill_pod_has_the_steps_of_its_prompts_alone(engine):
    only = ("running", "kv", "steps", "prompt_tokens", "prompts", "cached", "prefill_s", "waiting")
    before, after = ({k: v for k, v in one.items() if k in only} for one in (BEFORE, AFTER))
    role = of_role("prefill", scraped(page(100, engine, **before), page(105, engine, **after)))
    (row,) = role.steps
    assert (row.prefill_tokens, row.prefill_requests, row.decode_sequences) == (200, 3, 0)
    assert row.seconds == pytest.approx(0.3)
    assert role.outstanding_prompt_tokens == Value(400, 105)


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_prompt_that_takes_longer_than_a_scrape_counts_whole(at_once):
    """vLLM counts a prompt's seconds when it is done. Those of one batch overlap."""
    pages = []
    for second in range(41):
        done = second // 13 * at_once
        pages.append(
            page(100 + second, others.VLLM_SERIES, running=at_once, kv=1, steps=second // 13,
                 prompt_tokens=300 * done, prompts=done, cached=0, prefill_s=13 * done, waiting=0)
        )  # fmt: skip
    (row,) = of_role("prefill", scraped(*pages)).steps
    assert (row.steps, row.prefill_tokens) == (1, 300 * at_once)
    assert 13 <= row.seconds <= 14


def test_seconds_of_prompts_are_not_read_of_a_decode_pod():
    broken = AFTER | {"prefill_s": 59_543, "waiting": 4}
    pages = page(100, others.VLLM_SERIES, **BEFORE), page(105, others.VLLM_SERIES, **broken)
    role = of_role("decode", scraped(*pages))
    (row,) = role.steps
    assert row.seconds == pytest.approx(4.0)
    assert (row.steps, row.decode_sequences) == (200, 400)
    assert role.outstanding_prompt_tokens == Value(0, 105)
