"""Queries of dashboards and alerts read series that the programs have, by labels that they have."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs.dashboards import DASHBOARDS
from docs.generate import METRIC_TABLES
from docs.pictures import FIGURES, name_curve, stretches

ALERTS = Path(__file__).resolve().parents[2] / "charts/argosy/files/alerts.yaml"
OF_TARGETS = {"namespace", "fleet", "role", "revision", "pod"}
"""What scraping adds. A label of a series with such a name is `exported_…` then."""
OF_VLLM_ALONE = re.compile(r"vllm:nixl_\w+")
WORDS = {"sum", "max", "min", "count", "rate", "increase", "histogram_quantile", "absent", "by",
         "on", "and", "or"}  # fmt: skip


def labels_by_series() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _, rows in METRIC_TABLES:
        for row in rows:
            own = {f"exported_{name}" if name in OF_TARGETS else name for name in row.labels}
            ends = ("_bucket", "_sum", "_count") if row.type == "histogram" else ("",)
            for end in ends:
                found[row.name + end] = own | OF_TARGETS | ({"le"} if end == "_bucket" else set())
    return found


KNOWN = labels_by_series()


def unknown(query: str) -> Iterator[str]:
    """Series that no program has, and labels that none of the query's series has."""
    bare = re.sub(r'"[^"]*"', '""', re.sub(r"\[[^\]]*\]", "", query))
    labels = set[str]()
    for inside in re.findall(r"(?:by|on) \(([^)]*)\)", bare):
        labels |= set(re.findall(r"\w+", inside))
    names = set[str]()
    for name, inside in re.findall(r"([a-z_][\w:]*)\s*(?:\{([^}]*)\})?", re.sub(
        r"(?:by|on) \([^)]*\)", "", bare
    )):  # fmt: skip
        if name in WORDS:
            continue
        names.add(name)
        if name not in KNOWN:
            yield from () if OF_VLLM_ALONE.fullmatch(name) else (name,)
            continue
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
        yield from (f"{name}{{{label}}}" for label in used - KNOWN[name])
    assert names, query
    has = set[str]().union(*(KNOWN.get(name, OF_TARGETS) for name in names))
    yield from (f"by {label}" for label in labels - has)


QUERIES = [
    pytest.param(query.expr, id=f"{dashboard.name}-{panel.title}-{number}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
] + [
    pytest.param(rule["expr"], id=rule["alert"])
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_series_and_labels_that_a_program_has(query: str) -> None:
    assert list(unknown(query)) == []


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum (rate(argosy_slo_request_total[5m]))", "argosy_slo_request_total"),
        ('sum (argosy_gateway_endpoints{stat="serving"})', "argosy_gateway_endpoints{stat}"),
        ("sum by (why) (argosy_slo_misses_total)", "by why"),
        ("rate(argosy_gateway_ttft_seconds[5m])", "argosy_gateway_ttft_seconds"),
    ],
)
def test_a_query_of_anything_else_is_found(query: str, wrong: str) -> None:
    assert list(unknown(query)) == [wrong]


def test_every_variable_of_a_query_is_one_of_its_dashboard() -> None:
    for dashboard in DASHBOARDS:
        names = {variable.name for variable in dashboard.variables} | {"__rate_interval"}
        texts = [q.expr for panel in dashboard.panels for q in panel.queries]
        assert set(re.findall(r"\$(\w+)", " ".join(texts))) == names


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_the_picture_in_the_docs_has_every_panel(dashboard):
    drawn = html.unescape((FIGURES / f"dashboard-{dashboard.name}.svg").read_text())
    assert [p.title for p in dashboard.panels if f">{p.title}<" not in drawn] == []


def test_a_curve_is_named_by_the_labels_of_its_series():
    assert name_curve("{{role}} {{pod}}", {"role": "decode", "pod": "d-0"}) == "decode d-0"
    assert name_curve("p99", {"le": "1"}) == "p99"


def test_a_state_is_drawn_from_its_first_sample_to_its_last():
    states = (None, 1.0, 1.0, 0.0, None, 1.0)
    assert list(stretches(states)) == [(1, 3, "True"), (3, 4, "False"), (5, 6, "True")]
