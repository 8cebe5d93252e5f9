"""How many pods and GPUs a spec may come to."""

from typing import Any

import pytest

from argosy_operator.core.warnings.forecast import Forecast, Range, forecast, predicted
from tests.support.model import fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def colocated(low: int = 1, high: int = 8, gpu: int = 4, **more: Any) -> dict[str, Any]:
    role = {"replicas": {"min": low, "max": high}, "resources": {"gpu": gpu}}
    return {"colocated": role | more}


def found(**spec: Any) -> Forecast:
    return forecast(fleet(**spec).spec)


def test_a_fleet_with_an_slo_may_come_to_all_between_min_and_max() -> None:
    one = found(roles=colocated(2, 6), slo=SLO)
    assert one == Forecast({"colocated": Range(2, 6)}, Range(8, 24))


@pytest.mark.parametrize("spec", [{}, {"slo": SLO, "autoscaling": {"policy": "None"}}])
def test_without_anything_that_sizes_it_a_fleet_stays_at_its_minimum(spec: dict[str, Any]) -> None:
    one = found(roles=colocated(2, 6), **spec)
    assert one == Forecast({"colocated": Range(2, 2)}, Range(8, 8))


def test_a_schedule_raises_what_nothing_else_sizes() -> None:
    day = {"name": "day", "start": "0 8 * * *", "duration": "10h"}
    window = {**day, "roles": {"colocated": {"min": 3}}}
    one = found(roles=colocated(2, 6), autoscaling={"schedules": [window]})
    assert one.pods["colocated"] == Range(2, 3)


def test_other_autoscalers_have_the_whole_range() -> None:
    one = found(roles=colocated(2, 6), autoscaling={"policy": "External"})
    assert one.pods["colocated"] == Range(2, 6)


def test_a_fleet_that_goes_to_zero_begins_at_zero() -> None:
    one = found(roles=colocated(1, 2), slo=SLO, autoscaling={"scaleToZero": {}})
    assert one == Forecast({"colocated": Range(0, 2)}, Range(0, 8))


def test_a_gpu_budget_bounds_gpus_and_the_pods_that_fit_in() -> None:
    roles = {
        role: {"replicas": {"min": 1, "max": 9}, "resources": {"gpu": gpu}}
        for role, gpu in (("prefill", 2), ("decode", 4))
    }
    one = found(mode="disaggregated", roles=roles, slo=SLO, autoscaling={"gpuBudget": {"max": 12}})
    assert one.gpus == Range(6, 12)
    assert one.pods == {"prefill": Range(1, 4), "decode": Range(1, 2)}


def test_gpu_types_of_several_sizes_give_the_least_and_the_most() -> None:
    kinds = [
        {"name": "h100", "costPerHour": "4", "gpu": 4, "nodeSelector": {"gpu": "h100"}},
        {"name": "l40s", "costPerHour": "1", "gpu": 8, "nodeSelector": {"gpu": "l40s"}},
    ]
    one = found(roles=colocated(2, 3, gpuTypes=["h100", "l40s"]), gpuTypes=kinds, slo=SLO)
    assert one.gpus == Range(8, 24)


def test_within_a_budget_the_most_pods_are_those_of_the_smallest_type() -> None:
    kinds = [
        {"name": "l4", "costPerHour": "1", "gpu": 1, "nodeSelector": {"gpu": "l4"}},
        {"name": "h100", "costPerHour": "9", "gpu": 8, "nodeSelector": {"gpu": "h100"}},
    ]
    budget = {"gpuBudget": {"max": 16}}
    roles = colocated(2, 16, gpuTypes=["l4", "h100"])
    one = found(roles=roles, gpuTypes=kinds, slo=SLO, autoscaling=budget)
    assert one == Forecast({"colocated": Range(2, 16)}, Range(2, 16))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"roles": colocated(1, 8), "slo": SLO},
            "1 to 8 colocated pods, 4 to 32 GPUs; a rollout doubles them for a time; "
            "2 gateway pods",
        ),
        (
            {"roles": colocated(1, 1, 1), "routing": {"replicas": 1}},
            "1 colocated pod, 1 GPU; a rollout doubles them for a time; 1 gateway pod",
        ),
        (
            {"roles": colocated(3, 3, 0)},
            "3 colocated pods, no GPUs; a rollout doubles them for a time; 2 gateway pods",
        ),
        ({"roles": colocated(0, 0)}, "no engine pods and no GPUs: the fleet is parked"),
        (
            {"roles": colocated(1, 1, 1), "routing": {"autoscaling": {"min": 3, "max": 9}}},
            "1 colocated pod, 1 GPU; a rollout doubles them for a time; 3 to 9 gateway pods",
        ),
        (
            {"roles": colocated(1, 1, 1), "routing": {"autoscaling": {"policy": "External"}}},
            "1 colocated pod, 1 GPU; a rollout doubles them for a time; as many gateway pods as "
            "their own scaler asks for",
        ),
    ],
)
def test_the_sentence_names_roles_gpus_rollouts_and_gateways(
    spec: dict[str, Any], text: str
) -> None:
    assert predicted(fleet(**spec).spec).text() == f"spec.roles: {text}"


def test_the_sentence_of_two_roles_fits_into_what_kubernetes_recommends() -> None:
    spec = fleet(mode="disaggregated", slo=SLO).spec
    text = predicted(spec).text()
    assert text.startswith("spec.roles: 1 to 8 prefill pods and 1 to 8 decode pods, 2 to 16 GPUs")
    assert len(text) <= 120
