"""`kubectl wait --for=condition=RolledOut` after an edit returns when the edit is in effect."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.steps.children import LOOK_S, UNHEARD_S
from tests.support.model import READ_S, Model, condition, converged, fleet

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
    {"model": {"uri": "sim://opt-13b-a100", "servedNames": ["chat", "org/chat"]}},
    {"slo": {"ttft": {"target": "2s"}, "tpot": {"target": "60ms"}}},
    {"drain": {"timeout": "90s"}},
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
    asked = model.settings_of_gateways()
    gateways = [pod.name for pod in snapshot.pods if pod.role == "gateway"]
    if others := [name for name in gateways if settings_of(model)[name] != asked]:
        return f"older settings: {others}"
    return ""


def settings_of(model: Model) -> dict[str, str]:
    assert model.settings_read is not None
    return model.settings_read


def following(**spec: Any) -> Model:
    """A fleet that is rolled out, whose gateways say which settings they use."""
    model = Model(fleet(**spec), settings_read={})
    model.converge()
    wait(model)
    return model


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
    model = following()
    for edit in edits:
        model.edit(**edit)
        assert not kubectl_would_return(model, "RolledOut")
        wait(model)
        assert lie(model) == ""


RENAME: Mapping[str, Any] = {"model": {"uri": "sim://opt-13b-a100", "servedNames": ["other"]}}


def test_a_rename_is_rolled_out_when_every_gateway_has_read_it() -> None:
    model = following(routing={"replicas": 2})
    pods = dict(model.pods)
    model.edit(**RENAME)
    waited = 0
    while not kubectl_would_return(model, "RolledOut"):
        planned = model.round()
        waited += 1
        model.tick()
    assert 1 < waited <= READ_S + 2
    assert lie(model) == ""
    assert '"other"' in model.settings_of_gateways()
    assert model.pods.keys() == pods.keys()
    assert planned.actions == ()
    status = model.fleet.status
    for _ in range(3):
        assert model.round().actions == ()
        assert model.fleet.status == status
        model.tick()


def test_rounds_come_soon_while_gateways_read_and_no_more_often_afterwards() -> None:
    model = following()
    rests = model.round().wake_s
    model.edit(**RENAME)
    assert model.round().wake_s == LOOK_S
    wait(model)
    assert model.round().wake_s == rests > UNHEARD_S


def test_a_gateway_that_cannot_read_its_settings_is_looked_at_less_and_less_often() -> None:
    model = following()
    model.edit(**RENAME)
    model.round()
    assert model.settings_read is not None
    stuck = dict.fromkeys(model.settings_read, "older")
    for passed in range(60):
        model.settings_read = dict(stuck)
        assert model.round().wake_s == (LOOK_S if passed < UNHEARD_S else UNHEARD_S)
        assert condition(model, "RolledOut").reason == "GatewaySettingsPending"
        assert condition(model, "RolledOut").status == "False"
        model.now += 1


def test_gateways_out_of_reach_hold_an_edit_up_for_half_a_minute_and_status_says_so() -> None:
    model = following()
    model.unreached = True
    model.edit(**RENAME)
    began = model.now
    while not kubectl_would_return(model, "RolledOut"):
        planned = model.round()
        assert condition(model, "Stalled").status == "False"
        if kubectl_would_return(model, "RolledOut"):
            break
        reason = condition(model, "RolledOut").reason
        assert reason in ("RollingOut", "GatewaySettingsPending", "GatewaySettingsPending")
        assert planned.wake_s <= UNHEARD_S
        model.tick()
    assert model.now - began == UNHEARD_S
    assert lie(model) == ""
    said = condition(model, "RolledOut").message
    assert "not answer the operator on port 8081" in said
    status = model.fleet.status
    assert model.round().actions == ()
    assert model.fleet.status == status


def test_a_fleet_that_scales_stays_rolled_out() -> None:
    model = converged(autoscaling={"policy": "External"}, roles=PAIR)
    model.scale_role("colocated", 4)
    for _ in range(8):
        model.round()
        assert condition(model, "RolledOut").status == "True"
        assert condition(model, "Reconciling").status == "False"
        model.tick()
    assert len([pod for pod in model.pods.values() if pod.role == "colocated"]) == 4
