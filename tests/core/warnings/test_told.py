"""What the API server is told about a write of a fleet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.warnings.told import LONGEST, LONGEST_TOGETHER, MORE, told
from tests.api.test_rules import specs

FLOOR = "is below the engine's floor: "


def stored(uri: str = "sim://opt-13b-a100", ttft: str = "200ms", **spec: Any) -> dict[str, Any]:
    slo = {"ttft": {"target": ttft}, "tpot": {"target": "50ms"}}
    meta = {"name": "chat", "namespace": "ns"}
    return {"metadata": meta, "spec": {"model": {"uri": uri}, "slo": slo} | spec}


def lines(new: dict[str, Any], old: Any = None, *, dry_run: bool = False) -> list[str]:
    return list(told(new, old, dry_run=dry_run))


def test_a_new_fleet_is_told_its_pods_and_gpus_and_what_they_carry() -> None:
    size, load = lines(stored())
    assert size.startswith("spec.roles: 1 to 8 colocated pods, 1 to 8 GPUs")
    assert load.startswith("spec.slo: the most pods carry about ")


def test_replicas_that_leave_the_slo_no_choice_are_told() -> None:
    *_, fixed = lines(stored(roles={"colocated": {"replicas": {"min": 2, "max": 2}}}))
    assert fixed == (
        "spec.roles.colocated.replicas: min and max are both 2: the SLO cannot change the number"
    )


def test_an_slo_below_the_floor_of_a_known_engine_is_told() -> None:
    _, floor = lines(stored(ttft="2ms"))
    assert floor == (
        f"spec.slo.ttft.target: {FLOOR}a prefill step of an empty prompt takes 18.1 ms, "
        "so that no number of pods meets it"
    )


def test_the_limits_of_classes_have_the_same_floor() -> None:
    spec = stored()
    fast = {"name": "fast", "ttft": {"target": "1s"}, "tpot": {"target": "10ms"}}
    spec["spec"]["slo"]["classes"] = [fast]
    _, floor = lines(spec)
    assert floor.startswith(f"spec.slo.classes[0].tpot.target: {FLOOR}a decode step")


PROFILE = {
    "prefillBaseMs": "4",
    "perPromptTokenMs": "0.1",
    "decodeBaseMs": "60",
    "perSequenceMs": "0.3",
    "perContextTokenMs": "0.0001",
}


def typed(*profiles: Any) -> dict[str, Any]:
    kinds = [
        {"name": f"t{i}", "costPerHour": "4", "nodeSelector": {"gpu": f"t{i}"}}
        | ({} if profile is None else {"profile": profile})
        for i, profile in enumerate(profiles)
    ]
    listed = [kind["name"] for kind in kinds]
    return stored("pvc://models/m", gpuTypes=kinds, roles={"colocated": {"gpuTypes": listed}})


def test_the_floor_of_a_real_model_is_that_of_its_fastest_gpu_type() -> None:
    _, floor = lines(typed(PROFILE, PROFILE | {"decodeBaseMs": "55.5"}))
    assert "a decode step of an empty batch takes 55.5 ms on t1" in floor


def test_a_type_without_a_profile_may_be_faster_so_there_is_no_floor() -> None:
    assert len(lines(typed(PROFILE, None))) == 1
    assert len(lines(stored("pvc://models/m", ttft="1ms"))) == 1


def record(base_s: float, rows: int = 20, sigma: float = 0.0) -> dict[str, Any]:
    """A status whose last decision knows a colocated replica's step."""
    from dataclasses import replace

    from argosy_law.estimate.capacity import begin
    from argosy_law.goals import SLO
    from argosy_law.record import to_json
    from argosy_law.state import RoleState, ScalingState

    begun = begin("colocated", None, SLO(ttft_s=1.0, tpot_s=0.05))
    rest = tuple(begun.covariance[0][1:])
    first = (sigma**2, *rest)
    estimate = replace(
        begun,
        theta=(base_s, *begun.theta[1:]),
        covariance=(first, *begun.covariance[1:]),
        rows=rows,
        steps=1000.0,
    )
    state = ScalingState(roles=(RoleState("colocated", estimate),))
    return {"autoscaling": {"lastDecision": {"record": {"state": to_json(state)}}}}


def edited(tpot: str, status: Any, **spec: Any) -> list[str]:
    """What an edit of the SLO of a running fleet of a real model is told."""
    old = stored("pvc://models/m") | {"status": status}
    new = stored("pvc://models/m", **spec) | {"status": status}
    new["spec"]["slo"] = {"ttft": {"target": "200ms"}, "tpot": {"target": tpot}}
    return lines(new, old)[1:]


def test_what_the_fleets_own_engines_showed_is_a_floor() -> None:
    (floor,) = edited("20ms", record(0.03))
    assert floor == (
        f"spec.slo.tpot.target: {FLOOR}a decode step of an empty batch takes 30.0 ms on this "
        "fleet's engines, so that no number of pods meets it"
    )
    assert edited("40ms", record(0.03)) == []


@pytest.mark.parametrize(
    "status",
    [record(0.03, rows=3), record(0.03, sigma=0.01), {}, None, {"autoscaling": 3}, {"autoscaling":
     {"lastDecision": {"record": {"state": {"roles": "x"}}}}}],
)  # fmt: skip
def test_what_was_not_measured_well_enough_is_no_floor(status: Any) -> None:
    assert edited("20ms", status) == []


def test_what_was_measured_of_another_engine_is_no_floor() -> None:
    assert edited("20ms", record(0.03), engine={"maxNumSeqs": 8}) == []
    assert len(edited("20ms", record(0.03), routing={"replicas": 3})) == 1


def test_an_update_that_leaves_the_spec_alone_is_told_nothing_unless_it_is_a_dry_run() -> None:
    old = stored(ttft="2ms")
    new = old | {"metadata": old["metadata"] | {"labels": {"a": "b"}}}
    assert lines(new, old) == []
    assert len(lines(new, old, dry_run=True)) == 2


@pytest.mark.parametrize("spec", [None, 3, [], {}, {"model": {"uri": 3}}, {"model": None}])
def test_an_object_that_this_version_does_not_understand_is_told_nothing(spec: Any) -> None:
    assert lines({"metadata": {"name": "x"}, "spec": spec}) == []


def test_more_than_the_api_server_passes_on_ends_with_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("argosy_operator.core.warnings.told.LONGEST_TOGETHER", 320)
    text = lines(stored(ttft="2ms") | {"metadata": {}})
    assert text[-1] != MORE
    slow = stored(ttft="2ms", roles={"colocated": {"replicas": {"min": 2, "max": 2}}})
    assert lines(slow)[-1] == MORE


CLASSES = st.lists(st.sampled_from(["1ms", "20ms", "2s"]), max_size=8).map(
    lambda targets: [
        {"name": f"c{i}", "ttft": {"target": target}, "tpot": {"target": target}}
        for i, target in enumerate(targets)
    ]
)


@given(specs, CLASSES, st.sampled_from(["sim://opt-13b-a100", "sim://none", "pvc://claim/m"]))
def test_every_valid_spec_is_told_its_size_in_lines_that_the_api_server_passes_on(
    spec: dict[str, Any], classes: list[Any], uri: str
) -> None:
    spec["model"]["uri"] = uri
    if "slo" in spec:
        spec["slo"]["classes"] = classes
    found = lines({"metadata": {"name": "x"}, "spec": spec})
    try:
        ServingDeployment.model_validate({"metadata": {"name": "x"}, "spec": spec})
    except ValidationError:
        assert found == []  # the CRD refuses it
        return
    assert found[0].startswith("spec.roles: ")
    assert all(line.isprintable() and 0 < len(line) <= LONGEST for line in found)
    assert sum(map(len, found)) <= LONGEST_TOGETHER
    assert len(set(found)) == len(found)
