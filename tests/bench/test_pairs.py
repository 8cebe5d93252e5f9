"""`argosy_bench.pairs`: rates of products, where there is a choice."""

import pytest

from argosy_bench import pairs
from argosy_bench.figures import Figures
from argosy_engine.model.native.compile import library_path


def test_every_figure_is_measured():
    figures = Figures(pairs.FIGURES, "")
    pairs.measure(figures, library_path("base"), 1)
    rates = {name: value for name, value in figures.values.items() if name in figures.rows}
    assert rates.keys() == figures.rows.keys()
    assert rates.pop("engine_takes_pairs") == 0  # the base library has none
    assert all(value > 0 for value in rates.values())


def test_a_cpu_without_instructions_for_pairs_is_named(monkeypatch, capsys):
    monkeypatch.setattr(pairs, "choose", lambda: "avx2")
    monkeypatch.setattr("sys.argv", ["pairs"])
    with pytest.raises(SystemExit) as ended:
        pairs.main()
    assert ended.value.code == 2
    assert "no instructions for bfloat16 pairs (native avx2)" in capsys.readouterr().err
