"""The replacement of a pod whose handovers fail: its writes in their order, and when it may be."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot.actions import (
    AnnotatePod,
    AnnotateRole,
    HastenDrain,
    Scale,
    TakeWorkAgain,
    key_of,
)
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import FailingPair, Handovers
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.recycling import Last
from tests.support.model import Model, converged

RECYCLE, RECYCLED = "serving.argosy.dev/recycle", "serving.argosy.dev/recycled"
SPLIT: dict[str, Any] = {
    "mode": "disaggregated",
    "roles": {role: {"replicas": {"min": 2, "max": 4}} for role in ("prefill", "decode")},
    "autoscaling": {"policy": "External"},
}


def names_of(model: Model, role: str) -> list[str]:
    return sorted(pod.name for pod in model.pods.values() if pod.role == role)


def blame(model: Model, sick: str) -> None:
    """The gateways say that this pod fails with all its partners, which work with others."""
    role = model.pods[sick].role
    partners = names_of(model, "decode" if role == "prefill" else "prefill")
    ends = [(sick, name) if role == "prefill" else (name, sick) for name in partners]
    rows = {FailingPair(p, d, "silent", 3, since_s=70.0, last_s=5.0) for p, d in ends}
    model.handovers = Handovers(frozenset(rows), dict.fromkeys(partners, 1.0))


def sick_fleet(role: str = "prefill", **spec: Any) -> tuple[Model, str]:
    model = converged(**{**SPLIT, **spec})
    sick = names_of(model, role)[0]
    blame(model, sick)
    return model, sick


def step(planned: Plan) -> tuple[str, str]:
    found = next(s for s in planned.draft.steps if s.name == "recycle_pods")
    return str(found.reason), found.message


def noted(model: Model, role: str = "prefill") -> str | None:
    meta = model.children["ServingRole", f"chat-{role}"]["metadata"]
    return meta.get("annotations", {}).get(RECYCLED)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_writes_of_a_replacement_in_their_order(role: str) -> None:
    model, sick = sick_fleet(role)
    began_at = model.now
    deployment = model.pods[sick].owner
    chosen = model.round()
    note, mark = chosen.actions
    handle = model.children["ServingRole", f"chat-{role}"]["metadata"]
    first = {RECYCLED: f"{rfc3339(began_at)} 1"}
    assert note == AnnotateRole(f"chat-{role}", handle["uid"], first)
    assert mark == AnnotatePod(sick, sick, {RECYCLE: rfc3339(began_at)}, key_of(note))
    (event,) = chosen.events
    assert (event.reason, event.warning, event.after) == ("Recycled", True, {key_of(mark)})
    assert event.message.startswith(f"{role} pod {sick}: for 65 s no KV cache got ")
    assert event.message.endswith(". It is replaced")
    assert model.round().actions == (Scale("Deployment", deployment, 3),)
    model.tick()
    model.requests[sick] = 3
    waits = model.round()
    assert (waits.actions, step(waits)) == (
        (),
        ("Recycling", f"1 of 2 other {role} pods serve; then {sick} goes"),
    )
    model.tick(2)
    drains = model.round()
    marked, hastened = drains.actions
    assert isinstance(marked, AnnotatePod)
    assert marked.name == sick
    assert isinstance(hastened, HastenDrain)
    assert step(drains) == ("Recycling", f"2 other {role} pods serve; {sick} goes")
    model.converge()
    assert model.lost == 0
    assert len(names_of(model, role)) == 2
    assert sick not in model.pods
    assert noted(model, role) == f"{rfc3339(began_at)} 1"
    model.handovers = Handovers()
    assert model.round().actions == ()
    assert step(model.round()) == ("NothingToRecycle", "failing pairs: 0")


def test_a_fleet_in_which_all_fails_with_all_loses_no_pod() -> None:
    model, _ = sick_fleet()
    pairs = [(p, d) for p in names_of(model, "prefill") for d in names_of(model, "decode")]
    rows = {FailingPair(p, d, "silent", 7, since_s=600.0, last_s=5.0) for p, d in pairs}
    model.handovers = Handovers(frozenset(rows))
    planned = model.round()
    assert planned.actions == ()
    assert step(planned) == ("NothingToRecycle", "failing pairs: 4")
    assert planned.wake_s == 15.0, "gateways report no event"


def test_one_pod_at_a_time() -> None:
    model, sick = sick_fleet()
    other = names_of(model, "decode")[0]
    model.round()
    blame(model, other)
    for _ in range(4):
        model.tick()
        model.round()
        assert [pod.name for pod in model.pods.values() if pod.recycled_at] in ([sick], [])
    model.converge()
    assert other in model.pods


def test_the_next_one_may_be_after_five_minutes_then_after_ten() -> None:
    model, _ = sick_fleet()
    for number, pause_s in ((1, 300.0), (2, 600.0), (3, 1200.0)):
        began_at = model.now
        model.round()
        assert noted(model) == f"{rfc3339(began_at)} {number}"
        model.converge()
        blame(model, names_of(model, "prefill")[0])
        model.now = began_at + pause_s - 1
        waits = model.round()
        assert waits.actions == ()
        assert step(waits)[0] == "RecycleWaits"
        assert step(waits)[1].endswith(". The next replacement may be in 1 s")
        model.now = began_at + pause_s


def test_a_new_operator_remembers_the_pause_and_goes_on_with_the_pod() -> None:
    model, sick = sick_fleet()
    model.round()
    model.memory = LoopMemory()
    model.handovers = Handovers()  # new gateways know nothing either
    (scale,) = model.round().actions
    assert isinstance(scale, Scale)
    for _ in range(10):
        model.memory = LoopMemory()
        model.round()
        model.tick()
    assert sick not in model.pods
    blame(model, names_of(model, "prefill")[0])
    model.memory = LoopMemory()
    assert step(model.round())[0] == "RecycleWaits"


def test_a_row_ends_when_the_fleet_was_well_for_as_long_as_the_pause() -> None:
    assert Last(0.0, 1).next(599.9) == Last(599.9, 2)
    assert Last(0.0, 1).next(600.0) == Last(600.0, 1)
    assert Last(0.0, 3).next(2399.0) == Last(2399.0, 4)
    assert Last(0.0, 3).next(2400.0) == Last(2400.0, 1)


def test_the_pause_doubles_up_to_a_day() -> None:
    pauses = [Last(0.0, number).pause_s for number in (1, 2, 9, 10, 99)]
    assert pauses == [300.0, 600.0, 76_800.0, 86_400.0, 86_400.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon 1",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z 0",
        pytest.param(f"2026-01-01T00:00:00Z {'9' * 5000}", id="too many digits"),
    ],
)
def test_a_note_that_cannot_be_read_is_none(text: str) -> None:
    model, _ = sick_fleet()
    model.children["ServingRole", "chat-prefill"]["metadata"]["annotations"] = {RECYCLED: text}
    began_at = model.now
    model.round()
    assert noted(model) == f"{rfc3339(began_at)} 1"


def waits(model: Model) -> str:
    planned = model.round()
    assert not any(isinstance(action, AnnotateRole) for action in planned.actions)
    reason, message = step(planned)
    assert reason == "RecycleWaits"
    return message.rpartition(". It stays: ")[2]


def test_no_pod_is_replaced_during_a_rollout() -> None:
    model, _ = sick_fleet()
    model.edit(engine={"image": "engine:2"})
    model.round()
    model.handovers = Handovers()
    model.tick()
    blame(model, next(p.name for p in model.pods.values() if p.role == "prefill"))
    planned = model.round()
    assert planned.draft.rolling
    assert step(planned)[0] == "NothingToRecycle", "pods of the old revision go anyway"


def test_no_pod_is_replaced_while_another_one_drains() -> None:
    model = converged(**SPLIT)
    model.scale_role("decode", 3)
    model.converge()
    model.requests = dict.fromkeys(names_of(model, "decode"), 9)
    model.scale_role("decode", 2)
    model.round()
    model.round()
    blame(model, names_of(model, "prefill")[0])
    assert waits(model) == "another pod drains"


def test_no_pod_is_replaced_while_the_number_of_its_role_changes() -> None:
    model, _ = sick_fleet()
    model.scale_role("prefill", 3)
    assert waits(model) == "the number of prefill pods changes"


def test_a_replacement_that_began_waits_while_another_pod_changes_its_role() -> None:
    model = converged(**{**SPLIT, "autoscaling": {"policy": "External", "roleFlip": True}})
    sick, flipped = names_of(model, "prefill")
    pods = model.pods
    pods[sick] = replace(pods[sick], recycled_at=model.now)
    pods[flipped] = replace(pods[flipped], role="decode", flipped_at=model.now)
    assert step(model.round()) == ("RecycleWaits", f"{sick} stays: a pod changes its role")


def test_no_pod_is_replaced_while_another_one_of_its_role_does_not_serve() -> None:
    model = converged(**SPLIT)
    model.scale_role("prefill", 3)
    model.converge()
    sick, _, third = names_of(model, "prefill")
    blame(model, sick)
    model.pods[third] = replace(model.pods[third], ready=False)
    assert waits(model) == "the other prefill pods do not all serve"


def test_the_only_pod_of_a_role_stays() -> None:
    one = {role: {"replicas": {"min": 1, "max": 4}} for role in ("prefill", "decode")}
    model = converged(**{**SPLIT, "roles": one})
    model.scale_role("decode", 2)
    model.converge()
    blame(model, names_of(model, "prefill")[0])
    assert waits(model) == "the other prefill pods do not all serve"


def test_of_two_sick_pods_the_one_that_may_be_replaced_is() -> None:
    three = {role: {"replicas": {"min": 3, "max": 4}} for role in ("prefill", "decode")}
    model = converged(**{**SPLIT, "roles": three})
    prefills, decodes = names_of(model, "prefill"), names_of(model, "decode")
    blame(model, decodes[0])
    rows = model.handovers.failing
    blame(model, prefills[0])
    sound = dict.fromkeys([*prefills[1:], *decodes[1:]], 1.0)
    model.handovers = Handovers(rows | model.handovers.failing, sound)
    assert step(plan(model.snapshot()))[1].startswith(f"decode pod {decodes[0]}: "), "by name"
    model.scale_role("decode", 4)
    model.round()
    assert [pod.name for pod in model.pods.values() if pod.recycled_at] == [prefills[0]]


def test_a_pod_whose_replacement_does_not_serve_in_time_stays() -> None:
    model, sick = sick_fleet()
    deployment = model.pods[sick].owner
    model.round()
    model.round()
    model.broken_roles = frozenset({"prefill"})
    began_at = model.now
    model.tick()
    model.now = began_at + 599
    late = model.round()
    assert late.actions == ()
    assert late.wake_s <= 1.0
    model.now = began_at + 600
    given_up = model.round()
    assert given_up.actions == (AnnotatePod(sick, sick, {RECYCLE: None}),)
    assert given_up.wake_s == 0.0
    assert step(given_up) == ("RecycleGivenUp", f"1 of 2 other prefill pods serve; {sick} stays")
    (lowered,) = model.round().actions
    assert isinstance(lowered, Scale)
    assert (lowered.name, lowered.replicas) == (deployment, 2)
    model.tick()
    assert sick in model.pods
    assert len(names_of(model, "prefill")) == 2
    model.handovers = Handovers()
    assert step(model.round())[0] == "NothingToRecycle"


def test_the_pod_takes_work_again_if_another_one_fails_while_it_drains() -> None:
    model, sick = sick_fleet()
    model.requests[sick] = 50
    model.round()
    model.round()
    model.tick()
    model.tick(3)
    model.round()
    assert model.pods[sick].victim
    other = next(name for name in names_of(model, "prefill") if name != sick)
    model.pods[other] = replace(model.pods[other], ready=False)
    back = model.round()
    assert [type(action) for action in back.actions] == [AnnotatePod, TakeWorkAgain]
    assert model.pods[sick].serving
    assert model.pods[sick].recycled_at is not None
    model.tick()
    model.converge()
    assert sick not in model.pods
    assert model.lost == 0


def test_a_role_that_shrinks_loses_the_sick_pod() -> None:
    model = converged(**SPLIT)
    model.scale_role("prefill", 3)
    model.converge()
    sick = names_of(model, "prefill")[0]
    blame(model, sick)
    model.round()
    model.scale_role("prefill", 2)
    (mark, _) = model.round().actions
    assert isinstance(mark, AnnotatePod)
    assert mark.name == sick
    model.converge()
    assert len(names_of(model, "prefill")) == 2
    assert sick not in model.pods


def test_a_pod_of_the_new_revision_stays_until_the_rollout_is_over() -> None:
    model = converged(**SPLIT, rollout={"strategy": "BlueGreen"})
    model.edit(engine={"image": "engine:2"})
    for _ in range(4):
        model.round()
        model.tick()
    current = [p.name for p in model.snapshot().current("prefill")]
    blame(model, current[0])
    assert waits(model) == "a rollout is in progress"
