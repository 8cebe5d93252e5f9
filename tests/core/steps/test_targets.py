"""How many pods a role is to have: where the number comes from, and what the law is told."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Goals, RoleGoal, Serving, StepLimits, Windows
from argosy_law.observe import RoleSupply
from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot.actions import Create, Scale
from argosy_operator.core.snapshot.pods import Pod, Start
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.goals import goals_of, offers_of
from argosy_operator.core.steps.targets import supply_of
from tests.support.model import Model, converged, fleet

WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}
TARGETS = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
EXTERNAL: dict[str, Any] = {"roles": WIDE, "autoscaling": {"policy": "External"}}
GOODPUT: dict[str, Any] = {"roles": WIDE, "slo": TARGETS}
UNSIZED: dict[str, Any] = {"roles": WIDE}


def running(spec: dict[str, Any], replicas: int) -> Model:
    """A fleet with so many colocated pods, which its ServingRole asks for."""
    model = converged(**EXTERNAL)
    model.scale_role("colocated", replicas)
    model.converge()
    model.edit(**{"autoscaling": {"policy": "Goodput"}, "slo": None, **spec})
    model.children["ServingRole", "chat-colocated"]["metadata"]["managedFields"] = []
    return model


def without_replicas(model: Model) -> Model:
    """Another writer removed spec.replicas from the ServingRole."""
    role = model.children["ServingRole", "chat-colocated"]
    spec = {name: value for name, value in role["spec"].items() if name != "replicas"}
    model.children["ServingRole", "chat-colocated"] = {**role, "spec": spec}
    return model


def scales(planned: Plan) -> list[tuple[str, int]]:
    return [(a.kind, a.replicas) for a in planned.actions if isinstance(a, Scale)]


@pytest.mark.parametrize(
    ("spec", "replicas", "target"),
    [
        pytest.param(EXTERNAL, 3, 3, id="policy External: the role keeps the pods that it has"),
        pytest.param(GOODPUT, 3, 3, id="policy Goodput, blind: the role keeps them, too"),
        pytest.param(UNSIZED, 3, 1, id="no SLO: the minimum is the target in any case"),
    ],
)
def test_an_absent_replicas_holds(spec: dict[str, Any], replicas: int, target: int) -> None:
    model = without_replicas(running(spec, replicas))
    model.memory = LoopMemory()  # the operator was started anew
    planned = plan(model.snapshot())
    assert planned.draft.targets == {"colocated": target}
    assert ("Deployment", 1) not in scales(planned)
    if spec is EXTERNAL:
        assert planned.actions == ()


def test_an_absent_replicas_holds_over_a_rollout() -> None:
    """The new Deployment does not exist yet; the old one says how many pods the role has."""
    model = without_replicas(running(EXTERNAL, 3))
    model.memory = LoopMemory()
    model.edit(engine={"image": "engine:2"})
    planned = plan(model.snapshot())
    assert planned.draft.targets == {"colocated": 3}
    created = [action.obj for action in planned.actions if isinstance(action, Create)]
    assert [obj["spec"]["replicas"] for obj in created] == [1], "the first of three"
    model.converge()
    assert model.replicas("colocated") == 3


def test_a_serving_role_that_was_deleted_is_created_with_the_pods_that_run() -> None:
    model = running(EXTERNAL, 3)
    del model.children["ServingRole", "chat-colocated"]
    (create,) = plan(model.snapshot()).actions
    assert isinstance(create, Create)
    assert (create.obj["kind"], create.obj["spec"]["replicas"]) == ("ServingRole", 3)


@pytest.mark.parametrize(
    ("asked", "given", "bound"), [(0, 1, "min"), (1, 1, None), (4, 4, None), (9, 4, "max")]
)
def test_under_policy_external_the_bounds_of_the_spec_hold(
    asked: int, given: int, bound: str | None
) -> None:
    model = running(EXTERNAL, 2)
    model.scale_role("colocated", asked)
    planned = plan(model.snapshot())
    assert planned.draft.targets == planned.memory.targets == {"colocated": given}
    assert not any(action.kind == "ServingRole" for action in scaling(planned))
    told = [(event.reason, event.message, event.warning) for event in planned.events]
    assert [t for t in told if t[0] == "OutOfBounds"] == (
        []
        if bound is None
        else [
            (
                "OutOfBounds",
                f"ServingRole chat-colocated asks for {asked} replicas and gets {given}: "
                f"spec.roles.colocated.replicas.{bound} is {given}",
                True,
            )
        ]
    )


def scaling(planned: Plan) -> list[Scale]:
    return [action for action in planned.actions if isinstance(action, Scale)]


def test_a_serving_role_that_is_scaled_by_hand_goes_back_and_its_author_is_named() -> None:
    model = running(UNSIZED, 1)
    model.converge()
    model.scale_role("colocated", 3)
    planned = plan(model.snapshot())
    assert scaling(planned) == [Scale("ServingRole", "chat-colocated", 1)]
    (event,) = planned.events
    assert event.message == (
        "kubectl scaled ServingRole chat-colocated to 3; it was put back to 1. "
        "Set spec.autoscaling.policy to External to scale ServingRoles yourself"
    )
    assert event.warning
    assert event.after == {"Scale ServingRole/chat-colocated"}


def test_under_the_law_a_number_that_another_writer_put_in_gives_way_to_the_laws() -> None:
    """Blind, the law keeps what it last decided, not what the other writer asks for."""
    model = running(GOODPUT, 2)
    model.converge()
    model.scale_role("colocated", 4)
    assert plan(model.snapshot()).draft.targets == {"colocated": 2}


def test_after_a_restart_the_number_in_the_serving_role_is_the_only_one_known() -> None:
    model = running(GOODPUT, 2)
    model.converge()
    model.scale_role("colocated", 4)
    model.memory = LoopMemory()
    assert plan(model.snapshot()).draft.targets == {"colocated": 4}


def test_under_the_law_pods_are_removed_only_after_the_number_was_written_down() -> None:
    """Otherwise a successor would find the old number, and call the pods back."""
    model = running(GOODPUT, 3)
    model.converge()
    model.edit(roles={"colocated": {"replicas": {"min": 1, "max": 4}}}, slo=TARGETS)
    model.converge()
    model.edit(roles={"colocated": {"replicas": {"min": 4, "max": 4}}}, slo=TARGETS)
    first, second = scaling(plan(model.snapshot()))
    assert first == Scale("ServingRole", "chat-colocated", 4)
    assert (second.kind, second.replicas) == ("Deployment", 4)
    assert second.after == "Scale ServingRole/chat-colocated"


SUPPLIES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "no pod yet": ([], {"pending": 3}),
    "all serve": ([{}, {}, {}], {"ready": 3}),
    "more serve than are wanted": ([{}, {}, {}, {}], {"ready": 4}),
    "one starts": ([{}, {}, {"ready": False}], {"ready": 2, "pending": 1}),
    "one drains: it is no supply": (
        [{}, {}, {"draining": True}], {"ready": 2, "pending": 1, "draining": 1},
    ),
    "one fits on no node": (
        [{}, {}, {"ready": False, "unschedulable": "no node"}],
        {"ready": 2, "pending": 1, "unschedulable": 1},
    ),
    "one is being deleted: it does not drain, nor start": (
        [{}, {}, {"terminating": True, "draining": True}], {"ready": 2, "pending": 1},
    ),
    "one has ended": ([{}, {}, {"phase": "Failed"}], {"ready": 2, "pending": 1}),
    "one is of another revision, and serves": (
        [{}, {}, {"revision": "old"}], {"ready": 3, "old_pods": ("2",)},
    ),
    "one is of another role": ([{}, {}, {"role": "gateway"}], {"ready": 2, "pending": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "counts"), SUPPLIES.values(), ids=SUPPLIES)
def test_what_the_law_is_told_of_a_roles_pods(
    pods: list[dict[str, Any]], counts: dict[str, Any]
) -> None:
    """Of three wanted ones. Its pods have two GPUs each."""
    resources = {"gpu": 2}
    model = Model(fleet(roles={"colocated": {**WIDE["colocated"], "resources": resources}}))
    snapshot = model.snapshot()
    seen = tuple(
        Pod(str(n), str(n), **{"role": "colocated", "revision": snapshot.revision, **looks})
        for n, looks in enumerate(pods)
    )
    starts = {str(n): Start("colocated", float(n), snapshot.revision) for n in range(25)}
    starts["p"] = Start("prefill", 99.0, snapshot.revision)
    draft = replace(plan(snapshot).draft, memory=LoopMemory(starts=starts), rolling=True)
    supply = supply_of(replace(snapshot, pods=seen), draft, "colocated", 3)
    none = {"ready": 0, "pending": 0, "unschedulable": 0, "draining": 0}
    assert supply == RoleSupply(
        role="colocated",
        desired=3,
        **(none | counts),
        cold_starts_s=tuple(float(n) for n in range(5, 25)),  # the newest twenty
        gpus_per_replica=2,
        rolling=True,
        mixed=bool(counts.get("ready")),
        revision=snapshot.revision if counts.get("ready") else "",
    )


OLD, NEW = ("prefill old", "decode old"), ("prefill new", "decode new")
REVISIONS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "no new pod serves": (OLD, "old", False),
    "new pods of one role serve": ((*OLD, "decode new"), "old", False),
    "a new set serves": ((*OLD, *NEW), "new", True),
    "the old ones are gone": (NEW, "new", True),
    "two old revisions serve": ((*OLD, "prefill mid", "decode mid", *OLD), "old", True),
    "nothing serves": ((), "", False),
}


@pytest.mark.parametrize(("serving", "learnt", "mixed"), REVISIONS.values(), ids=REVISIONS)
def test_the_law_learns_the_old_revision_until_a_set_of_the_new_one_serves(
    serving: tuple[str, ...], learnt: str, mixed: bool
) -> None:
    snapshot = Model(fleet(mode="disaggregated")).snapshot()
    pods = tuple(
        Pod(str(n), str(n), role, snapshot.revision if age == "new" else age)
        for n, (role, age) in enumerate(map(str.split, serving))
    )
    draft = replace(plan(snapshot).draft, rolling=True)
    supply = supply_of(replace(snapshot, pods=pods), draft, "decode", 3)
    assert supply.revision == (snapshot.revision if learnt == "new" else learnt)
    assert supply.mixed is mixed
    learnt_from = {pod.name for pod in pods if pod.role == "decode"} - set(supply.old_pods)
    assert learnt_from == {
        pod.name for pod in pods if (pod.role, pod.revision) == ("decode", supply.revision)
    }


def test_what_the_law_is_told_of_the_users_goals() -> None:
    model = fleet(
        mode="disaggregated",
        roles={
            "prefill": {"replicas": {"min": 1, "max": 5}},
            "decode": {"replicas": {"min": 2, "max": 7}},
        },
        slo={
            "ttft": {"target": "2s"},
            "tpot": {"target": "50ms"},
            "attainment": "97%",
        },
        metrics={"scrapeInterval": "7s", "rateWindow": "70s"},
        autoscaling={
            "interval": "20s",
            "scaleUp": {"stabilization": "3s", "maxStepPercent": 150, "maxStepPods": 6},
            "scaleDown": {"stabilization": "400s", "maxStepPods": 2},
            "coldStart": "90s",
            "gpuBudget": {"max": 11},
        },
    )
    goals = goals_of(model.spec)
    assert replace(goals, prior=None) == Goals(
        mode="disaggregated",
        roles=(RoleGoal("prefill", 1, 5), RoleGoal("decode", 2, 7)),
        slo=SLO(ttft_s=2.0, tpot_s=0.05, attainment=0.97),
        windows=Windows(
            scrape_s=7.0,
            rate_s=70.0,
            interval_s=20.0,
            up_hold_s=3.0,
            down_hold_s=400.0,
            cold_start_s=90.0,
        ),
        steps=StepLimits(up_percent=150, up_pods=6, down_pods=2),
        gpu_budget=11,
        policy="Goodput",
        serving=Serving(order="deadline", step_tokens=2048, sequences=256),
    )
    assert goals.prior is not None, "the simulator's profile of the model"


@pytest.mark.parametrize(
    ("policy", "sizes"), [("Goodput", "Goodput"), ("None", "None"), ("External", "Goodput")]
)
def test_without_an_slo_the_law_has_no_goal_under_any_policy(policy: str, sizes: str) -> None:
    goals = goals_of(fleet(autoscaling={"policy": policy}).spec)
    assert (goals.slo, goals.policy) == (None, sizes)


MODES: dict[str, Any] = {
    "roles": {role: {"replicas": {"min": 1, "max": 4}} for role in ("prefill", "decode")} | WIDE,
    "autoscaling": {"policy": "External"},
}


def there_and_back(policy: str, *, by_hand: bool) -> Model:
    """The mode changes, its pods change, and the mode changes back."""
    model = converged(**{**MODES, "autoscaling": {"policy": policy}})
    if by_hand:
        model.scale_role("colocated", 3)
    model.converge()
    model.edit(mode="disaggregated")
    model.converge()
    assert model.replicas("colocated") == 0
    return model


def test_an_external_number_survives_a_change_of_the_mode_and_back() -> None:
    model = there_and_back("External", by_hand=True)
    model.memory = LoopMemory()  # the operator was started anew
    model.edit(mode="colocated")
    model.converge()
    assert model.replicas("colocated") == 3
    assert ("ServingRole", "chat-prefill") not in model.children


@pytest.mark.parametrize(("policy", "by_hand"), [("External", False), ("None", True)])
def test_a_number_of_the_operator_leaves_with_its_role(policy: str, by_hand: bool) -> None:
    model = there_and_back(policy, by_hand=by_hand)
    assert ("ServingRole", "chat-colocated") not in model.children


def test_a_gpu_type_without_a_profile_is_judged_by_what_is_known_of_the_model() -> None:
    own = {
        "prefillBaseMs": "10", "perPromptTokenMs": "0.1", "decodeBaseMs": "9",
        "perSequenceMs": "0.1", "perContextTokenMs": "0.0001",
    }  # fmt: skip
    types = [
        {"name": "h100", "costPerHour": "4", "nodeSelector": {"gpu": "h100"}},
        {"name": "a100", "costPerHour": "2", "nodeSelector": {"gpu": "a100"}, "profile": own},
    ]
    roles = {"colocated": {"gpuTypes": ["h100", "a100"]}}
    spec = fleet(model={"uri": "sim://opt-13b-a100"}, gpuTypes=types, roles=roles).spec
    h100, a100 = offers_of(spec)["colocated"]
    assert h100.profile == PRESETS["opt-13b-a100"]
    assert a100.profile is not None
    assert a100.profile.decode_base_s == 0.009
