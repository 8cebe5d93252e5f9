"""A gateway without its watch: it serves the last known pods, or ends, but never goes on blind."""

import asyncio

import pytest

from argosy_gateway.config import Config
from argosy_gateway.relay.fleet import Fleet
from argosy_gateway.server.serve import serve


async def test_a_gateway_whose_watch_has_died_ends_with_the_watchs_error():
    """Otherwise it would send requests to the pods of that moment for ever."""

    async def source():
        raise RuntimeError("the watch died")

    config = Config("f", "ns", "m", host="127.0.0.1", port=0, admin_port=0, drain_lag_s=0.0)
    fleet = Fleet(config, asyncio.get_running_loop().time)
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="the watch died"):
            await serve(fleet, source())
    assert fleet.draining
