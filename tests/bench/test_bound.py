"""What holds replicas above what the load keeps busy is shown for each role."""

from pathlib import Path

import pytest

from argosy_bench.scaling import bound
from argosy_operator.core.scaling.goals import SLO, Goals, RoleGoal
from argosy_operator.sim.laws import LAWS
from argosy_operator.sim.replay import replay
from tests.sim.fleets import poisson, setup


def goals() -> Goals:
    roles = (RoleGoal("prefill", 1, 50), RoleGoal("decode", 1, 50))
    return Goals("disaggregated", roles, SLO(1.0, 0.05))


def test_replicas_are_averages_over_the_decisions_that_count() -> None:
    of = setup()
    run = replay(
        of, poisson(4.0, 4000, 100, 20), LAWS["goodput"], goals(), {"prefill": 3, "decode": 2}
    )
    prefill, decode = bound.bounds(run, 300.0)
    assert (prefill.role, decode.role) == ("prefill", "decode")
    for role in (prefill, decode):
        assert 0 < role.busy <= role.needed <= role.asked
        assert role.paid == pytest.approx(role.asked, rel=0.05)
        assert sum(role.rules.values()) == pytest.approx(1)
        assert f"{role.paid:6.2f}" in role.shown()
    kept = [d for d in run.decisions if 300 <= d.at - bound.EPOCH <= run.world.trace.end]
    assert prefill.asked == pytest.approx(sum(d.replicas("prefill") for d in kept) / len(kept))


def test_a_run_that_ends_before_the_warm_up_is_refused() -> None:
    run = replay(
        setup(), poisson(4.0, 100, 100, 20), LAWS["goodput"], goals(), {"prefill": 1, "decode": 1}
    )
    with pytest.raises(ValueError, match="give a longer trace"):
        bound.bounds(run, 300.0)


def test_the_command_takes_the_flags_of_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "requests.csv"
    rows = "\n".join(f"{i / 4:.3f},500,50" for i in range(2400))
    table.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    flags = ["--profile", "llama-70b-h100-tp4", "--cold", "30", "--ttft", "1", "--tpot", "0.06"]
    flags += ["--policy", "goodput", "--start", "1,1", "--out", str(tmp_path / "out.json")]
    assert bound.main(["--trace", str(table), *flags]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "prefill",
        "decode",
    ]
    assert bound.main(["--trace", str(table), *flags, "--goal", "2"]) == 2
    assert "--goal 2: write" in capsys.readouterr().err


def test_a_colocated_fleet_has_one_line() -> None:
    fleet = Goals("colocated", (RoleGoal("colocated", 1, 50),), SLO(1.0, 0.05))
    run = replay(setup(), poisson(4.0, 4000, 100, 20), LAWS["goodput"], fleet, {"colocated": 3})
    (one,) = bound.bounds(run, 300.0)
    assert one.role == "colocated"
    assert 0 < one.busy <= one.needed <= one.asked
