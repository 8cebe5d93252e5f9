"""A size follows from what engines and gateways count, and not from means that hide the tail."""

from dataclasses import replace
from itertools import product
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.goals import Serving, Windows
from argosy_law.observe import FleetMetrics, RoleMetrics, StepDelta
from argosy_law.signals import lengths, validity
from argosy_law.size import sizing
from argosy_law.size.pools import MOST_REPLICAS, decode_model, find_fewest, prefill_model
from argosy_law.size.work import BEYOND, EDGES, Replica, Work, mean_of, of_buckets
from argosy_law.state import Lengths
from argosy_operator.core.steps.goals import goals_of
from tests.scaling import known
from tests.support.model import fleet as a_fleet

LLAMA = Replica(28.8e-3, 0.1066e-3, 0.2825e-3, 9.4e-8)
WINDOWS = Windows()


def counted(sequences: float, context: float) -> FleetMetrics:
    """A round in which the steps of two decode pods had so many sequences and tokens of context."""
    row = StepDelta(known.START, 1.0, 20, decode_sequences=sequences, context_tokens=context)
    seen = known.metrics(known.START, 5.0, {"prefill": 1, "decode": 2})
    return replace(seen, roles=(RoleMetrics("decode", steps=(row, row)),))


def test_the_context_of_a_step_is_what_engines_count() -> None:
    """Half of the requests are 100 + 10 tokens, half 1,000 + 1,000. A step holds mostly the long
    ones: its mean context is (10 · 105 + 1,000 · 1,500)/1,010 = 1,486. Means of all requests give
    550 + 505/2 = 802."""
    context = (10 * 105 + 1000 * 1500) / 1010
    after = lengths.update_lengths(Lengths(), counted(1010, 1010 * context), WINDOWS)
    work = lengths.work(replace(after, prompt=550.0, output=505.0), counted(0, 0))
    assert work.context == pytest.approx(1486, abs=0.2)
    assert Work(550, 550**2, 505).context == 802.5
    limit = decode_model(LLAMA, work, 0.06).batch_limit
    assert limit == pytest.approx((0.06 - 28.8e-3) / (0.2825e-3 + 9.4e-8 * context))


# --- histograms -----------------------------------------------------------------------------------

BUCKETS = st.dictionaries(st.sampled_from((*EDGES, BEYOND)), st.floats(0.5, 1e4), min_size=1).map(
    lambda found: tuple(sorted(found.items()))
)


@given(buckets=BUCKETS, at=st.floats(0.0, 1.0))
def test_lengths_of_a_histogram_lie_in_its_buckets_with_their_shares(
    buckets: tuple[tuple[float, float], ...], at: float
) -> None:
    lower = {upper: max((e for e in EDGES if e < upper), default=0.0) for upper, _ in buckets}
    total = sum(count for _, count in buckets)
    least = sum(lower[upper] * count for upper, count in buckets) / total
    most = sum(upper * count for upper, count in buckets) / total
    spread = of_buckets(buckets, least + at * (most - least))
    for upper, count in buckets:
        inside = [share for tokens, share in spread if lower[upper] < tokens <= upper]
        assert sum(inside) == pytest.approx(count / total)
    assert least < mean_of(spread) < most + 1


@pytest.mark.parametrize("broken", [(50.0, nan), (50.0, inf), (50.0, -1.0), (0.0, 5.0), (inf, 5.0)])
def test_a_histogram_that_cannot_be_true_is_not_used(broken: tuple[float, float]) -> None:
    seen = replace(counted(10, 10), prompts=((10.0, 5.0), broken), answers=((10.0, 5.0),))
    checked = validity.validated(seen)
    assert (checked.prompts, checked.answers) == ((), ((10.0, 5.0),))


def test_a_histogram_keeps_a_thousand_requests_and_of_a_busy_fleet_a_window() -> None:
    few = kept = ((10.0, 30.0),)
    for _ in range(2000):
        kept = lengths.remember(kept, ((20.0, 60.0),), WINDOWS)
    assert lengths.count_requests(kept) == pytest.approx(lengths.ENOUGH)
    assert dict(kept).get(10.0, 0.0) < 1
    busy = kept
    for _ in range(200):
        busy = lengths.remember(busy, ((20.0, 60_000.0),), WINDOWS)
    assert lengths.count_requests(busy) == pytest.approx(60_000, rel=0.05)
    assert lengths.remember((), few, WINDOWS) == few
    assert lengths.remember(few, (), WINDOWS) == few


# --- what a request takes -------------------------------------------------------------------------


def test_a_prompt_pays_for_each_chunk_and_shares_its_steps_while_others_wait() -> None:
    replica = Replica(0.01, 0.001, 0.0, 0.0, per_prompt_token_squared_s=1e-6, step_tokens=100)
    assert [replica.prefill_s(n) for n in (1, 100, 101)] == [
        pytest.approx(0.011001),
        pytest.approx(0.01 + 0.1 + 0.01),
        pytest.approx(0.02 + 0.101 + 0.010201),
    ]
    assert replica.shared_s(25) == pytest.approx(0.0025 + 0.025 + 0.000625)
    assert Replica(0.01, 0.001, 0.0, 0.0).shared_s(25) == pytest.approx(0.035)


def test_a_short_answer_pays_for_the_steps_that_pass_during_the_transfer() -> None:
    """Steps take 31 ms at least. Two tokens have 60 ms for one of them, so that one which passes
    is too many: 9 of 60 ms. Three tokens have 120 ms for two of them, and another fits."""
    replica = Replica(0.031, 0.0, 1e-6, 0.0)
    two, three, slow = (
        decode_model(replica, Work(100, 100**2, n, answers=((n, 1.0),)), 0.06, pause_s)
        for n, pause_s in ((2.0, 0.009), (3.0, 0.009), (3.0, 0.069))
    )
    assert two.reachable == pytest.approx(1 - 9 / 60)
    assert three.reachable == 1.0
    assert slow.reachable == pytest.approx(1 - 9 / 60), (
        "one step always passes, a second one rarely"
    )
    alone = decode_model(replica, Work(100, 100**2, 2.0, answers=((2.0, 1.0),)), 0.06)
    assert alone.reachable == 1.0  # a colocated sequence does not move


def test_the_order_and_the_limits_of_a_fleet_are_those_of_its_spec() -> None:
    spec = a_fleet(slo={"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}).spec
    assert goals_of(spec).serving == Serving("deadline", 2048, 256)
    engine = spec.engine.model_copy(update={"max_num_seqs": 8, "max_num_batched_tokens": 512})
    routing = spec.routing.model_copy(update={"queue": "none"})
    asked = spec.model_copy(update={"engine": engine, "routing": routing})
    assert goals_of(asked).serving == Serving("fifo", 512, 8)
    engine = spec.engine.model_copy(update={"max_num_batched_tokens": "auto"})
    asked = spec.model_copy(update={"engine": engine})
    assert goals_of(asked).serving == Serving("deadline", 2048, 256, auto_steps=True)
    assert goals_of(spec.model_copy(update={"slo": None})).serving.order == "fifo"


@pytest.mark.parametrize(
    ("uri", "gpu", "auto"),
    [
        pytest.param("sim://llama-70b-h100-tp4", 0, False, id="simulated"),
        pytest.param("pvc://models/m", 1, False, id="on a GPU"),
        pytest.param("pvc://models/m", 0, True, id="on CPUs"),
    ],
)
def test_the_engines_of_a_fleet_on_cpus_size_their_steps_unless_told(uri, gpu, auto) -> None:
    role = {"resources": {"gpu": gpu}}
    spec = a_fleet(model={"uri": uri}, roles={"colocated": role}).spec
    serving = goals_of(spec).serving
    assert (serving.step_tokens, serving.auto_steps) == (2048, auto)
    engine = spec.engine.model_copy(update={"max_num_batched_tokens": 512})
    told = goals_of(spec.model_copy(update={"engine": engine})).serving
    assert (told.step_tokens, told.auto_steps) == (512, False)


# --- both limits together -------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 3.0, 9.0, 30.0])
@pytest.mark.parametrize("costs", [(1, 1), (4, 1), (1, 3), (8, 1), (1, 8), (1.0, 2.75), (4.4, 2)])
@pytest.mark.parametrize("order", ["fifo", "deadline"])
def test_no_other_fleet_meets_the_goal_at_a_lower_cost(
    rate: float, costs: tuple[float, float], order: str
) -> None:
    work = Work(1200, 2 * 1200**2, 200, answers=((2.0, 0.1), (50.0, 0.5), (349.0, 0.4)))
    prefill = prefill_model(LLAMA, work, 0.6, "deadline" if order == "deadline" else "fifo")
    decode = decode_model(LLAMA, work, 0.05, 0.005)
    pools = (sizing.Demanded(prefill, rate, costs[0]), sizing.Demanded(decode, rate, costs[1]))
    found = sizing.fewest(pools, 0.9)

    counts = range(1, 61)
    ttft = [prefill.attainment(n, rate) for n in counts]
    tpot = [decode.attainment(n, rate) for n in counts]
    cheapest = min(
        p * costs[0] + d * costs[1]
        for (p, met), (d, kept) in product(
            zip(counts, ttft, strict=True), zip(counts, tpot, strict=True)
        )
        if met * kept >= 0.9
    )
    assert ttft[found[0] - 1] * tpot[found[1] - 1] >= 0.9
    assert found[0] * costs[0] + found[1] * costs[1] == pytest.approx(cheapest)


def test_both_pools_together_meet_the_goal_and_not_only_each() -> None:
    """Each at 0.9 is 0.81 of the requests."""
    work = Work(1200, 2 * 1200**2, 200)
    prefill = prefill_model(LLAMA, work, 0.6)
    decode = decode_model(LLAMA, work, 0.04)
    pools = (sizing.Demanded(prefill, 60.0, 1), sizing.Demanded(decode, 60.0, 1))
    p, d = sizing.fewest(pools, 0.9)
    alone = [sizing.fewest((pool,), 0.9)[0] for pool in pools]
    assert prefill.attainment(alone[0], 60.0) * decode.attainment(alone[1], 60.0) < 0.9
    assert prefill.attainment(p, 60.0) * decode.attainment(d, 60.0) >= 0.9


# --- where a search begins ------------------------------------------------------------------------


@given(needed=st.integers(1, MOST_REPLICAS), near=st.integers(-1, 2 * MOST_REPLICAS))
def test_a_search_finds_the_same_from_anywhere_and_asks_twice_from_the_right_number(
    needed: int, near: int
) -> None:
    asked: list[int] = []

    def meets(replicas: int) -> bool:
        asked.append(replicas)
        return replicas >= needed

    assert find_fewest(meets, near) == needed
    assert len(asked) <= 2 * (abs(near - needed) + 1).bit_length() + 2
    asked.clear()
    find_fewest(meets, needed)
    assert len(asked) <= 2
    assert find_fewest(lambda replicas: False, near) == MOST_REPLICAS


@given(
    rate=st.floats(0.1, 200.0),
    goal=st.floats(0.5, 0.99),
    ttft_s=st.floats(0.1, 3.0),
    tpot_s=st.floats(0.02, 0.2),
    near=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_what_a_fleet_needs_does_not_depend_on_what_it_has(
    rate: float, goal: float, ttft_s: float, tpot_s: float, near: tuple[int, int]
) -> None:
    work = Work(1200, 2 * 1200**2, 200, answers=((2.0, 0.1), (50.0, 0.5), (349.0, 0.4)))
    models = (prefill_model(LLAMA, work, ttft_s), decode_model(LLAMA, work, tpot_s, 0.005))
    here, there = (
        sizing.fewest(
            tuple(sizing.Demanded(model, rate, 1, n) for model, n in zip(models, at, strict=True)),
            goal,
        )
        for at in ((0, 0), near)
    )
    assert here == there
