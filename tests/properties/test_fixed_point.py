"""A fleet converges after any edits and any crash of the operator, and no answer is cut off."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_operator.core.snapshot.objects import owner_of_replicas
from tests.support.model import Model, fleet

pytestmark = pytest.mark.slow

EXTERNAL = {"autoscaling": {"policy": "External"}}
WIDE = {"replicas": {"min": 1, "max": 4}}
ROLES = {"prefill": WIDE, "decode": WIDE, "colocated": WIDE}

changes = st.lists(
    st.one_of(
        st.tuples(st.just("mode"), st.sampled_from(["colocated", "disaggregated"])),
        st.tuples(st.just("scale"), st.integers(1, 4)),
        st.tuples(st.just("engine"), st.sampled_from(["engine:1", "engine:2"])),
        st.tuples(st.just("busy"), st.integers(1, 5)),
        st.tuples(st.just("ticks"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.integers(0, 6)),
    ),
    max_size=8,
)


def carry_out(model: Model, what: str, value: int | str) -> None:
    match what:
        case "mode":
            model.edit(mode=value)
        case "scale":
            for role, _ in model.fleet.spec.active_roles():
                if ("ServingRole", f"chat-{role}") in model.children:
                    model.scale_role(role, int(value))
        case "engine":
            model.edit(engine={"image": value})
        case "busy":
            for uid, pod in model.pods.items():
                if pod.serving and uid not in model.draining:
                    model.requests[uid] = int(value)
        case "ticks":
            for _ in range(int(value)):
                model.round()
                model.tick()
        case "crash":
            model.round(crash_after=int(value))


@settings(max_examples=40, deadline=None)
@given(changes)
def test_the_fleet_converges_and_then_nothing_is_written(story: list) -> None:
    model = Model(fleet(roles=ROLES, **EXTERNAL))
    for what, value in story:
        carry_out(model, what, value)
    model.converge()
    before = model.fleet.status
    for _ in range(3):
        model.tick()
        assert model.round().actions == ()
    assert model.fleet.status == before
    assert model.lost == 0


@settings(max_examples=15, deadline=None)
@given(changes)
def test_the_end_depends_on_the_spec_and_not_on_the_way(story: list) -> None:
    model = Model(fleet(roles=ROLES, **EXTERNAL))
    for what, value in story:
        carry_out(model, what, value)
    model.converge()
    wanted = {obj["metadata"]["name"] for obj in model.snapshot().engines.values()}
    there = {n for kind, n in model.children if kind == "Deployment" and n != "chat-gateway"}
    assert there == wanted
    for role, _ in model.fleet.spec.active_roles():
        handle = model.children["ServingRole", f"chat-{role}"]
        assert model.replicas(role) == handle["spec"]["replicas"]
    active = {f"chat-{role}" for role, _ in model.fleet.spec.active_roles()}
    roles = {n: role for (kind, n), role in model.children.items() if kind == "ServingRole"}
    assert roles.keys() >= active
    assert all(owner_of_replicas(roles[name]) == "kubectl" for name in roles.keys() - active)
