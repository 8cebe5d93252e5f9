"""Bad specs are refused by the CRD and by the models, with the same sentences."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.v1alpha1 import ServingDeployment
from tests.api.crd_reading import defaulted, refusals, schema_of
from tests.api.refused import REFUSED, manifest

SCHEMA = schema_of(serving_deployments())


def some(**fields):
    """An object with any subset of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def mostly(*good, bad):
    """One of the good values in most draws: an object is refused by its first bad one."""
    return st.sampled_from([*good * (1 + 8 * len(bad) // len(good)), *bad])


spans = mostly("1s", "2s", "15s", "30s", "31s", "1m", "5m", bad=["0s", "500ms", "x"])
words = mostly(
    *("A", "b", "--role-x", "--x", "--model_x"),
    bad=["", "POD_IP", "9", "a b", "--role", "--role=x", "--api_key", "-tp", "--tp=2", "--lora-m"],
)
role = some(
    replicas=some(min=mostly(1, 2, bad=[-1, 0, 9]), max=mostly(2, 3, bad=[0, 1])),
    resources=some(
        gpu=mostly(0, 1, 4, bad=[-1]),
        cpu=mostly(1, "500m", bad=["x", -1]),
        memory=mostly("4Gi", 2 * 2**40, bad=[10**15, "-1"]),
    ),
)
bounds = some(min=mostly(0, 2, bad=[9, -1]), max=mostly(2, 3, bad=[0]))
schedules = st.fixed_dictionaries(
    {
        "name": mostly("day", "launch", bad=["Day", ""]),
        "start": mostly(
            "0 8 * * MON-FRI", "*/15 0-6/2 1,15 JAN 7", bad=["0 24 * * *", "@daily", ""]
        ),
        "duration": mostly("1m", "10h", "168h", bad=["0s", "30s", "169h"]),
        "roles": some(prefill=bounds, decode=bounds, colocated=bounds),
    },
    optional={
        "timeZone": mostly("UTC", "Europe/Berlin", "Etc/GMT+5", bad=["", "+2", "Berlin time"])
    },
)
specs = st.fixed_dictionaries(
    {
        "model": some(
            servedNames=st.lists(words, max_size=2),
            adapters=st.lists(
                st.fixed_dictionaries(
                    {"name": words, "uri": mostly("pvc://a/b", "pvc://a", bad=["hf://a/b"])}
                ),
                max_size=2,
                unique_by=lambda item: item["name"],
            ),
        ).map(lambda m: {"uri": "sim://x"} | m)
    },
    optional={
        "mode": mostly("colocated", "disaggregated", bad=["auto"]),
        "roles": some(prefill=role, decode=role, colocated=role),
        "engine": some(
            type=mostly("argosy", "vllm", "sglang", bad=["tgi"]),
            image=st.just("engine:1"),
            args=st.lists(words, max_size=3),
            env=st.lists(words, max_size=2, unique=True).map(lambda ns: [{"name": n} for n in ns]),
        ),
        "kvTransfer": some(timeout=spans),
        "slo": st.fixed_dictionaries(
            {"ttft": spans.map(lambda t: {"target": t}), "tpot": st.just({"target": "40ms"})},
            optional={"attainment": mostly("1%", "99.99%", bad=["0%", "100%", "90"])},
        ),
        "autoscaling": some(
            advisory=mostly(False, bad=[True]),
            policy=mostly("Goodput", "External", "None", bad=["HPA"]),
            gpuBudget=some(max=mostly(4, 8, 16, bad=[0, 1, 2])),
            interval=spans,
            coldStart=mostly("180s", bad=["400s", "x"]),
            scaleToZero=some(after=spans, wait=mostly("180s", "5m", bad=["90s", "y"])),
            scaleDown=some(stabilization=spans, maxStepPods=mostly(1, bad=[0, -1])),
            schedules=st.lists(schedules, max_size=2, unique_by=lambda item: item["name"]),
        ),
        "metrics": some(scrapeInterval=spans, rateWindow=spans),
        "drain": some(
            timeout=spans,
            mode=mostly("finish", "migrate", bad=["move"]),
        ),
        "routing": some(
            queueTimeout=spans,
            shedTtftPercent=mostly(100, bad=[0]),
            queue=mostly("none", "deadline", bad=["lifo"]),
            autoscaling=some(
                policy=mostly("CPU", "External", bad=["Cpu"]),
                min=mostly(1, 2, bad=[0, 9]),
                max=mostly(2, 3, bad=[1]),
            ),
        ),
        "security": some(
            verifyPeers=mostly(False, bad=[True]),
            networkPolicy=mostly(False, bad=[True]),
            tls=st.just({"secretName": "chat-tls"}),
        ),
    },
)
names = mostly("chat-7b", "a" * 40, "a", bad=["a" * 41, "", "7b", "a.b", "a-", "-a", "A"])


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs, name=names)
def test_the_crd_and_the_models_accept_the_same_specs(spec, name):
    thing = manifest(spec, name)
    refused_by_crd = refusals(SCHEMA, defaulted(SCHEMA, thing))
    try:
        ServingDeployment.model_validate(thing)
        refused_by_models = ""
    except ValidationError as error:
        refused_by_models = str(error)
    assert bool(refused_by_crd) == bool(refused_by_models), (refused_by_crd, refused_by_models)


def rules(schema):
    """The sentences of all rules that span several fields: those that name the field to blame."""
    found = [r["message"] for r in schema.get("x-kubernetes-validations", []) if "fieldPath" in r]
    for child in (*schema.get("properties", {}).values(), schema.get("items", {})):
        found += rules(child) if child else []
    return found


@pytest.mark.slow
def test_every_rule_has_a_spec_that_breaks_it():
    seen = {
        sentence
        for spec, name, _ in REFUSED.values()
        for _, sentence in refusals(SCHEMA, defaulted(SCHEMA, manifest(spec, name)))
    }
    assert set(rules(SCHEMA)), "the schema has rules"
    assert set(rules(SCHEMA)) - seen == set()


@pytest.mark.parametrize("case", REFUSED)
def test_the_crd_says_what_to_write_instead(case):
    spec, name, says = REFUSED[case]
    found = refusals(SCHEMA, defaulted(SCHEMA, manifest(spec, name)))
    assert any(says in sentence for _, sentence in found), found


@pytest.mark.parametrize("case", REFUSED)
def test_the_models_say_the_same(case):
    spec, name, says = REFUSED[case]
    with pytest.raises(ValidationError) as refused:
        ServingDeployment.model_validate(manifest(spec, name))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "other",
    [
        {"engine": {"type": "vllm", "image": "v:1", "args": ["--block-size", "64"]}},
        {"engine": {"type": "vllm", "image": "v:1", "args": ["--block_size=64"]}},
        {"roles": {"prefill": {"gpuTypes": ["h100"]}, "decode": {"gpuTypes": ["h100"]}}},
        {"engine": {"type": "sglang", "image": "s:1"}},
    ],
    ids=["two arguments", "underscore", "one type", "sglang"],
)
def test_roles_of_vllm_whose_blocks_are_alike_are_accepted(other):
    spec, _, _ = REFUSED["vLLM apart on GPUs for which it may choose different block sizes"]
    thing = manifest({**spec, **other}, "chat")
    assert refusals(SCHEMA, defaulted(SCHEMA, thing)) == []
    ServingDeployment.model_validate(thing)
