"""`kubectl wait --for=condition=RolledOut` after an edit returns when the edit is in effect."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.model import Model, condition, converged

PAIR = {role: {"replicas": {"min": 1, "max": 4}} for role in ("prefill", "decode", "colocated")}
EDITS: tuple[Mapping[str, Any], ...] = (
    {"engine": {"image": "engine:2"}},
    {"engine": {"image": "engine:3"}},
    {"engine": {"env": [{"name": "A", "value": "1"}]}},
    {"mode": "disaggregated"},
    {"mode": "colocated"},
    {"roles": {"colocated": {"replicas": {"min": 3, "max": 4}}}},
    {"roles": PAIR},
    {"routing": {"replicas": 3}},
    {"routing": {"maxQueue": 50}},
    {"slo": {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}},
    {"autoscaling": {"policy": "None"}},
    {"security": {"networkPolicy": False}},
)
LONGEST = 120


def kubectl_would_return(model: Model, kind: str) -> bool:
    """What kubectl looks at: a condition of an older generation is not there yet."""
    found = [c for c in model.fleet.status.conditions if c.type == kind]
    return any(
        c.status == "True" and (c.observed_generation or 0) >= model.fleet.metadata.generation
        for c in found
    )


def lie(model: Model) -> str:
    """What is not as the spec asks, "" for a fleet that is."""
    snapshot = model.snapshot()
    spec = model.fleet.spec
    engines = [pod for pod in snapshot.pods if pod.role != "gateway"]
    if others := [pod.name for pod in engines if pod.revision != snapshot.revision]:
        return f"pods of before: {others}"
    for role, settings in spec.active_roles():
        if sum(pod.serving for pod in snapshot.current(role)) < settings.replicas.min:
            return f"{role} has too few pods"
    if sum(pod.serving for pod in snapshot.pods if pod.role == "gateway") < spec.routing.replicas:
        return "too few gateways"
    return ""


def wait(model: Model) -> None:
    """Rounds until kubectl would return."""
    for _ in range(LONGEST):
        if kubectl_would_return(model, "RolledOut"):
            return
        model.round()
        model.tick()
    raise AssertionError(condition(model, "RolledOut"))


@given(st.lists(st.sampled_from(EDITS), min_size=1, max_size=6))
def test_what_a_pipeline_waits_for_is_in_effect_when_the_wait_ends(
    edits: list[Mapping[str, Any]],
) -> None:
    model = converged()
    for edit in edits:
        model.edit(**edit)
        assert not kubectl_would_return(model, "RolledOut")
        wait(model)
        assert lie(model) == ""


def test_ready_answers_another_question() -> None:
    """The fleet goes on answering while its pods are replaced."""
    model = converged()
    model.edit(engine={"image": "engine:2"})
    model.round()
    assert kubectl_would_return(model, "Ready")
    assert lie(model) != ""
    assert not kubectl_would_return(model, "RolledOut")


def test_a_fleet_that_scales_stays_rolled_out() -> None:
    model = converged(autoscaling={"policy": "External"}, roles=PAIR)
    model.scale_role("colocated", 4)
    for _ in range(8):
        model.round()
        assert condition(model, "RolledOut").status == "True"
        assert condition(model, "Reconciling").status == "False"
        model.tick()
    assert len([pod for pod in model.pods.values() if pod.role == "colocated"]) == 4
