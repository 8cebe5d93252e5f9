"""The parts of `make bench-cluster` that judge: the table, attainment, and who took what."""

import asyncio
import json

import pytest

from argosy_bench.cluster.attack import (
    figures_of,
)
from argosy_bench.cluster.attackers import ATTACKS
from argosy_bench.cluster.smuggling import MARK, Hidden, engine_that_remembers, messages
from local.figures import Figures


def test_the_table_has_45_messages_and_each_hides_a_request_behind_its_own() -> None:
    table = list(messages("m"))
    assert len(table) >= 45
    assert len({message.name for message in table}) == len(table)
    assert len({message.sent for message in table}) == len(table)
    for message in table:
        own, _, hidden = message.sent.rpartition(b"POST ")
        assert own.startswith((b"POST", b"PO ST")), message.name
        assert b'"prompt": "%b"' % MARK.encode() in hidden, message.name
        assert MARK.encode() not in own, message.name


@pytest.mark.parametrize(("prompt", "smuggled"), [(MARK, 1), ("shown", 0)])
async def test_a_hidden_request_that_reaches_the_engine_is_counted(
    prompt: str, smuggled: int
) -> None:
    found = Hidden()
    body = json.dumps({"prompt": prompt}).encode()
    async with engine_that_remembers(found) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b" 200 " in await reader.readuntil(b"\r\n")
        writer.close()
    assert found.smuggled == smuggled


def test_every_attack_has_a_figure_and_every_gain_must_be_nothing() -> None:
    figures = Figures(figures_of(list(ATTACKS)), "")
    for name in figures.rows:
        figures.put(name, 0.9 if "ratio" in name else 0)
    assert figures.missed() == []
    gains = [name for name, row in figures.rows.items() if row.target and "ratio" not in name]
    for name in gains:
        figures.put(name, 1)
    assert figures.missed() == gains
    assert {"requests_smuggled", "foreign_kv_served", "unauthorised_drains"} <= set(gains)
    figures.put("honest_attainment_ratio_kv_flood", 0.899)
    assert "honest_attainment_ratio_kv_flood" in figures.missed()
