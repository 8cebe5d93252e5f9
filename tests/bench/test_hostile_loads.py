"""The operator's law on loads that are hard to serve: what it loses has a cause, and what it costs
is bounded by the best constant fleet with the same queue."""

from dataclasses import dataclass, replace

import pytest

from argosy_bench.scaling.shapes import GOAL, LENGTHS, MOVING, OBJECTIVE, PROFILE, Load, stairs
from argosy_bench.scaling.shapes import wavering as wavering_rates
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Serving
from argosy_law.sim import figures, hindsight
from argosy_law.sim.laws.law import Goodput
from argosy_law.sim.replay import Run, replay
from argosy_law.sim.traces import Trace

WARMUP_S = 300.0
NOTICED_S = 45.0
"""Until a rise is known: two scrapes and a decision."""
SMALL = {"prefill": 1, "decode": 1}


@dataclass(frozen=True)
class Played:
    """A run of the law, and what is counted of it."""

    load: Load
    run: Run
    trace: Trace

    @property
    def attainment(self) -> float:
        share = figures.attainment(self.run.world, WARMUP_S)["attainment"]
        assert share is not None
        return share

    @property
    def reversals(self) -> float:
        return figures.reversals_per_hour(self.run, WARMUP_S, self.trace.end)

    @property
    def over_constant(self) -> float:
        """GPU-hours over those of the best constant fleet with the same queue."""
        setup = self.run.world.setup
        best = hindsight.smallest(setup, self.trace, warmup_s=WARMUP_S, goal=GOAL)
        assert best is not None
        spent = figures.gpu_hours(self.run.world, WARMUP_S, self.trace.end)
        hours = (self.trace.end - WARMUP_S) / 3600
        return spent / (setup.replica.machine.gpus * hours * sum(best.values()))


def played(load: Load, *, scrape_loss: float = 0.0, speeds: tuple[float, ...] = (1.0,)) -> Played:
    """Play the law on the load. No request that was accepted may be lost."""
    setup = replace(load.setup(0), scrape_loss=scrape_loss, speeds=speeds)
    requests = load.requests(0)
    replica = setup.replica
    goals = Goals(
        mode="disaggregated",
        roles=tuple(RoleGoal(role, *load.bounds) for role in load.start),
        slo=load.slo,
        prior=PRESETS[PROFILE],
        serving=Serving("deadline", replica.max_num_batched_tokens, replica.max_num_seqs),
    )
    run = replay(setup, requests, Goodput(), goals, load.start)
    assert run.world.finished
    assert run.world.killed == 0
    return Played(load, run, requests)


@pytest.mark.parametrize("cold_s", [20.0, 90.0, 600.0])
def test_of_a_flash_crowd_no_more_is_lost_than_comes_until_a_replica_serves(cold_s: float) -> None:
    """Ten times as many requests for three minutes."""
    crowd_s, rate = 180.0, 20.0
    load = Load(stairs((2.0, 600.0), (rate, crowd_s), (2.0, 900.0)), SMALL, cold_s=cold_s)
    seen = played(load)
    counted = sum(at >= WARMUP_S for at in seen.trace.arrival)
    unserved = rate * min(cold_s + NOTICED_S, crowd_s)
    assert seen.attainment >= 1 - unserved / counted
    assert seen.reversals <= 3
    if cold_s <= crowd_s:  # otherwise replicas come when the crowd has gone
        assert seen.over_constant <= 1.0


def test_a_tenant_with_prompts_of_60000_tokens_costs_no_more_than_its_prompts() -> None:
    """One request of fifty. Alone it takes ten seconds, so that it misses a TTFT of one."""
    prompts = [*range(200, 3136, 60), 60_000]
    load = Load(
        [(0.0, 3.0), (1800.0, 3.0)],
        {"prefill": 2, "decode": 1},
        lengths=Trace([0.0] * len(prompts), prompts, [200] * len(prompts)),
    )
    seen = played(load)
    assert seen.attainment >= GOAL - 0.02
    assert seen.reversals <= 1
    assert seen.over_constant <= 1.15


def test_answers_that_become_four_times_longer_are_provided_for() -> None:
    load = Load([(0.0, 4.0), (2400.0, 4.0)], SMALL, longer=(600.0, 1500.0, 1.0, 4.0))
    seen = played(load)
    assert seen.attainment >= GOAL
    assert seen.reversals <= 1
    assert seen.over_constant <= 0.9


def test_work_that_grows_fivefold_while_fewer_requests_come_is_provided_for() -> None:
    fewer = [(0.0, 12.0), (600.0, 12.0), (1500.0, 8.0), (2400.0, 8.0)]
    seen = played(replace(MOVING, rates=fewer, start=SMALL))
    assert seen.attainment >= GOAL
    assert seen.reversals <= 1


def test_two_of_five_scrapes_may_be_lost() -> None:
    load = Load(wavering_rates(6.0, 0.25, 1)[:31], {"prefill": 2, "decode": 2})
    seen = played(load, scrape_loss=0.4)
    assert seen.attainment >= GOAL
    assert seen.reversals <= 1
    assert seen.over_constant <= 1.05


def test_where_half_of_the_pods_run_at_half_speed_the_load_has_as_many_as_it_needs() -> None:
    """The law begins with the profile of the faster ones, and asks for too few by it."""
    load = Load([(0.0, 20.0), (1800.0, 20.0)], {"prefill": 4, "decode": 4})
    seen = played(load, speeds=(1.0, 0.5))
    assert seen.attainment >= GOAL
    assert seen.reversals <= 1
    assert seen.over_constant <= 1.2


def test_a_fleet_of_a_hundred_replicas_only_gives_back_what_a_steady_load_leaves() -> None:
    longer = replace(
        LENGTHS, prompt=[3 * n for n in LENGTHS.prompt], output=[3 * n for n in LENGTHS.output]
    )
    start = {"prefill": 45, "decode": 55}
    slo = SLO(3.0, OBJECTIVE.tpot_s, GOAL)
    seen = played(Load([(0.0, 50.0), (420.0, 50.0)], start, slo, longer))
    assert seen.attainment >= 0.98
    assert {change for _, _, change in seen.run.moves} <= {-1}
