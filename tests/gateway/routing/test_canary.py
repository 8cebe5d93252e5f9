"""The share of a canary: exactly its part of the requests, and nothing lost for it."""

import asyncio
import json
from dataclasses import replace

import pytest

from argosy_gateway.config import Canary, Slo
from argosy_gateway.options import KEY, Settings
from argosy_gateway.pods.endpoints import Role, State
from tests.gateway.direct import direct
from tests.gateway.engines import Behaviour, Call, Engine, drain, fail

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SLO = Slo(ttft_s=60, tpot_s=60)


def colocated(old: int = 2, new: int = 1) -> tuple[list[Engine], list[Engine]]:
    olds = [Engine(f"o{n}", revision="old") for n in range(old)]
    return olds, [Engine(f"n{n}", revision="new") for n in range(new)]


def calls(engines: list[Engine]) -> int:
    return sum(len(engine.calls) for engine in engines)


async def asked(gateway, times: int, **more: object) -> set[int]:
    return {(await gateway.answered(ASK | more)).status for _ in range(times)}


@pytest.mark.parametrize("strategy", ["leastLoad", "roundRobin", "kvAware"])
@pytest.mark.parametrize("queue", ["none", "deadline"])
@pytest.mark.parametrize(("percent", "of_100"), [(1, 1), (10, 10), (33, 33), (50, 50)])
async def test_the_canary_gets_exactly_its_share_with_every_strategy(
    strategy, queue, percent, of_100
):
    old, new = colocated()
    settings = {"strategy": strategy, "queue": queue, "canary": Canary("new", percent)}
    async with direct(*old, *new, slo=SLO, **settings) as gateway:
        assert await asked(gateway, 100) == {200}
    assert (calls(old), calls(new)) == (100 - of_100, of_100)


async def test_each_of_a_pair_is_of_the_same_revision_and_the_share_holds():
    pods = [
        Engine(f"{role}-{revision}", role=role, revision=revision)
        for role in (Role.PREFILL, Role.DECODE)
        for revision in ("old", "new")
    ]
    async with direct(*pods, canary=Canary("new", 20)) as gateway:
        assert await asked(gateway, 50) == {200}
    _, _, old, new = pods
    assert (len(old.calls), len(new.calls)) == (40, 10)
    names = {(call.headers["x-argosy-prefill"], e.name) for e in (old, new) for call in e.calls}
    assert len(names) == 2


async def test_decode_pods_of_a_canary_wait_for_their_prefill_pods():
    pair = (Engine(r, role=r, revision="old") for r in (Role.PREFILL, Role.DECODE))
    alone = Engine("n", role=Role.DECODE, revision="new")
    async with direct(*pair, alone, canary=Canary("new", 50)) as gateway:
        assert await asked(gateway, 10) == {200}
    assert not alone.calls


@pytest.mark.parametrize("state", [None, State.UNREADY, State.DRAINING])
async def test_turns_of_a_canary_that_cannot_serve_go_elsewhere_and_are_not_made_up_for(state):
    old, (new,) = colocated()
    async with direct(*old, new, canary=Canary("new", 10)) as gateway:
        directory = gateway.state.directory
        directory.remove("n0") if state is None else directory.put(new.endpoint(state))
        assert await asked(gateway, 100) == {200}
        directory.put(new.endpoint())
        assert await asked(gateway, 20) == {200}
    assert len(new.calls) == 2


async def test_others_go_to_the_canary_only_if_no_other_pod_can_take_them():
    old, new = colocated()
    async with direct(*old, *new, canary=Canary("new", 1)) as gateway:
        for engine in old:
            gateway.state.directory.put(engine.endpoint(State.DRAINING))
        assert await asked(gateway, 10) == {200}
    assert (calls(old), calls(new)) == (0, 10)


@pytest.mark.parametrize("behaviour", [fail, drain])
async def test_what_the_canary_fails_is_served_by_the_other_revision(behaviour):
    old, new = colocated(new=2)
    for engine in new:
        engine.behaviour = behaviour
    async with direct(*old, *new, slo=SLO, canary=Canary("new", 50)) as gateway:
        assert await asked(gateway, 20) == {200}
        faults = gateway.count("argosy_gateway_faults_total", revision="new")
    assert calls(old) == 20
    assert 0 < calls(new) <= 10
    assert faults == (calls(new) if behaviour is fail else 0)


async def test_what_the_others_fail_is_tried_at_the_canary_at_last():
    old, new = colocated(old=1)
    old[0].behaviour = fail
    async with direct(*old, *new, canary=Canary("new", 1)) as gateway:
        assert await asked(gateway, 5) == {200}
    assert calls(new) == 5


async def test_requests_of_the_canary_wait_for_its_pods_and_others_for_theirs():
    free = {"old": asyncio.Event(), "new": asyncio.Event()}

    def held(revision: str) -> Behaviour:
        async def behaviour(call: Call) -> None:
            await call.begin_stream()
            await free[revision].wait()
            await call.token("one")
            await call.finish(1)

        return behaviour

    old, new = (Engine(of, held(of), revision=of) for of in free)
    settings = {"queue": "deadline", "engine_places": 1, "slo": SLO, "canary": Canary("new", 50)}
    async with direct(old, new, **settings) as gateway:
        clients = [gateway.ask(ASK | {"stream": True}) for _ in range(6)]
        await gateway.until(lambda: (len(old.calls), len(new.calls)) == (1, 1))
        await gateway.until(lambda: gateway.state.waiting()[0] == 4)
        free["new"].set()
        await gateway.until(lambda: len(new.calls) == 3)
        assert (len(old.calls), gateway.state.waiting()[0]) == (1, 2)
        free["old"].set()
        await asyncio.gather(*(client.whole for client in clients))
        assert {client.status for client in clients} == {200}
        assert (len(old.calls), len(new.calls)) == (3, 3)


async def test_what_waits_for_a_canary_goes_elsewhere_when_it_ends():
    free = asyncio.Event()

    async def held(call: Call) -> None:
        await call.begin_stream()
        await free.wait()
        await call.token("one")
        await call.finish(1)

    old, new = Engine("o", revision="old"), Engine("n", held, revision="new")
    settings = {"queue": "deadline", "engine_places": 1, "slo": SLO, "canary": Canary("new", 50)}
    async with direct(old, new, **settings) as gateway:
        clients = [gateway.ask(ASK | {"stream": True}) for _ in range(4)]
        await gateway.until(lambda: gateway.state.waiting()[0] == 1 and len(new.calls) == 1)
        gateway.state.reconfigure(replace(gateway.state.config, canary=None))
        await gateway.until(lambda: len(old.calls) == 3)
        free.set()
        await asyncio.gather(*(client.whole for client in clients))
        assert {client.status for client in clients} == {200}


async def test_live_settings_begin_and_end_a_canary():
    def words(*more: str) -> dict[str, str]:
        return {KEY: json.dumps(["--served-name", "m", *more])}

    old, new = colocated()
    async with direct(*old, *new, settings_name="f-gateway") as gateway:
        take = Settings(gateway.state)
        take(words("--canary", "new:50"))
        assert await asked(gateway, 10) == {200}
        assert calls(new) == 5
        take(words("--canary", "old:10"))
        assert await asked(gateway, 10) == {200}
        assert calls(new) == 14
        take(words())
        assert gateway.state.config.canary is None
        assert len(gateway.state.groups(canary=False)[0].heads) == 3


@pytest.mark.parametrize("wrong", ["new", "new:0", "new:51", "new:10%", ":10", "new:1.5"])
async def test_a_canary_that_is_none_is_refused_and_the_settings_stay(wrong):
    async with direct(settings_name="f-gateway") as gateway:
        Settings(gateway.state)({KEY: json.dumps(["--served-name", "m", f"--canary={wrong}"])})
        assert "1 to 50 percent" in gateway.state.settings_read.refused
