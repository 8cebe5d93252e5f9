"""How many requests per second the most pods carry, before there is a request."""

import re
from typing import Any

import pytest

from argosy_law.estimate.profiles import PRESETS
from argosy_law.size.model import smallest
from argosy_operator.core.steps.goals import goals_of
from argosy_operator.core.warnings.carried import _models, carried
from tests.support.model import fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def said(slo: Any = SLO, **spec: Any) -> list[str]:
    return [one.text() for one in carried(fleet(slo=slo, **spec).spec)]


def rate(**spec: Any) -> float:
    (text,) = said(**spec)
    found = re.search("about (.*) requests/s", text)
    assert found is not None, text
    return float(found[1])


def kind(name: str) -> dict[str, Any]:
    return {"name": name, "costPerHour": "1", "nodeSelector": {"gpu": name}}


PRIOR = PRESETS["opt-13b-a100"]


def profile(times: float) -> dict[str, Any]:
    """That of the model's preset, so many times as slow."""
    return {
        "prefillBaseMs": f"{1000 * times * PRIOR.prefill_base_s:.6f}",
        "perPromptTokenMs": f"{1000 * times * PRIOR.per_prompt_token_s:.6f}",
        "decodeBaseMs": f"{1000 * times * PRIOR.decode_base_s:.6f}",
        "perSequenceMs": f"{1000 * times * PRIOR.per_sequence_s:.6f}",
        "perContextTokenMs": f"{1000 * times * PRIOR.per_context_token_s:.6f}",
        "kvTokens": PRIOR.kv_tokens,
    }


def at_most(replicas: int) -> dict[str, Any]:
    return {"colocated": {"replicas": {"max": replicas}}}


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_the_law_asks_for_the_most_pods_at_about_that_rate_and_for_more_above_it(
    replicas: int,
) -> None:
    spec = fleet(roles=at_most(replicas), slo=SLO).spec
    goals = goals_of(spec)
    assert goals.slo is not None
    (model,) = _models(goals, goals.slo, [PRESETS["opt-13b-a100"]])
    carried_per_s = rate(roles=at_most(replicas))
    assert smallest(model, 0.9 * carried_per_s, goals.slo.attainment) <= replicas
    assert smallest(model, 1.1 * carried_per_s, goals.slo.attainment) > replicas


def test_prefill_and_decode_carry_what_both_carry() -> None:
    roles = {role: {"replicas": {"max": 4}} for role in ("prefill", "decode")}
    both = rate(mode="disaggregated", roles=roles)
    few = roles | {"decode": {"replicas": {"max": 1}}}
    assert 0 < rate(mode="disaggregated", roles=few) < both


def test_a_gpu_budget_leaves_fewer_pods_which_carry_less() -> None:
    assert rate(autoscaling={"gpuBudget": {"max": 2}}) == rate(roles=at_most(2)) < rate()


def test_the_profile_of_the_roles_gpu_type_comes_before_that_of_the_model() -> None:
    def on(times: float) -> float:
        gpus = [kind("a100") | {"profile": profile(times)}]
        roles = {"colocated": {"replicas": {"max": 8}, "gpuTypes": ["a100"]}}
        return rate(gpuTypes=gpus, roles=roles)

    assert on(1.5) < on(1)
    # The preset has one term more, which counts little.
    assert on(1) == pytest.approx(rate(), rel=0.1)


def test_an_slo_that_such_requests_miss_alone_is_named() -> None:
    tight = {"ttft": {"target": "100ms"}, "tpot": {"target": "50ms"}}
    (text,) = said(tight)
    assert text == (
        "spec.slo: no number of pods keeps requests of 1000 prompt and 250 answer tokens within it"
    )


def test_large_rates_are_written_out() -> None:
    (text,) = said(roles=at_most(900))
    assert re.search(r"about [1-9]\d{2,}0 requests/s", text), text


@pytest.mark.parametrize(
    "spec",
    [
        {"slo": None},
        {"autoscaling": {"policy": "None"}},
        {"roles": {"colocated": {"replicas": {"min": 0, "max": 0}}}},
        {"model": {"uri": "pvc://models/m"}},
        {"model": {"uri": "sim://unknown"}},
        {
            "gpuTypes": [kind("h100"), kind("l40s")],
            "roles": {"colocated": {"gpuTypes": ["h100", "l40s"]}},
        },
    ],
)
def test_what_nothing_sizes_or_nobody_knows_is_not_told(spec: dict[str, Any]) -> None:
    assert said(**spec) == []
