"""A revision is refused: another one of the history runs in its place, until the spec changes."""

from collections.abc import Mapping
from typing import Any

import pytest

from argosy_operator.api.v1alpha1.status import RefusedStatus
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.support.model import Model, condition, converged

WIDE = {"replicas": {"min": 2, "max": 8}}
PAIRS: dict[str, Any] = {"mode": "disaggregated", "roles": {"prefill": WIDE, "decode": WIDE}}
KIND = "ControllerRevision"


def history(model: Model) -> list[str]:
    """The revisions in it, the newest first."""
    past = [child for (kind, _), child in model.children.items() if kind == KIND]
    past.sort(key=lambda child: -child["revision"])
    return [child["metadata"]["labels"]["serving.argosy.dev/revision"] for child in past]


def runs(model: Model) -> set[str]:
    """The revisions that have engine pods."""
    return {pod.revision for pod in model.pods.values() if pod.role != "gateway"}


def refused(model: Model, by: str, why: str = "it is slow") -> None:
    """Mark the spec's revision, as a person does."""
    asked = model.snapshot().asked
    mark = RefusedStatus(
        revision=asked, reason="Undone", message=why, since="2026-01-01T00:00:00Z", runs=by
    )
    model.refuse(mark)


def edited(of: Model, **spec: Any) -> str:
    """The revision of an edit that was rolled out."""
    of.edit(**spec)
    of.converge()
    return str(of.fleet.status.revision)


def two(**first: Any) -> tuple[Model, str, str]:
    """A fleet with two revisions behind it, of which the second runs."""
    model = converged(**PAIRS, **first)
    old = str(model.fleet.status.revision)
    return model, old, edited(model, engine={"image": "engine:2"})


def test_a_revision_enters_the_history_when_its_pods_are_alone_and_serve() -> None:
    model, old, new = two()
    assert history(model) == [new, old]
    model.edit(engine={"image": "engine:3"})
    for _ in range(60):
        model.round()
        model.tick()
        assert len(history(model)) == (2 if model.fleet.status.rollout else 3)
        if condition(model, "RolledOut").status == "True":
            break
    assert len(history(model)) == 3


def test_a_revision_that_comes_back_is_the_newest_again() -> None:
    model, _, new = two()
    assert edited(model, engine={"image": "engine:1"}) != new
    assert edited(model, engine={"image": "engine:2"}) == new
    assert history(model)[0] == new
    assert len(history(model)) == len(set(history(model)))


def test_the_history_has_ten_revisions_and_never_loses_the_one_that_runs() -> None:
    model = converged()
    first = str(model.fleet.status.revision)
    for number in range(2, 14):
        edited(model, engine={"image": f"engine:{number}"})
    assert len(history(model)) == 10
    assert first not in history(model)
    oldest = history(model)[-1]
    refused(model, oldest)
    model.converge()
    assert history(model)[0] == oldest
    assert len(history(model)) == 10


def test_a_refused_revision_gives_its_place_to_that_of_the_history_and_loses_nothing() -> None:
    model, old, new = two()
    model.requests = dict.fromkeys((u for u, p in model.pods.items() if p.role != "gateway"), 5)
    refused(model, old)
    model.round()
    assert condition(model, "RolledOut").reason == "RollingOut"
    assert condition(model, "Reconciling").status == "True"
    assert condition(model, "Stalled").status == "False"
    assert "it is slow" in condition(model, "RolledOut").message
    model.converge()
    assert runs(model) == {old} == {model.fleet.status.revision}
    assert model.lost == 0
    assert history(model)[0] == old
    said = condition(model, "RolledOut")
    assert (said.status, said.reason) == ("False", "RolledBack")
    assert all(word in said.message for word in (new, old, "it is slow", "promote chat"))
    assert (condition(model, "Stalled").status, condition(model, "Stalled").reason) == (
        "True", "RolledBack",
    )  # fmt: skip
    assert condition(model, "Reconciling").status == "False"
    assert condition(model, "Ready").status == "True"
    assert model.round().actions == ()


def test_what_changes_without_new_pods_follows_the_spec_while_its_revision_is_refused() -> None:
    model, old, _ = two()
    refused(model, old)
    model.converge()
    wider = {"replicas": {"min": 3, "max": 8}}
    model.edit(roles={"prefill": wider, "decode": wider}, routing={"replicas": 3})
    model.converge()
    assert runs(model) == {old}
    assert (model.replicas("prefill"), model.replicas("gateway")) == (3, 3)
    assert model.fleet.status.observed_generation == model.fleet.metadata.generation
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    model.edit(slo=slo)
    assert model.snapshot().fleet.spec.slo == model.fleet.spec.slo
    model.edit(slo=None)
    assert model.snapshot().fleet.spec.slo is None
    assert model.snapshot().revision == old


def test_a_refusal_ends_when_the_spec_asks_for_another_revision() -> None:
    model, old, new = two()
    refused(model, old)
    model.converge()
    newer = edited(model, engine={"image": "engine:3"})
    assert newer not in (old, new)
    assert runs(model) == {newer}
    assert model.fleet.status.refused is None
    assert condition(model, "RolledOut").status == "True"
    assert edited(model, engine={"image": "engine:2"}) == new, "it may be asked for again"


def test_a_spec_that_goes_back_by_itself_ends_the_refusal_and_keeps_the_pods() -> None:
    model, old, _ = two()
    refused(model, old)
    model.converge()
    pods = set(model.pods)
    model.edit(engine={"image": "engine:1"})
    model.converge()
    assert set(model.pods) == pods
    assert model.fleet.status.refused is None


def test_a_refusal_outlives_the_operator_and_its_images_and_templates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, old, _ = two()
    refused(model, old)
    model.converge()
    pods = set(model.pods)
    model.memory = LoopMemory()
    monkeypatch.setattr("argosy_operator.core.snapshot.snapshot.TEMPLATE", 99)
    model.converge()
    assert set(model.pods) == pods
    assert model.fleet.status.refused is not None


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "colocated"},
        {"model": {"uri": "sim://llama-2-7b-a100"}},
        {"engine": {"args": ["--seed=3"]}},
        {"security": {"verifyPeers": False}},
        {"kvTransfer": {"timeout": "7s"}},
        {"template": {"spec": {"nodeSelector": {"pool": "two"}}}},
        {"autoscaling": {"roleFlip": True}},
        {"roles": {"prefill": {**WIDE, "resources": {"cpu": "2"}}, "decode": WIDE}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_the_edit_was_the_revision_of_before_comes_back(change: Mapping[str, Any]) -> None:
    model = converged(**PAIRS)
    old = str(model.fleet.status.revision)
    new = edited(model, **change)
    assert new != old
    refused(model, old)
    model.converge()
    assert runs(model) == {old}
    assert condition(model, "RolledOut").reason == "RolledBack"
    assert condition(model, "Ready").status == "True"


def test_a_rollout_that_is_under_way_turns_back() -> None:
    model, _, old = two()
    model.edit(engine={"image": "engine:3"})
    for _ in range(4):
        model.round()
        model.tick()
    before = {uid for uid, pod in model.pods.items() if pod.revision == old}
    assert len(runs(model)) == 2
    refused(model, old)
    model.converge()
    assert runs(model) == {old}
    assert before <= set(model.pods)


def test_undone_twice_it_runs_the_revision_before() -> None:
    model, oldest, old = two()
    edited(model, engine={"image": "engine:3"})
    refused(model, old)
    model.converge()
    refused(model, oldest)
    model.converge()
    assert runs(model) == {oldest}


def test_a_refusal_that_is_taken_away_has_the_revision_tried_again() -> None:
    model, old, new = two()
    refused(model, old)
    model.converge()
    model.refuse(None)
    model.converge()
    assert runs(model) == {new}
    assert condition(model, "RolledOut").status == "True"


@pytest.mark.parametrize(
    "mark",
    [
        {},
        {"revision": "no such one"},
        {"revision": "ASKED"},
        {"revision": "ASKED", "inputs": "of something else"},
        {"revision": "ASKED", "since": "yesterday", "runs": "../../etc", "reason": "\n"},
    ],
    ids=str,
)
def test_a_mark_that_means_nothing_is_taken_away_and_said_to_be(mark: dict[str, str]) -> None:
    model = converged(**PAIRS)  # its history has nothing else to run
    asked, pods = str(model.fleet.status.revision), set(model.pods)
    found = {key: asked if value == "ASKED" else value for key, value in mark.items()}
    model.refuse(RefusedStatus.model_validate(found))
    planned = model.round()
    assert [event.reason for event in planned.events] == ["RefusalDropped"]
    assert model.fleet.status.refused is None
    model.converge()
    assert set(model.pods) == pods
    assert condition(model, "RolledOut").status == "True"


def test_a_revision_that_the_history_has_lost_is_replaced_by_the_newest_other_one() -> None:
    model, oldest, old = two()
    edited(model, engine={"image": "engine:3"})
    del model.children[KIND, f"chat-{old}"]
    refused(model, old)
    model.converge()
    assert runs(model) == {oldest}
    assert model.fleet.status.refused is not None
    assert model.fleet.status.refused.runs == oldest


@pytest.mark.parametrize("data", [None, {}, {"spec": 7}, {"spec": {"mode": "sideways"}}, 3])
def test_a_revision_that_cannot_be_read_is_never_run(data: Any) -> None:
    model, old, new = two()
    model.children[KIND, f"chat-{old}"]["data"] = data
    refused(model, old)
    model.converge()
    assert runs(model) == {new}
    model.children[KIND, f"chat-{new}"]["data"] = data
    model.converge()
    assert model.children[KIND, f"chat-{new}"]["data"] != data, "that which runs is written anew"


def test_of_a_strangers_history_nothing_is_run_or_removed() -> None:
    model, old, _ = two()
    model.children[KIND, f"chat-{old}"]["metadata"]["ownerReferences"] = []
    refused(model, old)
    model.converge()
    assert old not in runs(model)
    assert (KIND, f"chat-{old}") in model.children


def test_a_paused_fleet_keeps_its_pods_whatever_is_refused() -> None:
    model, old, new = two()
    model.edit(paused=True)
    refused(model, old)
    for _ in range(5):
        assert model.round().actions == ()
        model.tick()
    assert runs(model) == {new}
    model.edit(paused=False)
    model.converge()
    assert runs(model) == {old}
