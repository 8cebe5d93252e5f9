"""SECURITY.md covers every port, and each threat names tests that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from argosy_operator.core.snapshot import names

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
BY_DECISION = {"clients without an account"}
"""Threats against which nothing stands, as the row says: there is nothing to test."""


def rows() -> Iterator[list[str]]:
    """Threat, defence and tests of each row."""
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("threat", "---"):
            yield cells


def test_every_port_has_its_threats() -> None:
    titles = " ".join(re.findall(r"^### (.+)$", TEXT, re.M))
    engine = (names.API_PORT, names.ADMIN_PORT, names.KV_PORT)
    gateway = (names.GATEWAY_PORT, names.GATEWAY_ADMIN_PORT)
    for port in (*engine, *names.UCX_PORTS, *gateway):
        assert re.search(rf"\b{port}\b", titles), f"no part of SECURITY.md is about port {port}"
    assert "The operator" in titles


def test_each_threat_names_a_test() -> None:
    found = list(rows())
    assert len(found) > 25
    without = [threat for threat, _, tests in found if "test" not in tests]
    assert set(without) == BY_DECISION


def test_every_test_that_is_named_exists() -> None:
    paths = re.findall(r"`(tests/[a-z0-9_/.]+)`", TEXT)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []
