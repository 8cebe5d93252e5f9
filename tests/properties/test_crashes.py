"""The operator dies after any write of a recall, of a change of the mode and of a rollout: the end
is the same.

A write is one to the API server or an order to an engine. What follows it in the round does not
happen, and the next operator knows nothing. Flips are in test_flips.py, scalings in
tests/shell/test_faults.py. `tests/support/world.py` says what is forbidden meanwhile.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.world import World, scaled_by_others

pytestmark = pytest.mark.slow

DRAIN, REVISION = "serving.argosy.dev/drain", "serving.argosy.dev/revision"
SPEC = scaled_by_others(drain="60s")

Story = Callable[[], World]
"""A world at the moment at which the change begins."""


def two_pods() -> World:
    """A fleet of two colocated pods that answer."""
    world = World(SPEC)
    world.settle()
    world.scale(2)
    world.settle()
    world.work(9, 6)
    return world


def recall() -> World:
    """One of two pods drains, and is wanted again."""
    world = two_pods()
    world.scale(1)
    while not world._marked():
        world.tick()
    world.tick()
    world.scale(2)
    return world


def to_prefill_and_decode() -> World:
    world = two_pods()
    world.edit(mode="disaggregated")
    return world


def there_and_back() -> World:
    """The mode changes back while the pods of the first one drain."""
    world = to_prefill_and_decode()
    while not world._marked():
        world.tick()
    world.edit(mode="colocated")
    return world


def writes_of(story: Story, seconds: int) -> list[tuple[int, int]]:
    """Of each write, and each order to an engine: the second in which it is made, and the calls
    before it in that second."""
    world, found, second, before = story(), list[tuple[int, int]](), 0, 0

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*said: Any) -> Any:
            found.append((second, world.api.calls - before))
            return call(*said)

        return noting

    with (
        patch.object(world.api, "_begin", noted(world.api._begin)),
        patch.object(world, "drain", noted(world.drain)),
        patch.object(world, "take_work_again", noted(world.take_work_again)),
    ):
        for second in range(seconds):  # noqa: B007
            before = world.api.calls
            world.tick()
    assert world.wrongs == []
    world.close()
    return found


def ends_of(story: Story, seconds: int) -> list[tuple[str, World]]:
    """After which write the operator died, and the world at rest after that; first the one in which
    it lived."""
    calm = story()
    calm.settle()
    ends = [("it lives", calm)]
    alive, passed = story(), 0
    for second, calls in writes_of(story, seconds):
        while passed < second:
            alive.tick()
            passed += 1
        world = alive.twin()
        world.api.dies_after = calls + 1
        world.tick()
        world.settle()
        ends.append((f"second {second}, after {calls + 1} calls", world))
    alive.close()
    return ends


def pods_of(world: World) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in world.serving())


def test_a_recall_keeps_both_pods_wherever_the_operator_dies() -> None:
    before = pods_of(story := recall()), len(story._marked())
    story.close()
    assert (len(before[0]), before[1]) == (1, 1)
    ends = ends_of(recall, 6)
    assert len(ends) > 5
    for where, world in ends:
        assert world.wrongs == [], where
        assert len(pods_of(world)) == 2, where
        assert len(world.api.of("Pod")) == 2 + 2, f"{where}: with the two gateways"
        assert not world._marked(), where
        assert all(engine.until <= world.now for engine in world.engines.values()), where
        assert world.end_state() == ends[0][1].end_state(), where
        world.close()


@pytest.mark.parametrize("story", [to_prefill_and_decode, there_and_back])
def test_a_change_of_the_mode_ends_the_same_wherever_the_operator_dies(story: Story) -> None:
    roles = {"prefill", "decode"} if story is to_prefill_and_decode else {"colocated"}
    ends = ends_of(story, 14)
    assert len(ends) > 15
    for where, world in ends:
        assert world.wrongs == [], where
        assert {role for role in ("prefill", "decode", "colocated") if world.serving(role)} == roles
        assert world.end_state() == ends[0][1].end_state(), where
        world.close()


def rolling(most_pods: int, **rollout: Any) -> Story:
    """Two pairs of a fleet get another image, while they answer."""

    def story() -> World:
        world = World({**SPEC, "mode": "disaggregated", "rollout": rollout})
        world.settle()
        world.scale(2)
        world.settle()
        world.work(9, 6)
        world.most_pods = most_pods
        world.edit(engine={"image": "engine:2"})
        return world

    return story


@pytest.mark.parametrize(
    ("story", "seconds"),
    [
        pytest.param(rolling(6), 24, id="Paced"),
        pytest.param(rolling(4, maxSurgeGPUs=0), 24, id="Paced without a surge"),
        pytest.param(rolling(8, strategy="BlueGreen"), 14, id="BlueGreen"),
        pytest.param(rolling(4, strategy="Recreate"), 14, id="Recreate"),
    ],
)
def test_a_rollout_ends_the_same_wherever_the_operator_dies(story: Story, seconds: int) -> None:
    ends = ends_of(story, seconds)
    assert len(ends) > 15
    for where, world in ends:
        assert world.wrongs == [], where
        images = {
            container["image"]
            for obj in world.api.of("Deployment")
            for container in obj["spec"]["template"]["spec"]["containers"]
            if container["name"] == "engine"
        }
        assert images == {"engine:2"}, where
        assert (len(world.serving("prefill")), len(world.serving("decode"))) == (2, 2), where
        assert world.end_state() == ends[0][1].end_state(), where
        world.close()


def test_a_canary_holds_the_same_wherever_the_operator_dies() -> None:
    """Nothing compares the revisions, so it is never promoted."""
    ends = ends_of(rolling(6, canary={"share": "50%", "for": "1m"}), 24)
    assert len(ends) > 15
    for where, world in ends:
        assert world.wrongs == [], where
        status = world.fleet["status"]
        assert status["promoted"] != status["revision"], where
        assert status["rollout"]["state"] in ("CanaryServes", "CanaryUndecided"), where
        assert (len(world.serving("prefill")), len(world.serving("decode"))) == (2, 2), where
        revisions = {pod["metadata"]["labels"][REVISION] for pod in world.serving("decode")}
        assert len(revisions) == 2, where
        assert world.end_state() == ends[0][1].end_state(), where
        world.close()


def undone() -> World:
    """A person refuses the revision that runs, and the one before is to run again."""
    world = World({**SPEC, "mode": "disaggregated"})
    world.settle()
    before = world.fleet["status"]["revision"]
    world.edit(engine={"image": "engine:2"})
    world.settle()
    world.work(9, 6)
    status = world.fleet["status"]
    mark = {"revision": status["revision"], "message": "it is slow", "runs": before}
    world.api.put({**world.fleet, "status": {**status, "refused": mark}})
    return world


def test_an_undo_ends_the_same_wherever_the_operator_dies() -> None:
    ends = ends_of(undone, 14)
    assert len(ends) > 8
    for where, world in ends:
        assert world.wrongs == [], where
        status = world.fleet["status"]
        assert status["revision"] == status["refused"]["runs"], where
        assert (len(world.serving("prefill")), len(world.serving("decode"))) == (1, 1), where
        assert world.end_state() == ends[0][1].end_state(), where
        world.close()
