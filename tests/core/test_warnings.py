"""What a valid spec cannot do, for `kubectl argosy lint`."""

from typing import Any

import pytest

from argosy_operator.core.warnings import warnings
from tests.support.model import fleet

SLO = {"ttft": {"target": "200ms"}, "tpot": {"target": "50ms"}}
PROFILE = {
    "prefillBaseMs": "4",
    "perPromptTokenMs": "0.1",
    "decodeBaseMs": "60",
    "perSequenceMs": "0.3",
    "perContextTokenMs": "0.0001",
}


def places(slo: Any = SLO, **spec: Any) -> list[str]:
    return [".".join(map(str, one.place)) for one in warnings(fleet(slo=slo, **spec))]


def typed(*profiles: dict[str, str] | None) -> dict[str, Any]:
    """A real model on one GPU type for each profile."""
    kinds = [
        {"name": f"t{i}", "costPerHour": "4", "nodeSelector": {"gpu": f"t{i}"}}
        | ({} if profile is None else {"profile": profile})
        for i, profile in enumerate(profiles)
    ]
    roles = {"colocated": {"gpuTypes": [kind["name"] for kind in kinds]}}
    return {"model": {"uri": "pvc://models/m"}, "gpuTypes": kinds, "roles": roles}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        ({"slo": SLO | {"ttft": {"target": "2ms"}}}, ["spec.slo.ttft.target"]),
        (
            {"slo": SLO | {"classes": [{"name": "fast"} | SLO | {"tpot": {"target": "10ms"}}]}},
            ["spec.slo.classes.0.tpot.target"],
        ),
        ({"model": {"uri": "sim://none"}}, ["spec.model.uri"]),
        ({"slo": None, "autoscaling": {"policy": "Goodput"}}, ["spec.autoscaling.policy"]),
        (
            {"roles": {"colocated": {"replicas": {"min": 2, "max": 2}}}},
            ["spec.roles.colocated.replicas"],
        ),
    ],
)
def test_a_warning_names_its_field(spec: dict[str, Any], expected: list[str]) -> None:
    assert places(**spec) == expected


def test_the_floor_of_a_real_model_is_that_of_its_fastest_gpu_type() -> None:
    slower = PROFILE | {"decodeBaseMs": "70"}
    assert places(**typed(slower, PROFILE)) == ["spec.slo.tpot.target"]
    loose = SLO | {"tpot": {"target": "65ms"}}
    assert places(loose, **typed(slower, PROFILE)) == []


def test_a_gpu_type_without_a_profile_may_be_faster_so_there_is_no_floor() -> None:
    assert places(**typed(PROFILE, None)) == []
