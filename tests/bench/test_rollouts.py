"""`make bench-scaling`'s rollouts and canaries, shortened."""

from dataclasses import replace

import pytest

from argosy_bench.scaling import canaries, rollouts
from argosy_law.canary import Verdict
from argosy_law.rollout import Strategy
from argosy_law.sim.figures import attainment_between
from argosy_law.sim.laws import LAWS
from argosy_law.sim.world.machine import Revision
from local.figures import Figures


@pytest.mark.slow
def test_every_figure_of_the_rollouts_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "FLEETS", ({"prefill": 1, "decode": 1},))
    monkeypatch.setattr(rollouts, "DOUBLED", {"disaggregated": 2.0})
    monkeypatch.setattr(rollouts, "capacity", lambda _fleet: 3.0)
    for name, seconds in (("AT_S", 30.0), ("LASTS_S", 200.0), ("DOUBLED_AT_S", 90.0)):
        monkeypatch.setattr(rollouts, name, seconds)
    monkeypatch.setattr(rollouts, "AFTER_S", 120.0)
    figures = Figures(rollouts.FIGURES, "a command")
    assert len(list(rollouts.measure(figures, seeds=1))) == 3
    assert figures.values.keys() == figures.rows.keys()


@pytest.mark.parametrize("surge", [None, 0])
def test_a_rollout_that_does_not_start_leaves_the_old_revision_to_the_law(
    surge: int | None,
) -> None:
    """When the load falls, pods are removed, and what is left meets the SLO. With a surge of 0 one
    of those that the law counts never serves."""
    load = rollouts.Load(rollouts.stairs((8.0, 300.0), (2.0, 600.0)), {"colocated": 5})
    load = replace(load, cold_s=20.0)
    plan = rollouts.Plan(100.0, Strategy("Paced", surge), Revision(starts=False))
    run = load.play(LAWS["goodput"], 0, plan=plan)
    serving = [pod for pod in run.world.wanted("colocated") if pod.revision == 0]
    assert len(serving) < 4
    assert run.world.killed == 0
    met = attainment_between(run.world, 300.0, 900.0)
    assert met is not None
    assert met >= rollouts.GOAL


def test_the_tally_counts_what_must_not_happen() -> None:
    load = rollouts.Load([(0.0, 2.0), (200.0, 2.0)], {"prefill": 1, "decode": 1})
    run = load.play(None, 0, plan=rollouts.Plan(50.0))
    tally = rollouts.Tally()
    tally.add(run)
    assert (tally.lost, tally.across, tally.over) == (0, 0, 0)
    assert run.rollout is not None
    run.rollout.most_over += 3
    run.world.killed, run.world.crossed = 1, 2
    tally.add(run)
    assert (tally.lost, tally.across, tally.over) == (1, 2, 3)


@pytest.mark.parametrize(("speed", "verdict"), [(0.5, Verdict.LOST), (1.0, Verdict.WON)])
def test_a_canary_gets_its_share_and_a_verdict(
    monkeypatch: pytest.MonkeyPatch, speed: float, verdict: Verdict
) -> None:
    monkeypatch.setattr(canaries, "FOR_S", 600.0)
    monkeypatch.setattr(canaries, "SETS", 3)
    monkeypatch.setattr(canaries, "RATE", 10.0)
    monkeypatch.setattr(canaries, "SHARE", 0.25)
    found = canaries.play(speed, 0)
    assert found.verdict is verdict
    if verdict is Verdict.LOST:
        assert found.after_s <= 120.0
        assert 0.01 < found.cost < 0.25
        assert found.attainment < 0.9
