"""What an engine looks through for garbage while it starts, and after that."""

import asyncio
import gc
import os
import signal

import httpx
import pytest

from argosy_bench.ports import free_ports
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.server import serve as program


@pytest.fixture
def config():
    port, admin_port, kv_port = free_ports(3)
    yield EngineConfig(
        model="sim:opt-13b-a100",
        served_name="m",
        load_format="sim",
        host="127.0.0.1",
        port=port,
        admin_port=admin_port,
        kv_port=kv_port,
    )
    gc.unfreeze()


async def test_what_the_start_made_is_not_looked_through_for_garbage(config, monkeypatch):
    load, while_loading = program._load, []

    def watched(*arguments):
        while_loading.append(gc.isenabled())
        return load(*arguments)

    monkeypatch.setattr(program, "_load", watched)
    serving = asyncio.create_task(program.serve(config, lambda _: None))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.port}") as client:

        async def answers():
            try:
                return (await client.get("/v1/models")).is_success
            except httpx.TransportError:
                return False

        while not await answers():
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.01)
    assert while_loading == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0


async def test_a_start_that_fails_leaves_the_garbage_collector_on(config, monkeypatch):
    def fail(*_):
        raise LoadError("ModelNotFound", "no such folder")

    monkeypatch.setattr(program, "_load", fail)
    with pytest.raises(LoadError, match="no such folder"):
        await program.serve(config, lambda _: None)
    assert gc.isenabled()
