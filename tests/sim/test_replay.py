"""The law that runs on a trace is the operator's, and sees it as the operator would."""

from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal
from argosy_law.observe import Observations
from argosy_law.sim.figures import attainment
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import EPOCH, replay
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import Asks, ColdStart, Replica, Setup
from argosy_law.state import ScalingState
from tests.sim.fleets import poisson

REPLICA = Replica.preset("llama-70b-h100-tp4")
SETUP = Setup(REPLICA, ttft_s=1.0, tpot_s=0.06, cold=ColdStart(30.0))
ASKS: tuple[Asks, ...] = ("no", "outage", "yes")
ONE_EACH = {"prefill": 1, "decode": 1}


def goals(most: int = 20, budget: int | None = None) -> Goals:
    return Goals(
        mode="disaggregated",
        roles=(RoleGoal("prefill", 1, most), RoleGoal("decode", 1, most)),
        slo=SLO(1.0, 0.06, 0.9),
        gpu_budget=budget,
        prior=PRESETS["llama-70b-h100-tp4"],
    )


def step(low: float, high: float) -> Trace:
    """Ten minutes at each rate."""
    first = poisson(low, int(600 * low), 1000, 60)
    second = poisson(high, int(600 * high), 1000, 60, seed=2)
    shifted = [at + first.end for at in second.arrival]
    return Trace(
        first.arrival + shifted, first.prompt + second.prompt, first.output + second.output
    )


def test_goodput_adds_prefill_for_more_prompts_and_requests_meet_the_slo_again() -> None:
    requests = step(2.0, 16.0)
    run = replay(SETUP, requests, LAWS["goodput"], goals(), ONE_EACH)
    assert run.world.finished
    added = sum(by for _, role, by in run.moves if role == "prefill")
    assert added >= 1
    first_move = min(at for at, role, by in run.moves if by > 0 and at > 600)
    assert 600 < first_move < 720
    late = [
        first - arrival
        for arrival, first in zip(requests.arrival, run.world.first, strict=True)
        if arrival > requests.end - 120
    ]
    assert sum(ttft <= 1.0 for ttft in late) / len(late) > 0.9


def test_every_decision_is_made_of_what_was_seen_at_its_tick() -> None:
    run = replay(SETUP, step(2.0, 8.0), LAWS["goodput"], goals(), ONE_EACH)
    assert [d.at - EPOCH for d in run.decisions] == [
        15.0 * (n + 1) for n in range(len(run.decisions))
    ]
    moves = [
        (decision.at - EPOCH, target.role, target.replicas - target.current)
        for decision in run.decisions
        for target in decision.targets
        if target.replicas != target.current
    ]
    assert moves == list(run.moves)


def test_replicas_are_added_by_what_the_gateway_says_while_the_metrics_are_out() -> None:
    requests, out = step(2.0, 16.0), (500.0, 1000.0)
    runs = {
        asks: replay(
            replace(SETUP, outage=out, ask_gateways=asks), requests, LAWS["goodput"], goals(),
            ONE_EACH,
        )
        for asks in ASKS
    }  # fmt: skip
    met = {asks: attainment(run.world, 300.0)["attainment"] for asks, run in runs.items()}
    for asks in ("outage", "yes"):
        during = [by for at, _, by in runs[asks].moves if 600.0 < at < 1000.0]
        assert during
        assert min(during) > 0, "none is removed"
        alone = {d.at - EPOCH: d.gateways_alone for d in runs[asks].decisions if d.gateways_alone}
        away = "PrometheusAway: the metrics are out"
        assert {at for at, why in alone.items() if why == away} == {
            at for at in alone if 500 <= at < 1000
        }
        assert len(alone) > 25
        assert met[asks] > met["no"] + 0.2


@pytest.mark.parametrize(("law", "asks"), [("goodput", "no"), ("hpa", "outage"), ("hpa", "yes")])
def test_no_other_law_is_asked_while_the_metrics_are_out_and_replicas_stay(
    law: str, asks: Asks
) -> None:
    requests = step(2.0, 16.0)
    out = replace(SETUP, outage=(500.0, 1000.0), ask_gateways=asks)
    run = replay(out, requests, LAWS[law], goals(), ONE_EACH)
    assert run.world.finished
    ticks = {decision.at - EPOCH for decision in run.decisions}
    assert {495.0, 1005.0} < ticks
    assert not any(500.0 <= at < 1000.0 for at in ticks)
    assert not any(500.0 <= at < 1000.0 for at, _, _ in run.moves)
    assert any(by > 0 for at, _, by in run.moves if 1000.0 <= at < 1100.0)  # it goes on


def test_lost_scrapes_cost_little_attainment() -> None:
    requests = step(2.0, 8.0)
    shares = [
        attainment(
            replay(
                replace(SETUP, scrape_loss=loss), requests, LAWS["goodput"], goals(), ONE_EACH
            ).world,
            60.0,
        )["attainment"]
        for loss in (0.0, 0.2)
    ]
    assert shares[1] > shares[0] - 0.05


class Watching:
    """The operator's law, and what it was shown."""

    start = LAWS["goodput"].start

    def __init__(self) -> None:
        self.shown: list[Observations] = []

    def decide(
        self, state: ScalingState, observations: Observations, of: Goals, now: float
    ) -> tuple[ScalingState, Decision]:
        self.shown.append(observations)
        return decide(state, observations, of, now)


def test_a_law_is_shown_pods_that_start_and_how_long_it_took_them() -> None:
    law = Watching()
    run = replay(SETUP, step(2.0, 16.0), law, goals(), ONE_EACH)
    first_at, _, added = run.moves[0]
    tick = int(first_at / 15)
    before, after = (shown.of("prefill") for shown in law.shown[tick - 1 : tick + 1])
    assert (before.desired, before.ready, before.pending, before.cold_starts_s) == (
        1,
        1,
        0,
        (30.0,),
    )
    assert (after.desired, after.ready, after.pending) == (1 + added, 1, added)
    assert after.gpus_per_replica == 4
    starts = law.shown[tick + 4].of("prefill").cold_starts_s
    assert len(starts) > added
    assert set(starts) == {30.0}
    new = [pod for pod in run.world.pods["prefill"] if pod.created_at > 0]
    assert all(pod.ready_at == pod.created_at + 30.0 for pod in new)
