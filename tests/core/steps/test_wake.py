"""When a fleet is looked at again: soon where something is due, never in a tight loop."""

from dataclasses import replace

from argosy_operator.core.plan import conclude, plan
from argosy_operator.core.snapshot.actions import Apply, ErrorKind, Outcome
from argosy_operator.core.snapshot.snapshot import Snapshot
from tests.support.model import START_S, Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}


def overdue(model: Model) -> Snapshot:
    """The scaling law is due and Prometheus was not asked, as for a paused fleet."""
    model.memory = replace(model.memory, decide_at=0.0)
    return replace(model.snapshot(), metrics=None)


def test_a_paused_fleet_with_an_slo_rests() -> None:
    model = Model(fleet(slo=SLO))
    model.converge()
    model.edit(paused=True)
    assert plan(overdue(model)).wake_s >= 60


def test_a_paused_fleet_that_would_shrink_rests() -> None:
    model = Model(fleet(roles=WIDE, autoscaling={"policy": "External"}))
    model.converge()
    model.scale_role("colocated", 3)
    model.converge()
    model.scale_role("colocated", 1)
    model.edit(paused=True)
    assert plan(model.snapshot()).wake_s >= 60


def test_a_fleet_whose_deployment_cannot_be_created_is_not_tried_without_a_pause() -> None:
    """Its name is taken, or a webhook says no: the round itself succeeds every time."""
    model = Model(fleet(slo=SLO))
    assert plan(model.snapshot()).wake_s >= 1


def test_the_law_wakes_its_fleet_when_it_is_due() -> None:
    model = Model(fleet(slo=SLO))
    model.converge()
    model.memory = replace(model.memory, decide_at=model.now + 7)
    assert plan(model.snapshot()).wake_s == 7


EVERY_DAY_AT_TWO = {
    "policy": "None",
    "schedules": [
        {
            "name": "day",
            "start": "0 14 * * *",  # the model's time is 13:46:40
            "duration": "1h",
            "roles": {"colocated": {"min": 3}},
        }
    ],
}


def test_a_schedule_wakes_its_fleet_when_replicas_must_start_for_it() -> None:
    model = Model(fleet(roles=WIDE, autoscaling=EVERY_DAY_AT_TWO))
    model.converge()
    opens_s, ahead_s = 1_000_000 + 800, START_S + 15  # a measured start and one interval
    model.now = opens_s - ahead_s - 200
    asleep = plan(model.snapshot())
    assert asleep.wake_s == 200
    assert asleep.draft.targets == {"colocated": 1}
    model.now = opens_s - ahead_s
    assert plan(model.snapshot()).draft.targets == {"colocated": 3}
    model.now = opens_s + 3599
    assert plan(model.snapshot()).draft.targets == {"colocated": 3}
    assert plan(model.snapshot()).wake_s == 1
    model.now = opens_s + 3600
    assert plan(model.snapshot()).draft.targets == {"colocated": 1}


def test_a_name_that_a_strangers_object_with_our_label_holds_is_looked_up_again_soon() -> None:
    model = Model(fleet())
    stranger = {"name": "chat", "uid": "x", "labels": {}}
    model.children["Service", "chat"] = {"kind": "Service", "metadata": stranger, "spec": {}}
    model.converge()
    assert 1 <= plan(model.snapshot()).wake_s <= 30


def test_a_name_that_was_found_taken_is_looked_up_again_within_half_a_minute() -> None:
    """The stranger's object has none of our labels: no list shows it and no watch tells that it was
    deleted."""
    model = Model(fleet())
    model.converge()
    del model.children["Service", "chat"]
    s = model.snapshot()
    p = plan(s)
    service = next(a for a in p.actions if isinstance(a, Apply) and a.obj["kind"] == "Service")
    again = conclude(s, p, (Outcome(service, ErrorKind.FOREIGN, "has another owner"),))
    assert 1 <= again.wake_s <= 30
