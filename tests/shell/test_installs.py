"""Two installs that are told to look after the same fleet: one does, the other stays still."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.installs import LAPSE_S, LATER_S, Installs
from argosy_operator.shell.loop import round_of
from tests.shell.store import Object, Store
from tests.support.model import IMAGES

KEY = ("ns", "chat")
RED, BLUE = "red/argosy-operator", "blue/argosy-operator"


@dataclass
class World:
    """One API server, a clock, and the Leases of both installs."""

    now: float = 1000.0
    store: Store = field(default_factory=lambda: Shared())
    memory: dict[str, LoopMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.fleet["metadata"]["uid"] = "fleet-1"
        self.installs = {own: Installs(self.store, own, lambda: self.now) for own in (RED, BLUE)}

    def renew(self, lease: str, holder: str = "pod_1") -> None:
        spec = {"holderIdentity": holder, "renewTime": f"t{self.now}"}
        self.store.objects["Lease", lease] = {"metadata": {}, "spec": spec}

    async def round(self, own: str) -> float:
        sources = Sources(self.store, None, None, IMAGES, installs=self.installs[own])  # type: ignore[arg-type]
        result = await round_of(sources, KEY, self.memory.get(own, LoopMemory()))
        assert result is not None
        self.memory[own], wake_s = result
        return wake_s

    async def both_for(self, seconds: float) -> None:
        """Rounds of both, every three seconds; both renew their Leases."""
        until = self.now + seconds
        while self.now < until:
            for own in (RED, BLUE):
                self.renew(own)
                await self.round(own)
            self.now += 3

    @property
    def status(self) -> Object:
        status: Object = self.store.fleet["status"]
        return status


class Shared(Store):
    """Knows preconditions, and which manager wrote which entry."""

    hidden = ""
    prunes = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        if kind != "Lease":
            return await super().get(kind, namespace, name)
        if namespace == self.hidden:
            raise ClusterError(ErrorKind.FORBIDDEN, "get Lease", "no")
        return self.objects.get((kind, f"{namespace}/{name}"))

    async def apply(self, obj: Object, uid: str | None, *, status: bool = False,
                    manager: str = "argosy") -> Object:  # fmt: skip
        meta = obj["metadata"]
        if not (status and obj["kind"] == "ServingDeployment"):
            return await super().apply(obj, uid, status=status)
        live = self.fleet
        if meta.get("resourceVersion", "") not in ("", live["metadata"]["resourceVersion"]):
            raise ClusterError(ErrorKind.CONFLICT, "apply", "modified")
        self.written.append(manager)
        others = (live.get("status") or {}).get("otherOperators") or []
        if manager == "argosy":
            assert "otherOperators" not in obj["status"]
            new = dict(obj["status"])
        else:
            others = [entry for entry in others if f"argosy.{entry['lease']}" != manager]
            others = [*others, *obj["status"].get("otherOperators", [])]
            new = {k: v for k, v in (live.get("status") or {}).items() if k != "otherOperators"}
        if self.prunes:
            new.pop("operator", None)
        self.serial += 1
        live["metadata"]["resourceVersion"] = str(self.serial)
        live["status"] = new | ({"otherOperators": others} if others else {})
        return dict(live)


def condition(status: Object) -> Object:
    found: Object = next(c for c in status["conditions"] if c["type"] == "InstallConflict")
    return found


async def test_the_first_one_claims_the_fleet_before_it_makes_anything() -> None:
    world = World()
    await world.round(RED)
    assert world.status["operator"] == {"lease": RED}
    assert world.status["observedGeneration"] == 1
    assert condition(world.status)["status"] == "False"
    assert world.store.written[0] == "argosy"


async def test_the_second_one_stays_still_and_status_names_both() -> None:
    world = World()
    await world.both_for(12)
    made = world.store.tried.copy()
    await world.both_for(60)
    assert world.store.tried == made
    assert world.store.written.count(f"argosy.{BLUE}") == 1
    assert world.status["operator"] == {"lease": RED}
    assert world.status["otherOperators"] == [{"lease": BLUE}]
    said = condition(world.status)
    assert said["status"] == "True"
    assert RED in said["message"]
    assert BLUE in said["message"]


async def test_a_round_of_the_quiet_one_comes_seldom_and_writes_nothing() -> None:
    world = World()
    await world.both_for(12)
    written = len(world.store.written)
    for _ in range(5):
        world.now += LATER_S
        world.renew(RED)
        assert await world.round(BLUE) == LATER_S
    assert len(world.store.written) == written


async def test_when_the_first_one_ends_the_second_one_takes_over_and_says_so() -> None:
    world = World()
    await world.both_for(12)
    world.now += LATER_S  # RED renews no more
    await world.round(BLUE)
    assert world.status["operator"] == {"lease": BLUE}
    await world.round(BLUE)
    assert "otherOperators" not in world.status
    assert condition(world.status)["status"] == "False"


@pytest.mark.parametrize("lease", [None, ""])
async def test_a_lease_that_is_gone_or_given_back_frees_the_fleet_at_once(lease: Any) -> None:
    world = World()
    world.renew(RED)
    await world.round(RED)
    if lease is None:
        del world.store.objects["Lease", RED]
    else:
        world.renew(RED, holder="")
    await world.round(BLUE)
    assert world.status["operator"] == {"lease": BLUE}


async def test_one_look_at_a_lease_of_any_age_takes_no_fleet() -> None:
    """The times in a Lease are of another machine's clock: only a change counts."""
    world = World()
    world.renew(RED)
    await world.round(RED)
    world.now += 1e6
    for _ in range(int(LAPSE_S / 4)):
        await world.round(BLUE)
        assert world.status["operator"] == {"lease": RED}
        assert "otherOperators" not in world.status
        world.now += 3
    world.now += LAPSE_S
    await world.round(BLUE)
    assert world.status["operator"] == {"lease": BLUE}


async def test_who_may_not_read_the_others_lease_stays_still_and_says_what_to_do() -> None:
    world = World()
    world.store.hidden = "red"  # type: ignore[attr-defined]
    await world.round(RED)
    for _ in range(3):
        await world.round(BLUE)
        world.now += 1e4
    world.renew(BLUE)
    await world.round(RED)
    assert world.status["operator"] == {"lease": RED}
    assert f"may not read the Lease {RED}" in condition(world.status)["message"]


async def test_two_that_claim_at_once_end_with_one() -> None:
    world = World()
    stale = {**world.store.fleet, "metadata": dict(world.store.fleet["metadata"])}
    await world.round(RED)
    assert await world.installs[BLUE].claim(KEY, stale) == pytest.approx(3.0)
    assert world.status["operator"] == {"lease": RED}


async def test_the_entry_of_one_that_is_gone_is_removed() -> None:
    world = World()
    await world.both_for(12)
    del world.store.objects["Lease", BLUE]
    world.now += 3
    await world.round(RED)
    await world.round(RED)
    assert "otherOperators" not in world.status
    assert condition(world.status)["status"] == "False"


@pytest.mark.parametrize("text", ["", "x", "a/b/c", "../../secrets/x", "A/b", "a/.."])
async def test_what_people_write_for_a_claim_is_no_path(text: str) -> None:
    world = World()
    world.store.fleet["status"] = {"operator": {"lease": text}}
    await world.round(BLUE)
    assert world.status["operator"] == {"lease": BLUE}


async def test_a_crd_without_the_field_ends_no_fleet_in_a_loop_of_claims() -> None:
    world = World()
    world.store.prunes = True  # type: ignore[attr-defined]
    for _ in range(3):
        await world.round(RED)
    written = len(world.store.written)
    await world.round(RED)
    assert len(world.store.written) == written
    assert world.store.objects["Service", "chat"]
