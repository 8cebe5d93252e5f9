"""Advice in status and in `explain`: the other mode, and other autoscalers; nothing applies it."""

from dataclasses import replace

from argosy_operator.api.model import dump
from argosy_operator.cli.explanation import explanation
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.scaling.advice.modes import Modes, Need
from argosy_operator.core.scaling.observe import Idle
from tests.scaling import known
from tests.support.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
ROLES = {"colocated": {"replicas": {"min": 3, "max": 9}}}


def model_of(*shadow: str) -> Model:
    model = Model(fleet(slo=SLO, roles=ROLES, autoscaling={"shadow": list(shadow)}))
    model.converge()
    return model


def decide(model: Model, rounds: int = 1) -> None:
    for _ in range(rounds):
        model.now += 15
        model.metrics = known.metrics(model.now, 2.0, {"colocated": 3}, running=50.0)
        model.memory = replace(model.memory, decide_at=0.0)
        model.round()


def test_status_says_what_other_autoscalers_ask_for_and_what_it_costs() -> None:
    model = model_of("hpa", "keda")
    decide(model, 241)
    hpa, keda = model.fleet.status.autoscaling.shadow
    assert (hpa.law, keda.law) == ("hpa", "keda")
    assert hpa.to == keda.to == {"colocated": 3}
    assert abs(float(hpa.gpu_hours) - 3.0) <= 0.2
    assert hpa.gpu_hours == hpa.our_gpu_hours
    assert model.replicas("colocated") == 3


def test_hours_go_on_after_a_restart_and_end_with_the_field() -> None:
    model = model_of("hpa")
    decide(model, 121)
    model.memory = LoopMemory()
    decide(model, 121)
    (hpa,) = model.fleet.status.autoscaling.shadow
    assert abs(float(hpa.gpu_hours) - 3.0) <= 0.2
    model.edit(autoscaling={"shadow": []})
    decide(model, 3)
    assert model.fleet.status.autoscaling.shadow == ()


def test_both_modes_are_in_status_once_they_could_be_sized() -> None:
    model = model_of()
    decide(model, 2)
    assert model.fleet.status.autoscaling.mode_advice is None
    decide(model, 20)
    advice = model.fleet.status.autoscaling.mode_advice
    assert advice is not None
    assert advice.advised is None
    assert advice.colocated_gpus is not None
    assert int(advice.colocated_gpus) >= 1
    assert "a mode is advised after a day" in advice.message


def test_a_fleet_of_another_engine_is_advised_no_mode_that_the_api_refuses() -> None:
    model = model_of()
    vllm = {"type": "vllm", "image": "vllm:1"}
    model.edit(engine=vllm, model={"uri": "pvc://models/m"}, slo=SLO, roles=ROLES)
    decide(model, 20)
    slots = tuple((model.now - 900 * n, Need(16, 8)) for n in range(95, 0, -1))
    model.memory = replace(model.memory, modes=Modes(None, slots))
    decide(model)
    assert model.fleet.status.autoscaling.mode_advice is None


def test_advice_is_shown_at_once_and_stays_over_a_restart() -> None:
    model = model_of()
    decide(model, 20)
    slots = tuple((model.now - 900 * n, Need(16, 8)) for n in range(95, 0, -1))
    model.memory = replace(model.memory, modes=Modes(None, slots))
    decide(model)
    advice = model.fleet.status.autoscaling.mode_advice
    assert advice is not None
    assert advice.advised == "disaggregated"
    model.memory = LoopMemory()
    decide(model)
    assert model.fleet.status.autoscaling.mode_advice == advice
    text = explanation({"metadata": {"name": "chat"}, "status": dump(model.fleet.status)})
    assert "spec.mode disaggregated would need fewer GPUs for the same SLO" in text


def test_explain_lists_the_other_autoscalers() -> None:
    model = model_of("hpa")
    decide(model, 2)
    text = explanation({"metadata": {"name": "chat"}, "status": dump(model.fleet.status)})
    begin = text.splitlines().index("Other autoscalers on the same metrics (nothing applies them)")
    row = text.splitlines()[begin + 2]
    assert row.split()[:5] == ["hpa", "0.0", "0.0", "colocated", "3,"]


def test_the_mode_advice_of_a_fleet_without_traffic_stays() -> None:
    """`make demo` saw a write at rest: a quarter of an hour began, and the message grew by it."""
    model = model_of()
    decide(model, 20)
    advice = model.fleet.status.autoscaling.mode_advice
    assert advice is not None
    for _ in range(2 * 3600 // 15):
        rest(model)
        assert model.fleet.status.autoscaling.mode_advice == advice, model.memory.modes


def test_without_traffic_too_the_advice_names_the_mode_that_the_fleet_has() -> None:
    model = model_of()
    decide(model, 20)
    slots = tuple((model.now - 900 * n, Need(8, 8)) for n in range(95, 0, -1))
    model.memory = replace(model.memory, modes=Modes(model.now, slots))
    decide(model, 3)
    rest(model)
    assert "spec.mode colocated stays the choice" in message(model)
    model.edit(mode="disaggregated", roles={})
    rest(model)
    rest(model)
    assert "spec.mode disaggregated stays the choice" in message(model)


def rest(model: Model) -> None:
    """A round in which no request was seen."""
    model.now += 15
    idle = Idle(model.now)
    counts = known.metrics(model.now, 0.0, {"colocated": 3, "prefill": 1, "decode": 1}, running=0.0)
    model.metrics = replace(counts, arrivals=idle, attainment=idle)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()


def message(model: Model) -> str:
    advice = model.fleet.status.autoscaling.mode_advice
    assert advice is not None
    return advice.message
