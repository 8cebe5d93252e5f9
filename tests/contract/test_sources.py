"""The page of the sources says what the committed runs say, and a verdict follows from figures."""

import json
from pathlib import Path

import pytest

from argosy_bench.gateway import isolation, kv
from argosy_bench.goodput import distserve, parts
from docs import generate, sources_page
from docs.sources_page import GATEWAY, GOODPUT, REPRODUCE, Claim, Held, Measured, Row, Verdict

DECLARED = {
    GOODPUT: {figure.name for figure in (*parts.FIGURES, *distserve.FIGURES)},
    GATEWAY: {figure.name for figure in (*isolation.FIGURES, *kv.EXPOSED)},
}


def runs(value: float, least: float | None = None, most: float | None = None) -> sources_page.Runs:
    """Return a run with one figure, `it`."""
    ends = (value if least is None else least, value if most is None else most)
    return {GOODPUT: {"it": Measured(value, *ends)}}


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (runs(1.8), Verdict.REPRODUCED),
        (runs(3.3), Verdict.REPRODUCED),
        (runs(2.5, 1.8, 3.3), Verdict.REPRODUCED),
        (runs(2.5, 1.79, 3.3), Verdict.SAME_SHAPE),
        (runs(3.31), Verdict.SAME_SHAPE),
        (runs(1.01), Verdict.SAME_SHAPE),
        (runs(1.0), Verdict.REFUTED),
        (runs(1.5, 1.0, 2.5), Verdict.REFUTED),
        ({}, Verdict.NOT_MEASURED),
        ({GOODPUT: {}}, Verdict.NOT_MEASURED),
    ],
)
def test_a_verdict_is_that_of_the_whole_range_and_edges_belong_to_the_tolerance(
    measured: sources_page.Runs, verdict: Verdict
) -> None:
    assert Claim("it", text=(2, 3), within=0.1, above=1).verdict(measured) is verdict


def test_without_a_bound_of_its_shape_a_figure_off_the_texts_is_refuted() -> None:
    claim = Claim("it", text=(2, 2), within=0.05)
    assert claim.verdict(runs(2.11)) is Verdict.REFUTED
    assert claim.verdict(runs(2.0)) is Verdict.REPRODUCED


def test_without_a_figure_in_the_text_a_claim_is_never_more_than_of_the_same_shape() -> None:
    claim = Claim("it", below=1)
    assert claim.verdict(runs(0.9)) is Verdict.SAME_SHAPE
    assert claim.verdict(runs(0.9, 0.8, 1.0)) is Verdict.REFUTED


def test_a_ratio_has_the_widest_range_of_both_figures_and_none_without_one_of_them() -> None:
    both = {GOODPUT: {"it": Measured(4, 3, 5), "by": Measured(2, 1, 2)}}
    claim = Claim("it", over="by", above=1)
    assert claim.measured(both) == Measured(2, 1.5, 5)
    assert claim.verdict(runs(4)) is Verdict.NOT_MEASURED


def test_a_claim_that_cannot_be_refuted_is_an_error() -> None:
    with pytest.raises(ValueError, match="it cannot be refuted"):
        Claim("it")


def test_a_row_has_the_worst_verdict_of_its_claims_and_without_claims_is_not_measured() -> None:
    good, missing = Claim("it", above=1), Claim("other", above=1)
    assert Row("A1", "", (good, missing)).verdict(runs(2)) is Verdict.NOT_MEASURED
    assert Row("A1", "", (good,)).verdict(runs(2)) is Verdict.SAME_SHAPE
    assert Row("A1", "").verdict(runs(2)) is Verdict.NOT_MEASURED
    assert "*not measured yet*" in Row("A1", "", (missing,)).line({})


def test_a_row_that_no_run_can_show_says_why() -> None:
    line = Row("A1", "", outside_because="It claims nothing").line({})
    assert "*out of reach*" in line
    assert "It claims nothing" in line


def test_a_row_names_the_command_of_its_item() -> None:
    assert "`argosy reproduce B1`" in Row("B1", "", (Claim("it", REPRODUCE, above=1),)).line({})


def test_the_committed_run_has_every_figure_of_argosy_reproduce() -> None:
    named = {
        figure.figure
        for rows in sources_page.TEXTS.values() for row in rows for figure in row.figures()
        if figure.command == REPRODUCE
    }  # fmt: skip
    committed = json.loads(sources_page.RUNS.read_text())[REPRODUCE]
    assert committed["figures"].keys() == committed["ranges"].keys() == named


def test_a_refuted_row_says_why_and_no_other_does() -> None:
    claim = Claim("it", above=1)
    with pytest.raises(ValueError, match="A1 is refuted: give refuted_because"):
        Row("A1", "", (claim,)).line(runs(0.5))
    with pytest.raises(ValueError, match="A1 is same shape"):
        Row("A1", "", (claim,), refuted_because="slow").line(runs(2))
    assert "slow" in Row("A1", "", (claim,), refuted_because="slow").line(runs(0.5))


def test_a_claim_that_no_test_holds_any_more_is_an_error() -> None:
    assert Held("contract/test_sources.py", ("says_why",)).verdict({}) is Verdict.REPRODUCED
    with pytest.raises(ValueError, match="no test with 'as_" + "before' in its name"):
        Held("contract/test_sources.py", ("says_why", "as_" + "before")).verdict({})


def test_a_page_that_differs_from_the_figures_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = json.loads(sources_page.RUNS.read_text())
    known[GOODPUT]["figures"]["distserve_apart"] = 3.2
    other = tmp_path / "sources.json"
    other.write_text(json.dumps(known))
    monkeypatch.setattr(sources_page, "RUNS", other)
    assert "docs/explanation/sources.md" in generate.differing()


def test_every_item_of_the_texts_has_one_row() -> None:
    ids = [row.id for rows in sources_page.TEXTS.values() for row in rows]
    counts = {"A": 24, "B": 12, "C": 7, "D": 9}
    assert ids == [f"{text}{n + 1}" for text, count in counts.items() for n in range(count)]


@pytest.mark.parametrize("command", DECLARED)
def test_every_figure_that_a_row_names_is_one_of_its_command(command: str) -> None:
    rows = [row for rows in sources_page.TEXTS.values() for row in rows]
    figures = [one for row in rows for one in row.figures() if one.command == command]
    assert {figure.figure for figure in figures} <= DECLARED[command]


def test_a_run_of_a_part_renews_its_figures_and_keeps_the_others() -> None:
    known = json.loads(sources_page.RUNS.read_text())
    machine = {"date": "2027-01-01", "processor": "AMD EPYC", "cores": 2, "kernel": "6.1"}
    run = {
        "command": f"{GOODPUT} distserve",
        "environment": machine,
        "figures": {"distserve_apart": 3.2, "distserve_prefill_alone": 5.0},
        "ranges": {},
    }
    taken = sources_page.take(known, run)[GOODPUT]
    assert taken["figures"] == known[GOODPUT]["figures"] | {"distserve_apart": 3.2}
    assert taken["ranges"] == known[GOODPUT]["ranges"]
    assert taken["date"] == "2027-01-01"
    assert "kernel" not in taken
    with pytest.raises(ValueError, match="no row has a figure of make bench-scaling"):
        sources_page.take(known, run | {"command": "make bench-scaling"})
