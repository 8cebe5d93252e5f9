"""An action that fails holds up what depends on it, and nothing else of the fleet."""

from types import SimpleNamespace

import pytest

from argosy_law.observe import unknown_metrics
from argosy_operator.adapters.protocols import FleetPods, Measurement
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell import loop
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import UnfinishedError, round_of
from tests.shell.store import CAUSE, Store
from tests.support.model import IMAGES

KEY = ("ns", "chat")
BUDGET = "PodDisruptionBudget/chat-gateway"
APPLY_BUDGET = f"apply {BUDGET}"


class World:
    """Rounds of one fleet on a store, at a time that the test sets, without a Prometheus."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
        self.store, self.now, self.memory = store, 1_000_000.0, LoopMemory()
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr(loop, "time", clock)

    async def measure(self, fleet: ServingDeployment, pods: FleetPods) -> Measurement:
        metrics = unknown_metrics(self.now, "NoPrometheus: set it")
        return Measurement(metrics, self.now + fleet.spec.autoscaling.interval.seconds)

    async def round(self) -> float:
        """One round; the seconds until the next look."""
        sources = Sources(self.store, self, None, IMAGES)  # type: ignore[arg-type]
        result = await round_of(sources, KEY, self.memory)
        assert result is not None
        self.memory, wake_s = result
        return wake_s

    async def pass_time(self, seconds: float) -> None:
        """Rounds whenever the fleet asks for them."""
        until = self.now + seconds
        while (wake_s := await self.round()) + self.now <= until:
            self.now += wake_s
        self.now = until


def bounds(minimum: int) -> dict:
    return {"colocated": {"replicas": {"min": minimum, "max": 8}}}


@pytest.fixture
async def broken(monkeypatch: pytest.MonkeyPatch) -> World:
    """A fleet of 3 whose disruption budgets were deleted and cannot be created again."""
    world = World(monkeypatch, Store(roles=bounds(3)))
    await world.round()
    for kind, name in list(world.store.objects):
        if kind == "PodDisruptionBudget":
            del world.store.objects[kind, name]
    world.store.failing = {"PodDisruptionBudget"}
    return world


async def test_a_webhook_that_fails_on_a_budget_stops_no_scaling(broken: World) -> None:
    broken.store.edit(roles=bounds(4))
    await broken.round()
    assert broken.store.replicas("colocated") == 4
    assert broken.memory.targets == {"colocated": 4}


async def test_a_failing_action_is_a_condition_that_names_object_and_cause(broken: World) -> None:
    await broken.round()
    said = broken.store.condition("Reconciling")
    assert (said["status"], said["reason"]) == ("True", "WriteFailed")
    assert BUDGET in said["message"]
    assert CAUSE in said["message"]
    assert broken.store.condition("Stalled")["status"] == "False"


async def test_a_person_is_asked_for_when_it_has_failed_for_five_minutes(broken: World) -> None:
    await broken.pass_time(290)
    assert broken.store.condition("Stalled")["status"] == "False"
    await broken.pass_time(90)
    said = broken.store.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "WriteFailed")
    assert BUDGET in said["message"]
    assert broken.store.condition("Reconciling")["status"] == "False"
    assert len(broken.store.told("WriteFailed")) == 1


async def test_only_what_fails_is_tried_more_and_more_slowly(broken: World) -> None:
    await broken.pass_time(600)
    assert 8 <= broken.store.tried[APPLY_BUDGET] <= 20
    before = broken.store.tried[APPLY_BUDGET]
    for minimum in (4, 5, 6):
        broken.store.objects["ServingRole", "chat-colocated"]["spec"]["replicas"] = minimum
        await broken.round()
        assert broken.store.replicas("colocated") == 3  # put back by the policy, at once
    assert broken.store.tried[APPLY_BUDGET] <= before + 1


async def test_that_it_is_created_again_is_said_once_and_when_it_was(broken: World) -> None:
    await broken.pass_time(30)
    assert broken.store.told("CreatedAgain") == []
    broken.store.failing = set()
    await broken.pass_time(90)
    told = broken.store.told("CreatedAgain")
    assert len([note for note in told if "chat-gateway" in note]) == 1
    assert broken.store.condition("Reconciling")["reason"] != "WriteFailed"


async def test_an_event_that_cannot_be_written_keeps_status_from_nothing(broken: World) -> None:
    broken.store.failing = {"Event"}
    await broken.round()
    assert broken.store.condition("Reconciling")["reason"] != "WriteFailed"
    assert BUDGET.partition("/")[2] in {name for _, name in broken.store.objects}


@pytest.mark.parametrize(
    "error_kind", [ErrorKind.CONFLICT, ErrorKind.NOT_FOUND, ErrorKind.FORBIDDEN]
)
async def test_no_kind_of_error_is_tried_without_a_pause(
    broken: World, error_kind: ErrorKind
) -> None:
    broken.store.error_kind = error_kind
    await broken.pass_time(600)
    assert broken.store.tried[APPLY_BUDGET] <= 24


async def test_a_number_of_the_law_is_written_down_before_pods_follow_it(broken: World) -> None:
    """Else a round that finds the old number in the ServingRole would go back there."""
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    broken.store.failing = {"ServingRole"}
    broken.store.edit(roles=bounds(4), slo=slo)
    await broken.pass_time(30)
    assert broken.store.replicas("colocated") == 3
    assert "ServingRole/chat-colocated" in broken.store.condition("Reconciling")["message"]
    broken.store.failing = set()
    await broken.pass_time(60)
    assert broken.store.replicas("colocated") == 4


async def test_what_a_round_learnt_outlives_a_server_that_goes_away(broken: World) -> None:
    broken.store.failing = set()
    broken.store.edit(roles=bounds(4))
    broken.store.away_at = "scale Deployment"
    with pytest.raises(UnfinishedError) as caught:
        await broken.round()
    assert caught.value.memory.targets == {"colocated": 4}
    assert caught.value.memory.failed == {}
    assert caught.value.cause.kind is ErrorKind.TRANSPORT


@pytest.mark.parametrize(
    "slo", [None, {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}], ids=["minimum", "law"]
)
async def test_a_change_of_replicas_is_told_and_recorded_once_and_when_it_was_written(
    broken: World, slo: dict | None
) -> None:
    broken.store.failing = {"ServingRole"}
    broken.store.edit(roles=bounds(4), **({"slo": slo} if slo else {}))
    await broken.pass_time(120)
    assert broken.store.told("Scaled") == []
    assert broken.store.fleet["status"]["autoscaling"].get("lastDecision") is None
    broken.store.failing = set()
    await broken.pass_time(120)
    (told,) = broken.store.told("Scaled")
    assert "colocated 3 → 4" in told
    assert len(broken.store.fleet["status"]["autoscaling"]["history"]) == 1


async def test_many_failing_actions_end_a_round_early_and_keep_nothing_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A webhook that hangs costs ten seconds a call; a round must stay shorter than /health's."""
    store = Store(roles=bounds(3), mode="disaggregated")
    store.failing = {"ServiceAccount", "Role", "RoleBinding", "Service", "PodDisruptionBudget"}
    world = World(monkeypatch, store)
    await world.round()
    assert store.tried.total() <= 4 + 2  # and the status
    await world.pass_time(5)
    assert {"chat-gateway"} < {name for kind, name in store.objects if kind == "Deployment"}
    assert store.tried["apply RoleBinding/chat-gateway"] == 0  # its Role is not there
