"""Shapes that the studies of Dynamic-Sonnet and of the two limits have for every seed."""

from dataclasses import replace

import pytest

from argosy_measure.reproduce import grid, sonnet
from argosy_measure.reproduce.items import ITEMS
from argosy_measure.reproduce.sonnet import ENGINES, SUBSETS, Load, draw, serve

SEEDS = pytest.mark.parametrize("seed", range(3))


@SEEDS
@pytest.mark.parametrize("name", SUBSETS)
def test_prompts_have_the_texts_mean_and_none_is_longer_than_its_longest(
    name: str, seed: int
) -> None:
    of, prompts = SUBSETS[name], [one.prompt for one in draw(Load(subset=name, seed=seed))]
    assert sum(prompts) / len(prompts) == pytest.approx(of.mean, rel=0.02)
    assert 0.95 * of.longest <= max(prompts) <= of.longest


@SEEDS
def test_answers_end_within_what_is_allowed_and_most_long_before(seed: int) -> None:
    drawn = draw(Load(subset="1k", seed=seed))
    assert all(1 <= one.output <= one.most for one in drawn)
    assert sum(one.output for one in drawn) / len(drawn) == pytest.approx(sonnet.ANSWER, rel=0.1)


@SEEDS
def test_a_twin_has_the_same_tokens_and_one_length(seed: int) -> None:
    dynamic = Load(subset="4k", seed=seed)
    prompts, answers, fixed = (
        draw(replace(dynamic, lengths=lengths)) for lengths in ("prompts", "answers", "fixed")
    )
    assert len(set(fixed)) == 1
    assert len({one.output for one in prompts}) == len({one.prompt for one in answers}) == 1
    assert sonnet.twins(seed)["twin_tokens"] == pytest.approx(1, rel=0.01)


def test_policies_differ_on_dynamic_lengths_and_are_the_same_on_fixed_ones() -> None:
    found = sonnet.policies_differ(0, count=400)
    assert found["policies_on_fixed"] == pytest.approx(1)
    assert found["policies_on_dynamic"] > 1


@SEEDS
def test_with_a_larger_max_tokens_the_policy_that_reserves_it_falls_behind(seed: int) -> None:
    found = sonnet.allowances(seed, count=150)
    assert found["policies_batch_at_4k"] > found["policies_batch_at_1k"] >= 1


@SEEDS
def test_dynamic_lengths_lower_the_batch_and_answers_do_it_more_than_prompts(seed: int) -> None:
    assert sonnet.batches(seed, count=100)["1k_vllm_fixed_batch"] > 1
    assert sonnet.varying(seed, count=100)["varying_prompts_over_varying_answers"] > 1


def test_a_policy_that_reserves_preempts_nothing_and_the_other_one_does() -> None:
    load = Load(subset="8k", seed=0, lengths="prompts", answer=1024, count=80)
    assert serve(ENGINES["trt"], load).preemptions == 0
    assert serve(ENGINES["max"], load).preemptions > 0


def test_few_sequences_in_a_step_are_a_bottleneck_and_do_not_change_latency() -> None:
    found = grid.sequences(0, count=100)
    assert found["throughput_of_512_over_64_sequences"] > 1.1
    assert found["itl_of_512_over_64_sequences"] == pytest.approx(1)


def test_every_study_has_figures_of_its_own_or_the_same_ones() -> None:
    """A figure of two items is one figure: both come from the same run."""
    assert len(ITEMS) == len({item.study for item in ITEMS.values()})
