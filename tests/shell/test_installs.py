"""Two installs that are told to look after the same fleet: one does, the other stays still."""

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy_operator.api.v1alpha1.template import PodTemplate
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.render.images import Images
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.installs import LAPSE_S, LATER_S, SOON_S, Installs
from argosy_operator.shell.loop import round_of
from argosy_operator.shell.telemetry import metrics
from tests.shell.store import Object, Store
from tests.support.model import IMAGES

KEY = ("ns", "chat")
RED, BLUE = "red/argosy-operator", "blue/argosy-operator"
OTHERS = Images(
    "engine:2",
    "gateway:2",
    PodTemplate(metadata={"labels": {"installed": "blue"}}),
    fetch="fetch:2",
)
"""Of the second install. Both would write again and again what the other one does not render."""


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
        images = IMAGES if own == RED else OTHERS
        sources = Sources(self.store, None, None, images, installs=self.installs[own])  # type: ignore[arg-type]
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
        self.leases_read: list[str] = []
        self.lease_error: ErrorKind | None = None
        self.status_error: ErrorKind | None = None

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        if kind != "Lease":
            return await super().get(kind, namespace, name)
        self.leases_read.append(f"{namespace}/{name}")
        if self.lease_error is not None:
            raise ClusterError(self.lease_error, "get Lease", "no")
        if namespace == self.hidden:
            raise ClusterError(ErrorKind.FORBIDDEN, "get Lease", "no")
        return self.objects.get((kind, f"{namespace}/{name}"))

    async def apply(self, obj: Object, uid: str | None, *, status: bool = False,
                    manager: str = "argosy") -> Object:  # fmt: skip
        meta = obj["metadata"]
        if not (status and obj["kind"] == "ServingDeployment"):
            return await super().apply(obj, uid, status=status)
        live = self.fleet
        if self.status_error is not None:
            raise ClusterError(self.status_error, "apply", "no")
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
    made, written = world.store.tried.copy(), world.store.written.count("argosy")
    await world.both_for(60)
    assert world.store.tried == made
    assert world.store.written.count("argosy") == written
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


def claimed_by(lease: str) -> World:
    """A fleet that the install of that Lease has claimed."""
    world = World()
    world.store.fleet["status"] = {"operator": {"lease": lease}, "observedGeneration": 7}
    return world


def of_others() -> float | None:
    return metrics.OF_OTHERS.collect()[0].samples[0].value  # type: ignore[no-any-return]


async def test_a_claim_keeps_the_rest_of_status_and_gives_the_fleet_back() -> None:
    world = claimed_by("gone/argosy-operator")
    claimed = await world.installs[BLUE].claim(KEY, world.store.fleet)
    assert claimed == world.store.fleet
    assert world.status == {"operator": {"lease": BLUE}, "observedGeneration": 7}
    assert await world.installs[BLUE].claim(KEY, world.store.fleet) is world.store.fleet


async def test_a_fleet_without_a_resource_version_is_claimed_too() -> None:
    world = World()
    raw = {**world.store.fleet, "metadata": {"name": "chat", "namespace": "ns", "uid": "fleet-1"}}
    claimed = await world.installs[RED].claim(KEY, raw)
    assert isinstance(claimed, dict)
    assert claimed["metadata"] == raw["metadata"]
    assert claimed["status"] == {"operator": {"lease": RED}}


async def test_a_lease_lapses_when_it_has_not_changed_for_its_time() -> None:
    world = claimed_by(RED)
    blue = world.installs[BLUE]
    world.renew(RED)
    for now, answer in ((1000.0, SOON_S), (1018.0, SOON_S)):
        world.now = now
        assert await blue.claim(KEY, world.store.fleet) == answer
    world.renew(RED)
    for now, answer in ((1019.5, LATER_S), (1019.4 + LAPSE_S, LATER_S)):
        world.now = now
        assert await blue.claim(KEY, world.store.fleet) == answer
    world.now = 1019.5 + LAPSE_S
    assert isinstance(await blue.claim(KEY, world.store.fleet), dict)
    assert world.status["operator"] == {"lease": BLUE}


async def test_a_lease_that_never_changed_lapses_as_late() -> None:
    world = claimed_by(RED)
    world.renew(RED)
    for passed in (0.0, LAPSE_S - 0.5):
        world.now = 1000.0 + passed
        assert await world.installs[BLUE].claim(KEY, world.store.fleet) == SOON_S
    world.now = 1000.0 + LAPSE_S
    assert isinstance(await world.installs[BLUE].claim(KEY, world.store.fleet), dict)


async def test_fleets_of_one_install_share_a_look_at_its_lease() -> None:
    world = claimed_by(RED)
    world.renew(RED)
    blue = world.installs[BLUE]
    for now in (1000.0, 1000.9, 1001.0, 1001.9, 1002.0):
        world.now = now
        await blue.claim(("ns", str(now)), world.store.fleet)
    assert world.store.leases_read == [RED] * 3  # type: ignore[attr-defined]


async def test_a_lease_that_comes_back_is_watched_anew() -> None:
    world = claimed_by(RED)
    blue = world.installs[BLUE]
    world.store.fleet["status"]["otherOperators"] = [{"lease": RED}]
    assert await blue.look_after_entries({"metadata": {}, "status": {}}) == float("inf")
    world.renew(RED, holder="")
    raw = {**world.store.fleet, "status": {"otherOperators": [{"lease": RED}]}}
    assert await blue.look_after_entries(raw) == float("inf")
    world.now += 1
    world.renew(RED)
    assert await blue.look_after_entries(raw) == SOON_S
    world.now += 1
    world.renew(RED)
    assert await blue.look_after_entries(raw) == LATER_S


async def test_an_entry_of_ones_own_goes_and_one_that_is_not_known_yet_is_looked_at_soon() -> None:
    world = claimed_by(BLUE)
    world.renew(RED)
    entries = [{"lease": BLUE}, {"lease": RED}, {"lease": "hidden/x"}]
    world.store.hidden = "hidden"  # type: ignore[attr-defined]
    world.store.fleet["status"]["otherOperators"] = entries
    again_s = await world.installs[BLUE].look_after_entries(dict(world.store.fleet))
    assert again_s == SOON_S
    assert world.status["otherOperators"] == entries[1:]
    assert world.store.written == [f"argosy.{BLUE}"]  # type: ignore[attr-defined]


async def test_the_fleets_of_others_are_counted() -> None:
    world = claimed_by(RED)
    world.store.hidden = "red"  # type: ignore[attr-defined]
    blue = world.installs[BLUE]
    for name in ("one", "two", "two"):
        await blue.claim(("ns", name), world.store.fleet)
    assert of_others() == 2
    blue.forget(("ns", "one"))
    assert of_others() == 1
    world.store.fleet["status"]["operator"] = {"lease": BLUE}
    await blue.claim(("ns", "two"), world.store.fleet)
    assert of_others() == 0


async def test_an_entry_says_what_is_in_the_way_and_is_written_by_a_manager_of_its_own() -> None:
    world = claimed_by(RED)
    own = "n" * 63 + "/" + "l" * 200
    installs = Installs(world.store, own, lambda: world.now)
    world.store.hidden = "red"  # type: ignore[attr-defined]
    await installs.claim(KEY, world.store.fleet)
    (entry,) = world.status["otherOperators"]
    assert entry["lease"] == own
    assert entry["message"] == (
        f"may not read the Lease {RED}, so it never takes the fleet over. Let its account get "
        "Leases of that namespace, or remove status.operator"
    )
    (writer,) = world.store.written  # type: ignore[attr-defined]
    assert writer == f"argosy.{own}"[:128]
    assert len(writer) == 128


@pytest.mark.parametrize("kind", [ErrorKind.TRANSPORT, ErrorKind.FORBIDDEN])
async def test_a_status_that_cannot_be_written_is_an_error(kind: ErrorKind) -> None:
    world = World()
    world.store.status_error = kind  # type: ignore[attr-defined]
    with pytest.raises(ClusterError):
        await world.installs[RED].claim(KEY, world.store.fleet)


async def test_a_lease_that_cannot_be_read_is_an_error() -> None:
    world = claimed_by(RED)
    world.store.lease_error = ErrorKind.TRANSPORT  # type: ignore[attr-defined]
    with pytest.raises(ClusterError):
        await world.installs[BLUE].claim(KEY, world.store.fleet)
    assert world.status["operator"] == {"lease": RED}


async def test_only_a_fleet_that_another_install_had_is_taken_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "argosy.installs")
    world = World()
    await world.installs[BLUE].claim(KEY, world.store.fleet)
    assert caplog.messages == []
    world = claimed_by(RED)
    await world.installs[BLUE].claim(KEY, world.store.fleet)
    assert caplog.messages == [f"ns/chat: taken over from the install of Lease {RED}"]
