"""`kubectl argosy explain --plan` prints the operator's own next plan and writes nothing."""

from argosy_law.observe import unknown_metrics
from argosy_operator.adapters.protocols import FleetPods, Measurement
from argosy_operator.cli.dry_run import DryRun, dry_run, dry_run_output
from argosy_operator.core.plan import CHAIN
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.render.common import Images
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import round_of
from tests.shell.store import Store

IMAGES = Images(engine="engine:1", gateway="gateway:1", fetch="fetch:1")
NEVER_BUILT = Images(
    engine="engine:default",
    gateway="gateway:default",
    fetch="fetch:default",
)


class NoPrometheus:
    async def measure(self, fleet: object, pods: FleetPods) -> Measurement:
        return Measurement(unknown_metrics(0.0, "NoPrometheus: set it"), 0.0)


async def reconciled(store: Store) -> LoopMemory:
    """The operator has had three rounds; its images are not this command's defaults."""
    sources = Sources(store, NoPrometheus(), None, IMAGES)  # type: ignore[arg-type]
    memory = LoopMemory()
    for _ in range(3):
        result = await round_of(sources, ("ns", "chat"), memory)
        assert result is not None
        memory, _ = result
    return memory


async def ran(store: Store) -> DryRun:
    return await dry_run(store, store.fleet, NEVER_BUILT)  # type: ignore[arg-type]


async def test_a_fleet_at_rest_has_a_plan_without_actions() -> None:
    store = Store()
    await reconciled(store)
    run = await ran(store)
    text = dry_run_output(run, "text")
    assert run.plan.actions == ()
    assert "No actions" in text
    for step in CHAIN:
        assert step.__name__ in text


async def test_it_prints_the_actions_that_the_operators_next_round_carries_out() -> None:
    store = Store()
    memory = await reconciled(store)
    del store.objects["Service", "chat"]
    store.edit(roles={"colocated": {"replicas": {"min": 3, "max": 4}}})
    text = dry_run_output(await ran(store), "text")
    (printed,) = (part.split("\n\n")[0] for part in text.split("Actions in their order\n")[1:])
    before = store.tried.copy()
    sources = Sources(store, NoPrometheus(), None, IMAGES)  # type: ignore[arg-type]
    await round_of(sources, ("ns", "chat"), memory)
    writes = [what for what in store.tried - before if "status" not in what]
    writes = [what.lower() for what in writes if "Event" not in what]
    assert [line.strip().split(" to ")[0].lower() for line in printed.splitlines()] == writes
    assert "Scale ServingRole/chat-colocated to 3" in printed


async def test_it_writes_nothing() -> None:
    store = Store()
    await reconciled(store)
    store.edit(paused=False, engine={"image": "engine:2"})
    before = store.tried.copy()
    assert (await ran(store)).plan.actions
    assert store.tried == before


async def test_a_job_that_fetches_the_model_is_not_made_again_for_the_commands_image() -> None:
    store = Store(roles={"colocated": {"replicas": {"min": 1, "max": 1}}})
    store.edit(model={"uri": "hf://own/model@main", "fetch": {"size": "1Gi"}})
    await reconciled(store)
    assert ("Job", "chat-fetch") in store.objects
    run = await ran(store)
    assert run.images.fetch == "fetch:1"
    assert run.plan.actions == ()


async def test_another_default_image_of_the_operator_changes_nothing() -> None:
    store = Store()
    await reconciled(store)
    run = await dry_run(store, store.fleet, NEVER_BUILT, "engine:2")  # type: ignore[arg-type]
    assert run.plan.actions == ()
    assert run.images.engine == "engine:1"


async def test_another_default_image_is_a_new_revision_of_a_fleet_that_follows_it() -> None:
    store = Store()
    store.edit(imageUpdates="Follow")
    await reconciled(store)
    run = await dry_run(store, store.fleet, NEVER_BUILT, "engine:2")  # type: ignore[arg-type]
    text = dry_run_output(run, "text")
    assert "Create Deployment/chat-colocated-" in text
    assert "WaitingForNewRevision" in text
