"""Advice on the mode: sized by the law's own models, given after a day, and steady."""

from dataclasses import replace
from math import inf

import pytest

from argosy_operator.api.v1alpha1 import Mode, RoleName
from argosy_operator.core.scaling.advice.modes import (
    DAY_S,
    ENOUGH_SLOTS,
    SLOT_S,
    Modes,
    Need,
    in_words,
    need_of,
    with_need,
)
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.goals import SLO, Inputs
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.signals import lengths
from argosy_operator.core.scaling.size.model import Limits, Model, model_of
from argosy_operator.core.scaling.state import ScalingState
from tests.scaling import known
from tests.scaling.known import LLAMA, START, times

APART: dict[RoleName, int] = {"prefill": 6, "decode": 6}
TOGETHER: dict[RoleName, int] = {"colocated": 8}


def needed(
    slo: SLO, rate: float, *, have: known.Have = APART, gpus: int = 1, ticks: int = 20,
    **signals: float,
) -> Need | None:  # fmt: skip
    """What both modes need at this rate, after so many rounds of it."""
    state, inputs = taught(slo, rate, have, ticks, **signals)
    supply = tuple(replace(one, gpus_per_replica=gpus) for one in known.supply(have))
    return need_of(state, replace(inputs, observations=Observations(inputs.metrics, supply)), rate)


def taught(
    slo: SLO, rate: float, have: known.Have, ticks: int = 20, **signals: float
) -> tuple[ScalingState, Inputs]:
    """The law's state after so many rounds at this rate, and what the last one saw."""
    law, state = known.goals(slo, roles=tuple(have)), ScalingState()
    for now in times(ticks):
        metrics = known.metrics(now, rate, have, **signals)
        state, _ = known.play(law, [(metrics, have)], state)
    return state, Inputs(Observations(metrics, known.supply(have)), law, slo, now)


def least(models: tuple[Model, ...], rate: float, goal: float) -> int:
    """The fewest replicas by trying all."""
    tried = range(1, 60)
    if len(models) == 1:
        return next(n for n in tried if models[0].attainment(n, rate) >= goal)
    shares = [[model.attainment(n, rate) for n in tried] for model in models]
    met = (p + d for p in tried for d in tried if shares[0][p - 1] * shares[1][d - 1] >= goal)
    return min(met)


@pytest.mark.parametrize("slo", [SLO(1.0, 0.04), SLO(0.4, 0.1), SLO(3.0, 0.033)])
@pytest.mark.parametrize("rate", [3.0, 20.0])
@pytest.mark.parametrize("have", [APART, TOGETHER], ids=["apart", "together"])
def test_both_modes_are_sized_as_trying_all_numbers_of_replicas_would(
    slo: SLO, rate: float, have: known.Have
) -> None:
    """With the constants that were learnt: a colocated step takes the longer of two bases."""
    found, inputs = needed(slo, rate, have=have), taught(slo, rate, have)[1]
    state = taught(slo, rate, have)[0]
    assert found is not None
    learnt = [capacity.replica(r.estimate, LLAMA.kv_tokens) for r in state.roles]
    one, other = learnt[0], learnt[-1]
    base_s = max(one.base_s, other.base_s)
    both = replace(other, base_s=base_s, per_prompt_token_s=one.per_prompt_token_s)
    work = lengths.work(state.lengths, inputs.metrics)
    limits = Limits(slo.ttft_s, slo.tpot_s, slo.attainment)
    apart = (model_of("prefill", one, work, limits), model_of("decode", other, work, limits))
    assert found.disaggregated == least(apart, rate, 0.9)
    assert found.colocated == least((model_of("colocated", both, work, limits),), rate, 0.9)


def test_gpus_of_a_replica_count() -> None:
    one, four = needed(SLO(1.0, 0.04), 10.0), needed(SLO(1.0, 0.04), 10.0, gpus=4)
    assert one is not None
    assert four == Need(4 * one.colocated, 4 * one.disaggregated)


def test_a_tight_tpot_speaks_more_for_prefill_and_decode_apart_than_a_loose_one() -> None:
    """As DistServe (2024) and TaiChi (2025) find."""
    tight, loose = needed(SLO(2.0, 0.033), 20.0), needed(SLO(2.0, 0.2), 20.0)
    assert tight is not None
    assert loose is not None
    assert tight.disaggregated <= 0.85 * tight.colocated
    assert loose.disaggregated / loose.colocated > tight.disaggregated / tight.colocated


def test_memory_that_nine_sequences_fill_costs_replicas_of_both_modes() -> None:
    roomy = needed(SLO(1.0, 0.04), 20.0)
    full = needed(SLO(1.0, 0.04), 20.0, kv_capacity_tokens=10_000.0)
    assert roomy is not None
    assert full is not None
    assert full.colocated > roomy.colocated
    assert full.disaggregated > roomy.disaggregated


def test_small_fleets_are_smaller_in_one_pool() -> None:
    found = needed(SLO(2.0, 0.1), 0.2)
    assert found == Need(1.0, 2.0)


def test_a_mode_that_cannot_meet_the_slo_needs_infinitely_many() -> None:
    found = needed(SLO(0.01, 0.1), 5.0)
    assert found == Need(inf, inf)


def test_nothing_is_said_on_guesses_without_load_or_where_replicas_differ() -> None:
    assert needed(SLO(1.0, 0.04), 10.0, ticks=3) is None
    assert needed(SLO(1.0, 0.04), 10.0, gpus=0) is None
    law, have = known.goals(), APART
    state, _ = known.play(law, [(known.metrics(t, 10.0, have), have) for t in times(20)])
    seen = known.metrics(times(20)[-1], 10.0, have)
    for gpus, rate in (((1, 1), 0.0), ((1, 2), 10.0)):
        supply = tuple(
            replace(one, gpus_per_replica=n)
            for one, n in zip(known.supply(have), gpus, strict=True)
        )
        inputs = Inputs(Observations(seen, supply), law, known.USUAL, seen.at)
        assert need_of(state, inputs, rate) is None


def day(need: Need, slots: int = 96, modes: Modes | None = None, own: Mode = "colocated") -> Modes:
    modes = modes or Modes()
    begin = START if modes.at is None else modes.at + SLOT_S
    for n in range(slots):
        modes = with_need(modes, need, own, begin + n * SLOT_S)
    return modes


def test_a_mode_is_advised_after_a_day_in_which_it_would_have_saved_fifteen_percent() -> None:
    assert day(Need(100, 85), ENOUGH_SLOTS - 1).advised is None
    assert day(Need(100, 85), ENOUGH_SLOTS).advised == "disaggregated"
    assert day(Need(100, 86)).advised is None
    assert day(Need(85, 100)).advised is None, "the fleet's own mode"
    assert day(Need(85, 100), own="disaggregated").advised == "colocated"


def test_advice_stays_until_less_than_ten_percent_would_be_saved() -> None:
    modes = day(Need(100, 80))
    assert day(Need(100, 90), 96, modes).advised == "disaggregated"
    assert day(Need(100, 91), 96, modes).advised is None
    again = day(Need(100, 91), 96, modes)
    assert day(Need(100, 88), 96, again).advised is None


def test_advice_ends_with_a_change_of_the_mode() -> None:
    modes = day(Need(100, 80))
    assert with_need(modes, None, "disaggregated", (modes.at or 0) + 60).advised is None


def test_the_largest_need_of_a_quarter_of_an_hour_and_the_95th_percentile_count() -> None:
    modes = Modes()
    for need in (Need(3, 9), Need(5, 7), Need(4, 8)):
        modes = with_need(modes, need, "colocated", START)
    assert [need for _, need in modes.slots] == [Need(5, 9)]
    modes = day(Need(10, 20), 95)
    assert day(Need(90, 90), 1, modes).usual == Need(10, 20)
    modes = day(Need(90, 90), 5, day(Need(10, 20), 91))
    assert modes.usual == Need(90, 90)


def test_a_larger_need_leaves_the_slots_before_its_own() -> None:
    modes = day(Need(1, 2), 2)
    later = with_need(modes, Need(3, 4), "colocated", (modes.at or 0) + 60)
    assert [need for _, need in later.slots] == [Need(1, 2), Need(3, 4)]


def test_of_a_few_slots_the_largest_counts() -> None:
    modes = Modes()
    for n in range(5):
        modes = with_need(modes, Need(10 + n, 20 - n), "colocated", START + n * SLOT_S)
        assert modes.usual == Need(10 + n, 20)


def test_what_is_older_than_a_day_is_forgotten() -> None:
    modes = day(Need(100, 80))
    assert len(modes.slots) == 96
    assert modes.hours == 24
    later = with_need(modes, None, "colocated", (modes.at or 0) + DAY_S)
    assert later.slots == ()
    assert later.usual is None
    assert later.advised is None


def test_a_mode_that_alone_meets_the_slo_is_advised_whatever_it_needs() -> None:
    assert day(Need(inf, 80)).advised == "disaggregated"
    assert day(Need(80, inf)).advised is None
    assert day(Need(inf, inf)).advised is None


def test_the_sentences_say_the_figures_and_that_nothing_is_changed() -> None:
    assert in_words(Modes(), "colocated") is None
    assert in_words(day(Need(16, 12)), "colocated") == (
        "spec.mode disaggregated would need fewer GPUs for the same SLO: colocated 16 GPUs, "
        "disaggregated 12 GPUs, at the 95th percentile of 24 h. Nothing is changed: set spec.mode "
        "to follow it"
    )
    assert in_words(day(Need(16, 12), 8), "colocated") == (
        "colocated 16 GPUs, disaggregated 12 GPUs, at the 95th percentile of 2 h; a mode is "
        "advised after a day"
    )
    assert in_words(day(Need(16, inf)), "colocated") == (
        "spec.mode colocated stays the choice: colocated 16 GPUs, disaggregated cannot meet the "
        "SLO, at the 95th percentile of 24 h"
    )


@pytest.mark.parametrize(
    ("slots", "span"), [(1, "15 min"), (3, "45 min"), (4, "1 h"), (120, "24 h")]
)
def test_the_sentence_counts_minutes_in_the_first_hour(slots, span) -> None:
    assert f"at the 95th percentile of {span}" in (
        in_words(day(Need(9, 9), slots), "colocated") or ""
    )
