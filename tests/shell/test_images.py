"""An upgrade of the operator, with other default images, replaces no pod until it is asked for."""

from typing import Any

import pytest

from argosy_operator.core.snapshot import names, snapshot
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.render import gateway, workload
from argosy_operator.render.common import Images
from argosy_operator.shell import gather
from argosy_operator.shell.boards import LEARN_S, LOOK_S, RolloutBoard
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import round_of
from tests.shell.store import Store

OLD = Images(engine="engine:1", gateway="gateway:1", fetch="fetch:1")
NEW = Images(engine="engine:2", gateway="gateway:2", fetch="fetch:2")
KEY = ("ns", "chat")
PARKED = {"colocated": {"replicas": {"min": 1, "max": 4}}}


class NoPrometheus:
    async def measure(self, *_: object, **__: object) -> Any:
        raise AssertionError("a fleet without an SLO is not measured")


async def rounds(store: Store, images: Images, board: RolloutBoard | None = None) -> None:
    """An operator with these images looks after the fleet for a while."""
    board = board or RolloutBoard()
    sources = Sources(store, NoPrometheus(), None, images, rollouts=board)  # type: ignore[arg-type]
    memory = LoopMemory()
    for _ in range(3):
        result = await round_of(sources, KEY, memory)
        assert result is not None
        memory, _ = result


def images_of(store: Store) -> set[str]:
    """The images of the fleet's Deployments."""
    return {
        container["image"]
        for (kind, _), child in store.objects.items()
        if kind == "Deployment"
        for container in child["spec"]["template"]["spec"]["containers"]
    }


def engines_of(store: Store) -> list[str]:
    """Names of the Deployments of engines."""
    return [name for kind, name in store.objects if kind == "Deployment" and "colo" in name]


async def test_an_upgrade_of_the_operator_changes_no_deployment() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    before = {what: count for what, count in store.tried.items() if "status" not in what}
    await rounds(store, NEW)
    assert {what: count for what, count in store.tried.items() if "status" not in what} == before
    assert images_of(store) == {"engine:1", "gateway:1"}


async def test_a_newer_image_is_a_line_of_the_status() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    status = store.fleet["status"]
    assert status["images"] == {"engine": "engine:1", "gateway": "gateway:1"}
    assert "newerImages" not in status
    await rounds(store, NEW)
    status = store.fleet["status"]
    assert status["images"] == {"engine": "engine:1", "gateway": "gateway:1"}
    assert status["newerImages"] == {"engine": "engine:2", "gateway": "gateway:2"}


async def test_a_fleet_that_follows_rolls_the_newer_images_out() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    store.edit(imageUpdates="Follow")
    await rounds(store, NEW)
    assert {"engine:2", "gateway:2"} <= images_of(store)
    assert "newerImages" not in store.fleet["status"]


async def test_an_edit_makes_new_pods_with_the_images_that_the_fleet_has() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    store.edit(engine={"maxNumSeqs": 8})
    await rounds(store, NEW)
    assert len(engines_of(store)) == 2
    assert images_of(store) == {"engine:1", "gateway:1"}


async def test_a_fleet_goes_on_with_the_image_that_its_spec_named_last() -> None:
    store = Store(roles=PARKED, engine={"image": "mine:1"})
    await rounds(store, OLD)
    store.edit(engine={})
    await rounds(store, OLD)
    assert "mine:1" in images_of(store)
    assert store.fleet["status"]["newerImages"] == {"engine": "engine:1"}


async def test_the_board_lets_fleets_take_newer_images() -> None:
    now = [0.0]
    board = RolloutBoard(1, lambda: now[0])
    store = Store(roles=PARKED)
    await rounds(store, OLD, board)
    await rounds(store, NEW, board)
    assert images_of(store) == {"engine:1", "gateway:1"}
    now[0] = LEARN_S
    await rounds(store, NEW, board)
    assert "engine:2" in images_of(store)


async def pause_s(store: Store, images: Images, board: RolloutBoard) -> float:
    """How long the fleet rests after its next round, if nothing happens."""
    sources = Sources(store, NoPrometheus(), None, images, rollouts=board)  # type: ignore[arg-type]
    result = await round_of(sources, KEY, LoopMemory())
    assert result is not None
    return result[1]


async def test_a_fleet_that_waits_for_its_place_asks_again_though_nothing_happens() -> None:
    store, board = Store(roles=PARKED), RolloutBoard(1, lambda: 0.0)
    await rounds(store, OLD, board)
    await rounds(store, NEW, board)
    board.publish(("ns", "other"), rolling=True)
    rest_s = await pause_s(store, OLD, board)
    assert await pause_s(store, NEW, board) == LOOK_S < rest_s
    assert await pause_s(store, NEW, RolloutBoard()) == rest_s, "no place to wait for"
    store.edit(paused=True)
    assert await pause_s(store, NEW, board) > LOOK_S


def test_a_fleet_that_has_ended_its_rollout_makes_place_for_the_next() -> None:
    now = [0.0]
    board = RolloutBoard(1, lambda: now[0])
    first, second = ("ns", "a"), ("ns", "b")
    board.publish(first, rolling=False)
    board.publish(second, rolling=False)
    now[0] = LEARN_S
    assert board.allows(first)
    assert board.allows(first)
    assert not board.allows(second)
    board.publish(first, rolling=True)
    assert not board.allows(second)
    board.publish(first, rolling=False)
    assert board.allows(second)
    board.withdraw(second)
    assert board.allows(first)


def test_after_a_start_no_fleet_begins_before_those_that_roll_out_are_known() -> None:
    now = [0.0]
    board = RolloutBoard(1, lambda: now[0])
    board.publish(("ns", "a"), rolling=False)
    now[0] = LEARN_S - 1
    board.publish(("ns", "b"), rolling=True)
    now[0] = LEARN_S + 1
    assert not board.allows(("ns", "a"))
    now[0] = 3 * LEARN_S
    assert not board.allows(("ns", "a"))
    board.publish(("ns", "b"), rolling=False)
    assert board.allows(("ns", "a"))


def templates_of(store: Store) -> dict[str, Any]:
    """The pod templates of the fleet's Deployments, by name."""
    return {
        name: child["spec"]["template"]
        for (kind, name), child in store.objects.items()
        if kind == "Deployment"
    }


def another_operator(patch: pytest.MonkeyPatch) -> None:
    """An operator whose pods look otherwise: of engines, and of gateways."""
    patch.setattr(gather, "TEMPLATE", 99)
    patch.setattr(snapshot, "TEMPLATE", 99)
    patch.setattr(gateway, "TEMPLATE", 99)
    patch.setattr(workload, "GRACE_MARGIN_S", 77)
    patch.setattr(gateway, "GRACE_MARGIN_S", 77)


SHAPES: list[dict[str, Any]] = [
    {"roles": PARKED},
    {"mode": "disaggregated"},
    {"roles": PARKED, "security": {"verifyPeers": False}},
    {
        "slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
        "autoscaling": {"policy": "None"},
    },
]


@pytest.mark.parametrize("spec", SHAPES)
async def test_an_operator_that_renders_pods_otherwise_replaces_none(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(**spec)
    await rounds(store, OLD)
    before = templates_of(store)
    with monkeypatch.context() as patch:
        another_operator(patch)
        await rounds(store, NEW)
        assert templates_of(store) == before
    await rounds(store, OLD)
    assert templates_of(store) == before


async def test_the_next_edit_renders_pods_as_the_operator_of_now_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    old = set(templates_of(store))
    another_operator(monkeypatch)
    store.edit(engine={"maxNumSeqs": 8}, drain={"timeout": "400s"})
    await rounds(store, NEW)
    found = templates_of(store)
    new = {name for name in found if name not in old} | {"chat-gateway"}
    assert len(new) == 2
    assert all("477" in str(found[name]) or "982" in str(found[name]) for name in new)


def gateway_of(store: Store) -> Any:
    return store.objects["Deployment", "chat-gateway"]


def settings_of(store: Store) -> str:
    found: str = store.objects["ConfigMap", "chat-gateway"]["data"][names.SETTINGS_KEY]
    return found


EDIT: dict[str, Any] = {
    "slo": {"ttft": {"target": "3s"}, "tpot": {"target": "70ms"}},
    "drain": {"timeout": "100s"},
    "routing": {"strategy": "kvAware", "maxQueue": 7, "queue": "none"},
    "autoscaling": {"policy": "None"},
}


async def test_an_edit_of_slo_drain_or_routing_changes_no_pod_template() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    before, settings = templates_of(store), settings_of(store)
    store.edit(**EDIT)
    await rounds(store, OLD)
    assert templates_of(store) == before
    assert settings_of(store) != settings
    assert '"3000"' in settings_of(store)


async def test_settings_that_somebody_deletes_or_edits_are_put_back() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    settings = settings_of(store)
    store.objects["ConfigMap", "chat-gateway"]["data"] = {}
    await rounds(store, OLD)
    assert settings_of(store) == settings
    del store.objects["ConfigMap", "chat-gateway"]
    await rounds(store, OLD)
    assert settings_of(store) == settings
