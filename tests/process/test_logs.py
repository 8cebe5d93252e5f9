"""Lines of the operator's log say which fleet they are about."""

import io
import json
import logging
from functools import partial

import pytest

from argosy import logs
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.plan import CHAIN
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import round_of
from argosy_operator.shell.workers import Workers
from tests.kv.nodes import until
from tests.shell.store import Store
from tests.support.model import IMAGES


async def test_a_round_that_fails_names_its_namespace_and_fleet_also_from_a_port():
    async def one_round(key, memory):
        logging.getLogger("argosy.port").warning("a port's own line")
        raise ClusterError(ErrorKind.TRANSPORT, "get", f"{key} is away")

    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs._Json())
    logging.getLogger("argosy").addHandler(handler)
    workers = Workers(one_round)
    try:
        for key in (("a", "chat"), ("b", "code")):
            workers.enqueue(key)
        await until(lambda: handler.stream.getvalue().count("the round failed") >= 2)
    finally:
        await workers.close()
        logging.getLogger("argosy").removeHandler(handler)
    lines = [json.loads(line) for line in handler.stream.getvalue().splitlines()]
    for namespace, fleet in (("a", "chat"), ("b", "code")):
        own = [x for x in lines if (x["namespace"], x["fleet"]) == (namespace, fleet)]
        assert {x["logger"] for x in own} == {"argosy.port", "argosy.loop"}


async def test_at_level_debug_every_step_of_a_round_is_a_line_about_its_fleet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources = Sources(Store(), None, None, IMAGES)  # type: ignore[arg-type]
    caplog.set_level(logging.DEBUG, logger="argosy.loop")
    caplog.handler.setFormatter(logs._Json())
    workers = Workers(partial(round_of, sources))
    workers.enqueue(("ns", "chat"))
    try:
        await until(lambda: "skip_if_paused" in caplog.text)
    finally:
        await workers.close()
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    steps = [line for line in lines if line["level"] == "debug"][: len(CHAIN)]
    assert [x["message"].partition(":")[0] for x in steps] == [step.__name__ for step in CHAIN]
    assert {(x["namespace"], x["fleet"]) for x in steps} == {("ns", "chat")}
