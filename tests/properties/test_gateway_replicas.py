"""The number of gateways, as the spec gives it up to others and takes it back."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.world import World, scaled_by_others

Routing = dict[str, Any]
EXTERNAL: Routing = {"replicas": 2, "autoscaling": {"policy": "External"}}
RANGE: Routing = {"replicas": 2, "autoscaling": {"min": 2, "max": 6}}
LEFT_TO_OTHERS = (EXTERNAL, RANGE)
SPEC = scaled_by_others(drain="20s")


def world_with(routing: Routing) -> World:
    world = World(SPEC | {"routing": routing})
    passes(world)
    return world


def passes(world: World, seconds: int = 8) -> None:
    for _ in range(seconds):
        world.tick()


def replicas(world: World) -> int:
    number: int = world.api.objects["Deployment", "chat-gateway"]["spec"]["replicas"]
    return number


def gateways(world: World) -> set[str]:
    pods = world.api.of("Pod")
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if pod["metadata"]["labels"]["serving.argosy.dev/role"] == "gateway"
    }


@pytest.mark.parametrize("routing", LEFT_TO_OTHERS, ids=["External", "a range"])
def test_wherever_the_operator_dies_the_number_stays_when_it_is_given_up(routing: Routing) -> None:
    """Of what only we apply, an apply without it leaves the default, which is one pod."""
    for calls in range(60):
        world = world_with({"replicas": 4})
        before = gateways(world)
        world.edit(routing=routing)
        world.api.dies_after = calls
        passes(world)
        assert (replicas(world), gateways(world)) == (4, before), calls
        world.close()


edits = st.sampled_from([{"replicas": 3}, {"replicas": 4}, *LEFT_TO_OTHERS])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(edits, st.integers(2, 6)), min_size=1, max_size=5))
def test_the_number_is_the_specs_or_the_last_one_of_another_scaler(
    changes: list[Routing | int],
) -> None:
    """A number is what another scaler asks for, the rest are edits of the spec."""
    world, routing, expected = world_with({"replicas": 3}), {"replicas": 3}, 3
    for change in changes:
        if isinstance(change, int):
            world.api.set_replicas("Deployment", "chat-gateway", change, "kubectl")
            expected = change if routing in LEFT_TO_OTHERS else expected
        else:
            routing = change
            world.edit(routing=routing)
            expected = expected if routing in LEFT_TO_OTHERS else routing["replicas"]
        passes(world)
        assert replicas(world) == expected, (change, routing)
    assert world.wrongs == []
    ours = ("HorizontalPodAutoscaler", "chat-gateway") in world.api.objects
    assert ours == (routing == RANGE)
    world.close()
