"""Which GPU type a role runs on, in a fleet that carries the plans out: none loses a request."""

from typing import Any

import pytest

from argosy_law.prices import DAY_S, SLOT_S, Prices, with_costs
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import AnnotateRole, EventReason
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.draft import StepReason
from tests.support.model import Model, condition, converged

H100 = {"name": "h100", "costPerHour": "4.10", "nodeSelector": {"gpu": "h100"}}
A100 = {"name": "a100", "costPerHour": "1.50", "gpu": 2, "nodeSelector": {"gpu": "a100"}}
MI300 = {"name": "mi300", "costPerHour": "3.00", "nodeSelector": {"gpu": "mi300"}}
GOODPUT = {"slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}}
BOTH = ("prefill", "decode")
WAIT_S = 600.0


def spec(*types: dict[str, Any], replicas: int = 3, **more: Any) -> dict[str, Any]:
    bounds = {"min": replicas, "max": 8}
    listed = [kind["name"] for kind in types]
    roles = {"colocated": {"replicas": bounds, "gpuTypes": listed}}
    return {"gpuTypes": list(types), "roles": roles, **more}


def types_of(model: Model) -> dict[str, int]:
    """Serving engine pods by GPU type."""
    found: dict[str, int] = {}
    for pod in model.pods.values():
        if pod.role != names.GATEWAY_ROLE and pod.serving:
            found[pod.gpu_type] = found.get(pod.gpu_type, 0) + 1
    return found


def template(model: Model) -> Any:
    (engine,) = (
        child for (kind, name), child in model.children.items()
        if kind == "Deployment" and name.startswith("chat-colocated")
    )  # fmt: skip
    return engine["spec"]["template"]


def role(model: Model) -> Any:
    return model.fleet.status.roles.colocated


def prices(model: Model, slots: int = 8, **costs: float) -> Prices:
    found = Prices()
    for i in range(slots):
        found = with_costs(found, {(name,): n for name, n in costs.items()}, model.now + i * SLOT_S)
    return found


def remember(model: Model, known: Prices) -> None:
    memory = {field: getattr(model.memory, field) for field in LoopMemory.__slots__}
    model.memory = LoopMemory(**memory | {"prices": known})


def until(model: Model, seconds: float, *, busy: bool = False) -> list[Any]:
    """Rounds of a second each; the events of all. With `busy` every serving pod has an answer."""
    events = list[Any]()
    for _ in range(int(seconds)):
        if busy:
            serving = [pod.uid for pod in model.pods.values() if pod.serving]
            model.requests |= {uid: max(model.requests.get(uid, 0), 3) for uid in serving}
        events += model.round().events
        model.tick()
    return events


def test_a_role_begins_on_the_first_of_its_types() -> None:
    model = converged(**spec(H100, A100))
    pods = template(model)
    assert pods["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert pods["metadata"]["labels"][names.GPU_TYPE] == "h100"
    assert pods["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert (role(model).gpu_type, role(model).gpu_cost_per_hour) == ("h100", "4.10")
    assert types_of(model) == {"h100": 3}


def test_a_cheaper_type_is_rolled_out_and_no_answer_is_cut_off() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    remember(model, prices(model, h100=12.3, a100=9.0))
    events = until(model, 60, busy=True)
    assert types_of(model) == {"a100": 3}
    assert model.lost == 0
    assert (role(model).gpu_type, role(model).gpu_cost_per_hour, role(model).gpus) == (
        "a100", "1.50", 0,
    )  # fmt: skip
    (said,) = (e.message for e in events if e.reason == EventReason.GPU_TYPE)
    assert (
        said == "colocated goes to GPU type a100: 9.00 instead of 12.30 per hour for the same SLO"
    )


def test_the_old_type_serves_while_the_new_one_has_no_room_and_takes_over_again() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    model.room["a100"] = 1
    remember(model, prices(model, h100=12.3, a100=9.0))
    until(model, WAIT_S - 5, busy=True)
    assert types_of(model) == {"h100": 2, "a100": 1}, "three pods serve"
    until(model, 60, busy=True)
    assert types_of(model) == {"h100": 3}
    assert model.lost == 0
    assert condition(model, "CapacityLimited").reason == "GPUTypeFull"
    remember(model, prices(model, 96, h100=12.3, a100=9.0))
    until(model, 30)
    assert types_of(model) == {"h100": 3}, "a type without room is not chosen for its cost"


def test_a_choice_outlives_the_operator() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    remember(model, prices(model, h100=12.3, a100=9.0))
    until(model, 60)
    model.memory = LoopMemory()
    model.converge()
    assert types_of(model) == {"a100": 3}


@pytest.mark.parametrize(
    "changed",
    [
        {"autoscaling": {"policy": "External"}},
        {"autoscaling": {"advisory": True}},
        {"slo": None},
    ],
    ids=["policy External", "advisory", "no slo"],
)
def test_only_the_scaling_law_changes_a_type_for_its_cost(changed: dict[str, Any]) -> None:
    model = converged(**spec(H100, A100, **{**GOODPUT, **changed}))
    remember(model, prices(model, h100=12.3, a100=9.0))
    until(model, 30)
    assert types_of(model) == {"h100": 3}


def test_a_rollout_is_not_overtaken_by_another() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    model.edit(engine={"image": "engine:2"})
    model.round()
    remember(model, prices(model, h100=12.3, a100=9.0))
    assert plan(model.snapshot()).draft.rolling
    assert not [a for a in plan(model.snapshot()).actions if isinstance(a, AnnotateRole)]


# --- room -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_role_leaves_a_type_whose_pods_find_no_node_for_the_time_of_the_spec() -> None:
    model = converged(**spec(H100, A100, replicas=2))
    model.room["h100"] = 2
    model.edit(**spec(H100, A100, replicas=3))
    until(model, WAIT_S - 3, busy=True)
    assert types_of(model) == {"h100": 2}
    assert condition(model, "CapacityLimited").reason == "Unschedulable"
    events = until(model, 60, busy=True)
    assert types_of(model) == {"a100": 3}
    assert model.lost == 0
    limited = condition(model, "CapacityLimited")
    assert (limited.status, limited.reason) == ("True", "GPUTypeFull")
    assert limited.message.startswith(
        "colocated runs on a100, since pods found no node with h100 ("
    )
    assert list(role(model).gpu_types_without_room) == ["h100"]
    (said,) = (e for e in events if e.reason == EventReason.GPU_TYPE)
    assert said.warning
    assert said.message.startswith("colocated goes on with GPU type a100: pod chat-colocated-")
    assert " found no node with h100 for 600 s: 0/3 nodes are available" in said.message


@pytest.mark.long
def test_a_full_type_comes_back_into_question_after_a_day() -> None:
    model = converged(**spec(H100, A100, **GOODPUT))
    model.room["h100"] = 0
    model.edit(engine={"image": "engine:2"})
    until(model, WAIT_S + 30)
    assert types_of(model) == {"a100": 3}
    assert model.lost == 0
    model.room.clear()
    remember(model, prices(model, 96, h100=5.0, a100=9.0))
    until(model, 5)
    assert types_of(model) == {"a100": 3}
    model.now += DAY_S
    remember(model, prices(model, 96, h100=5.0, a100=9.0))
    until(model, 60)
    assert types_of(model) == {"h100": 3}
    assert condition(model, "CapacityLimited").reason == "AsSpecified"


def test_when_all_types_are_full_a_role_stays_and_says_so() -> None:
    model = converged(**spec(H100, A100, MI300, autoscaling={"gpuTypeFallback": "30s"}))
    model.room = {"h100": 0, "a100": 0, "mi300": 0}
    model.edit(engine={"image": "engine:2"})
    until(model, 200, busy=True)
    assert types_of(model) == {"h100": 3}, "the pods of before serve on"
    assert model.lost == 0
    planned = plan(model.snapshot())
    (step,) = (s for s in planned.draft.steps if s.name == "choose_gpu_types")
    assert step.reason == StepReason.NO_GPU_TYPE_HAS_ROOM
    assert set(role(model).gpu_types_without_room) == {"h100", "a100"}
    assert role(model).gpu_type == "mi300"


def test_the_cheapest_type_with_room_is_next_where_costs_are_known() -> None:
    model = converged(**spec(H100, A100, MI300, autoscaling={"gpuTypeFallback": "30s"}))
    remember(model, prices(model, h100=5.0, a100=9.0, mi300=6.0))
    model.room["h100"] = 0
    model.edit(engine={"image": "engine:2"})
    until(model, 60)
    assert types_of(model) == {"mi300": 3}


@pytest.mark.parametrize("full", ["prefill", "decode"])
def test_of_two_roles_each_leaves_its_type_for_the_cheapest_beside_the_other(full: str) -> None:
    own = {"name": "l40", "costPerHour": "1.00", "nodeSelector": {"gpu": "l40"}}
    types = {"gpuTypes": [H100, A100, MI300, own]}
    listed = {role: ["h100", "a100", "mi300"] if role == full else ["l40"] for role in BOTH}
    roles = {role: {"replicas": {"min": 1}, "gpuTypes": listed[role]} for role in BOTH}
    fallback = {"gpuTypeFallback": "30s"}
    model = converged(mode="disaggregated", roles=roles, autoscaling=fallback, **types)
    known = Prices()
    for i in range(8):
        costs = {
            (name, "l40") if full == "prefill" else ("l40", name): cost
            for name, cost in {"h100": 5.0, "a100": 9.0, "mi300": 6.0}.items()
        }
        known = with_costs(known, costs, model.now + i * SLOT_S)
    remember(model, known)
    model.room["h100"] = 0
    model.edit(engine={"image": "engine:2"})
    until(model, 90)
    assert types_of(model) == {"l40": 1, "mi300": 1}


@pytest.mark.parametrize(
    "written",
    [
        {names.GPU_TYPE: "b200 2026-01-01T00:00:00Z"},
        {names.GPU_TYPE: ""},
        {names.GPU_TYPE: "a100"},
        {names.GPU_TYPES_FULL: "h100=never,b200=2026-01-01T00:00:00Z,=,"},
        {names.GPU_TYPES_FULL: "h100=2999-01-01T00:00:00Z"},
    ],
)
def test_what_a_user_writes_on_the_serving_role_is_not_trusted(written: dict[str, str]) -> None:
    model = converged(**spec(H100, A100))
    serving_role = model.children["ServingRole", "chat-colocated"]
    serving_role["metadata"]["annotations"] |= written
    until(model, 30)
    wanted = "a100" if written.get(names.GPU_TYPE) == "a100" else "h100"
    assert types_of(model) == {wanted: 3}
    assert role(model).gpu_types_without_room is None


def test_a_type_that_left_the_list_is_left_too() -> None:
    model = converged(**spec(H100, A100))
    serving_role = model.children["ServingRole", "chat-colocated"]
    serving_role["metadata"]["annotations"] |= {names.GPU_TYPE: f"a100 {rfc3339(model.now)}"}
    model.converge()
    assert types_of(model) == {"a100": 3}
    model.edit(**spec(H100, MI300))
    model.converge()
    assert types_of(model) == {"h100": 3}


def test_a_cost_or_a_profile_of_another_number_replaces_no_pod() -> None:
    model = converged(**spec(H100, A100))
    before = model.snapshot().revision
    profile = {
        "prefillBaseMs": "4", "perPromptTokenMs": "0.1", "decodeBaseMs": "29",
        "perSequenceMs": "0.3", "perContextTokenMs": "0.0001",
    }  # fmt: skip
    model.edit(**spec(H100 | {"costPerHour": "3.00", "profile": profile}, A100))
    assert model.snapshot().revision == before
    model.edit(**spec(H100 | {"nodeSelector": {"gpu": "h200"}}, A100))
    assert model.snapshot().revision != before
