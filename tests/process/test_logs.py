"""Lines of the operator's log say which fleet they are about."""

import io
import json
import logging

from argosy import logs
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.shell.workers import Workers
from tests.kv.nodes import until


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
