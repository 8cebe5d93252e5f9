"""Every CEL rule and its Python twin give the same verdict on generated specs."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.rules import RULES
from argosy_operator.api.v1alpha1 import ServingDeployment
from tests.api.crd_reading import defaulted, refusals, schema_of
from tests.api.refused import REFUSED, manifest

SCHEMA = schema_of(serving_deployments())


def some(**fields):
    """An object with any subset of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


small = st.integers(-1, 10)
spans = st.sampled_from(["0s", "500ms", "1s", "2s", "15s", "29s", "30s", "31s", "1m", "5m", "x"])
words = st.sampled_from(["", "A", "POD_IP", "9", "a b", "--role", "--role=x", "--role-x", "--x"])
role = some(
    replicas=some(min=st.integers(0, 9), max=st.integers(0, 9)),
    resources=some(
        gpu=st.integers(-1, 4), cpu=st.sampled_from([1, "500m", "x"]), memory=st.just("4Gi")
    ),
)
specs = st.fixed_dictionaries(
    {"model": some(servedName=words).map(lambda m: {"uri": "sim://x"} | m)},
    optional={
        "mode": st.sampled_from(["colocated", "disaggregated", "auto"]),
        "roles": some(prefill=role, decode=role, colocated=role),
        "engine": some(
            args=st.lists(words, max_size=3),
            env=st.lists(words, max_size=2, unique=True).map(lambda ns: [{"name": n} for n in ns]),
        ),
        "kvTransfer": some(leaseSeconds=st.sampled_from([0, 1, 30, 300]), timeout=spans),
        "slo": st.fixed_dictionaries(
            {"ttft": spans.map(lambda t: {"target": t}), "tpot": st.just({"target": "40ms"})},
            optional={"attainment": st.sampled_from(["0%", "1%", "99.99%", "100%", "90"])},
        ),
        "autoscaling": some(
            policy=st.sampled_from(["Goodput", "External", "None", "HPA"]),
            gpuBudget=some(max=st.integers(0, 12)),
            interval=spans,
            scaleDown=some(stabilization=spans, maxStepPods=small),
        ),
        "metrics": some(scrapeInterval=spans, rateWindow=spans),
        "drain": some(timeout=spans),
    },
)
names = st.text(alphabet="aZ0-.", max_size=3) | st.sampled_from(["a" * 40, "a" * 41, "chat-7b"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def test_every_rule_has_a_spec_that_breaks_it():
    seen = {
        sentence
        for spec, name, _ in REFUSED.values()
        for _, sentence in refusals(SCHEMA, defaulted(SCHEMA, manifest(spec, name)))
    }
    assert [rule.name for rule in RULES if rule.message not in seen] == []


def test_names_of_rules_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)
