"""The choice of one setting for each rival, on a trace of minutes."""

from collections.abc import Mapping
from math import log
from pathlib import Path

import pytest

from argosy_bench.rivals import sweep
from argosy_bench.rivals.sweep import GRIDS, Bench, Case, Played
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.rivals.chosen import CHOSEN
from argosy_operator.core.scaling.rivals.table import MAKERS, RIVALS
from argosy_operator.sim.traces import Trace


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Ten minutes of three requests a second."""
    folder = tmp_path / "traces" / "steady"
    folder.mkdir(parents=True)
    rows = "".join(f"{i / 3:.3f},1000,50\n" for i in range(1800))
    (folder / "requests.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    monkeypatch.setattr(sweep, "CASES", {"steady": Case("steady", 1)})
    return Bench(tmp_path / "traces", "fifo", 600.0, tmp_path / "kept.jsonl")


def test_a_score_adds_what_is_missing_of_the_goal_to_the_cost() -> None:
    assert Played("hpa", "a", {}, 0.95, 0.8).score == pytest.approx(log(0.8))
    assert Played("hpa", "a", {}, 0.85, 1.5).score == pytest.approx(log(1.5) + 12 * 0.05)


@pytest.mark.parametrize("law", sorted(GRIDS))
def test_every_rival_has_four_to_twelve_settings_that_it_takes(law: str) -> None:
    assert 4 <= len(GRIDS[law]) <= 12
    for setting in GRIDS[law]:
        made = MAKERS[law](**setting)
        assert {name: getattr(made, name) for name in setting} == setting


def test_every_rival_is_swept() -> None:
    assert GRIDS.keys() == RIVALS.keys() - {"static"}


def test_what_is_chosen_is_of_the_grid_and_is_what_the_law_runs_with() -> None:
    for law, setting in CHOSEN.items():
        assert setting in GRIDS[law]
        assert {name: getattr(LAWS[law], name) for name in setting} == setting


def test_the_written_choice_can_be_read_back() -> None:
    settings: Mapping[str, sweep.Setting] = {"keda": {"prefill": 1024, "decode": 0.5}}
    names: dict[str, object] = {}
    exec(sweep.module(settings, ["a", "b"]), names)
    assert names["CHOSEN"] == settings
    assert "made on a, b." in str(names["__doc__"])


def test_every_setting_is_played_and_scored(bench: Bench) -> None:
    settings = GRIDS["tokenscale"]
    rows = list(sweep.swept(bench, "tokenscale", ["steady"], settings))
    runs = [runs[0] for _, runs in rows]
    assert [run.setting for run in runs] == list(settings)
    assert [run.score for run in runs] == [score for score, _ in rows]
    assert all(0 <= run.attainment <= 1 and run.cost > 0 for run in runs)


def test_a_run_that_is_kept_is_not_played_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.play("static", "steady", {})
    assert first.cost <= 1.0
    again = Bench(tmp_path / "traces", "fifo", 600.0, tmp_path / "kept.jsonl")
    monkeypatch.setattr(sweep, "replay", None)
    assert again.play("static", "steady", {}) == first


def test_a_trace_ends_where_it_is_told_to() -> None:
    trace = Trace([0.0, 5.0, 9.0], [1, 2, 3], [4, 5, 6])
    assert len(sweep.first(trace, 9.0)) == 2
    assert len(sweep.first(trace, 9.1)) == 3
