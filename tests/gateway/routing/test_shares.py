"""How the gateways of a fleet divide its pods while many requests wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.config import Slo
from argosy_gateway.routing.dispatch import GatewayShares
from tests.gateway.direct import direct
from tests.gateway.engines import Engine
from tests.gateway.routing.test_dispatch import LIMIT_S, PACE, TOKENS, rate, teach
from tests.gateway.routing.world import World, poisson


def gateways(number):
    """Each of so many, as it knows itself."""
    names = [f"g{i}" for i in range(number)]
    made = [GatewayShares() for _ in names]
    for name, shares in zip(names, made, strict=True):
        shares.count(names[::-1], name)
    return made


async def test_a_gateway_knows_its_own_share_by_the_name_of_its_pod():
    engine = Engine("e")
    async with direct(engine, pod_name="g1", queue="deadline", slo=Slo(1, 1)) as gateway:
        names = {f"uid-{name}": name for name in ("g0", "g1", "g2")}
        gateway.state.directory.replace([engine.endpoint()], names)
        await gateway.answered({"model": "m", "messages": []})
        assert gateway.state.queue.dispatch.shares.share_of("xyz") == "y"


@given(st.integers(1, 30), st.integers(1, 30))
def test_each_pod_has_a_gateway_and_no_gateway_has_much_more_than_another(number, pods):
    shares = [gateway.share_of(range(pods)) for gateway in gateways(number)]
    assert {pod for share in shares for pod in share} == set(range(pods))
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    sharers = [sum(pod in share for share in shares) for pod in range(pods)]
    assert max(sharers) == -(-number // pods)


@pytest.mark.parametrize(
    ("number", "waiting", "pods", "keeps"),
    [
        (2, 999, 4, False),
        (3, 3, 2, False),
        (3, 4, 2, True),
        (4, 7, 8, False),
        (4, 8, 8, True),
    ],
)
def test_a_gateway_keeps_to_its_share_while_four_requests_wait_for_each_pod_of_it(
    number, waiting, pods, keeps
):
    assert gateways(number)[0].keeps(waiting, pods) is keeps


@pytest.mark.parametrize(("number", "pods", "least"), [(4, 4, 0.8), (4, 8, 0.8), (6, 8, 0.65)])
def test_at_ten_times_the_capacity_goodput_stays_with_many_gateways(number, pods, least):
    world = World(*[PACE] * pods, gateways=number)
    teach(world, 1.0)
    asked = world.play(poisson(rate(pods, 10), 0, 30, tokens=TOKENS, limit_s=LIMIT_S), until=30)
    goodput = sum(one.met for one in asked) / 30
    assert goodput >= least * rate(pods, 1)
