"""The parts of `make bench-cluster` that judge: the table, attainment, and who took what."""

from argosy_bench.cluster.attack import (
    figures_of,
)
from argosy_bench.cluster.attackers import ATTACKS
from local.figures import Figures


def test_every_attack_has_a_figure_and_every_gain_must_be_nothing() -> None:
    figures = Figures(figures_of(list(ATTACKS)), "")
    for name in figures.rows:
        figures.put(name, 0.9 if "ratio" in name else 0)
    assert figures.missed() == []
    gains = [name for name, row in figures.rows.items() if row.target and "ratio" not in name]
    for name in gains:
        figures.put(name, 1)
    assert figures.missed() == gains
    assert {"foreign_kv_served", "unauthorised_drains"} <= set(gains)
    figures.put("honest_attainment_ratio_kv_flood", 0.899)
    assert "honest_attainment_ratio_kv_flood" in figures.missed()
