"""`argosy simulate --mode colocated`: one pool, its constant fleet, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from argosy_law.sim import cli
from argosy_law.sim.world.colocated import ColocatedWorld
from tests.sim.test_simulate import TRACE, arguments, refused

END_S, WARMUP_S, GPUS = float(TRACE.read_text().split()[-1].split(",")[0]), 60.0, 4


def simulated(folder: Path, **flags: str) -> dict[str, Any]:
    out = folder / "out.json"
    assert cli.main(arguments(out, mode="colocated", **flags)) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def test_a_constant_fleet_has_one_number_of_replicas(tmp_path: Path) -> None:
    result = simulated(tmp_path, policy="static:3", static="5", static_same_engine="4")
    hours = GPUS * (END_S - WARMUP_S) / 3600
    assert result["gpu_hours"] == pytest.approx(3 * hours)
    assert (result["gpu_hours_static"], result["gpu_hours_static_same_engine"]) == (
        pytest.approx(5 * hours), pytest.approx(4 * hours),
    )  # fmt: skip
    assert (result["replicas_static"], result["replicas_static_same_engine"]) == ("5", "4")
    assert 0 < result["gpu_hours_physical"] < result["gpu_hours"]


def test_the_law_scales_the_pool_from_the_constant_fleet(tmp_path: Path) -> None:
    options = cli.parse(
        arguments(tmp_path / "x.json", mode="colocated", policy="goodput", scale="8")
    )
    run, result = cli.simulate(options, cli.trace_of(options))
    assert isinstance(run.world, ColocatedWorld)
    assert result["replicas_static_same_engine"] is not None
    assert int(str(result["replicas_static"])) > 1
    assert {role for _, role, _ in run.moves} == {"colocated"}
    assert result["requests_killed"] == 0
    assert isinstance(result["attainment"], float)
    assert 0.5 < result["attainment"] <= 1


def test_a_schedule_and_a_budget_bound_the_pool(tmp_path: Path) -> None:
    flags = arguments(
        tmp_path / "x.json", mode="colocated", policy="goodput", start="4", scale="8",
        schedules="3 0 * * *; 1m; 6",
    )  # fmt: skip
    options = cli.parse(flags)
    run = cli.play(options, cli.trace_of(options), None)
    at_start = [p for p in run.world.pods["colocated"] if p.ready_at <= 180 < p.gone_at]
    assert len(at_start) >= 6
    budget = arguments(
        tmp_path / "x.json", mode="colocated", policy="goodput", scale="8", gpu_budget="4"
    )
    options = cli.parse(budget)
    run = cli.play(options, cli.trace_of(options), {"colocated": 3})
    assert [pod.name for pod in run.world.pods["colocated"]] == ["colocated-0"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"policy": "static:2,3"},
            "--policy static:2,3: write replicas, from 1 to 1000, such as 5",
        ),
        ({"policy": "static:0"}, "write replicas, from 1 to 1000"),
        ({"policy": "static:1001"}, "write replicas, from 1 to 1000"),
        ({"policy": "static"}, "such as static:5"),
        ({"policy": "static:2", "start": "2"}, "static:N has its replicas in --policy"),
        ({"policy": "goodput", "start": "1,1"}, "--start 1,1: write replicas"),
        ({"static": "x"}, "--static x: write replicas"),
        ({"static_same_engine": "1,2"}, "--static-same-engine 1,2: write replicas"),
        ({"policy": "wva"}, "wva sizes prefill and decode separately"),
        ({"first_token": "in-batch"}, "--first-token in-batch is not for a colocated fleet"),
        (
            {"policy": "goodput", "first_token": "auto"},
            "--first-token auto is not for a colocated fleet",
        ),
        ({"policy": "goodput", "gpu_budget": "3"}, "write a whole number of at least 4"),
        ({"policy": "goodput", "schedules": "0 8 * * *; 10h"}, "'0 8 * * MON-FRI; 10h; 5'"),
        ({"mode": "together"}, "write one of disaggregated, colocated"),
    ],
)
def test_what_a_colocated_fleet_does_not_have_is_refused(
    flags: dict[str, str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert words in refused(
        capsys, tmp_path, **({"policy": "static:1", "mode": "colocated"} | flags)
    )
