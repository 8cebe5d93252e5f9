"""Every number and duration of the spec has a bound, kept by the CRD and by the models."""

import copy
import re

import pytest
from pydantic import ValidationError

from argosy_operator.api.bounds import DURATION_BOUNDS, NUMBER_BOUNDS
from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.fields import DURATION_PATTERN, POSITIVE_DURATION_PATTERN, Duration
from argosy_operator.api.v1alpha1 import ServingDeployment
from docs.generate import nodes
from tests.api.crd_reading import defaulted, refusals, schema_of
from tests.api.refused import H100, TIMES, manifest

SCHEMA = schema_of(serving_deployments())
SPEC = dict(nodes("", SCHEMA["properties"]["spec"]))
ROLES = ("prefill", "decode", "colocated")
ITEMS: dict[str, dict] = {
    "classes[]": {"name": "batch", "ttft": {"target": "1s"}, "tpot": {"target": "1s"}},
    "gpuTypes[]": H100 | {"profile": TIMES},
    "tolerations[]": {"operator": "Exists", "effect": "NoExecute"},
    "topologySpread[]": {"topologyKey": "topology.kubernetes.io/zone"},
    "schedules[]": {"name": "day", "start": "0 8 * * *", "duration": "1h", "roles": {}},
}
"""An item of each list, to which the field is added."""


def fields(pattern: str) -> list[str]:
    """The paths that an entry of the table is about."""
    words = pattern.replace("[]", "\\[\\]").replace(".*", "(?:[.]classes\\[\\])?[.][a-z]+")
    return [path for path in SPEC if re.fullmatch(words, path)]


def spec(path: str, value: object) -> dict:
    """A spec that is right but, perhaps, for this one field."""
    whole: dict = {"drain": {"timeout": "2h"}}
    if path.startswith("slo") or path == "routing.shedTtftPercent":
        whole["slo"] = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
    if path.endswith("replicas.max"):
        whole |= {"autoscaling": {"policy": "None"}}
        role = path.split(".")[1]
        whole["roles"] = {role: {"replicas": {"min": 0}}}
    if path.endswith("replicas.min"):
        whole["roles"] = {path.split(".")[1]: {"replicas": {"max": 1000}}}
        whole["autoscaling"] = {"policy": "None"}
    if path == "autoscaling.gpuBudget.max":
        whole["roles"] = {"colocated": {"resources": {"gpu": 0}}}
    if path.startswith("autoscaling.schedules"):
        whole["roles"] = {role: {"replicas": {"max": 1000}} for role in ROLES}
    if path.startswith("routing.autoscaling"):
        whole["routing"] = {"autoscaling": {"max": 64}}
    if path.startswith("drain"):
        whole["kvTransfer"] = {"timeout": "10ms"}
    if path == "metrics.scrapeInterval":
        whole["metrics"] = {}
    if path == "metrics.rateWindow":
        whole["metrics"] = {"scrapeInterval": "1s"}
    node = whole
    *above, last = path.split(".")
    for name in above:
        item = [copy.deepcopy(ITEMS[name])] if name.endswith("[]") else {}
        node = node.setdefault(name.removesuffix("[]"), item)
        node = node[0] if name.endswith("[]") else node
    node[last] = value
    return whole


def verdicts(path: str, value: object) -> tuple[list[str], str]:
    """What the CRD and the models say about the field's value."""
    thing = manifest(spec(path, value))
    by_crd = [f"{where} {says}" for where, says in refusals(SCHEMA, defaulted(SCHEMA, thing))]
    try:
        ServingDeployment.model_validate(thing)
    except ValidationError as error:
        return by_crd, str(error)
    return by_crd, ""


def test_every_number_and_duration_of_the_spec_stands_in_the_table():
    spans = {path for entry in DURATION_BOUNDS for path in fields(entry)}
    numbers = {path for entry in NUMBER_BOUNDS for path in fields(entry)}
    patterns = (DURATION_PATTERN, POSITIVE_DURATION_PATTERN)
    texts = {p: str(n) for p, n in SPEC.items() if n.get("type") == "string"}
    assert spans == {p for p, n in texts.items() if any(pattern in n for pattern in patterns)}
    words = {path for b in NUMBER_BOUNDS.values() if b.word for path in fields(b.field)}
    assert numbers - words == {p for p, n in SPEC.items() if n.get("type") == "integer"}
    assert all(SPEC[path]["x-kubernetes-int-or-string"] for path in words)


@pytest.mark.parametrize("entry", DURATION_BOUNDS)
def test_durations_beyond_their_bounds_are_refused_with_what_to_write(entry):
    bound = DURATION_BOUNDS[entry]
    least_ms, most_ms = (round(Duration(text).ms) for text in (bound.least, bound.most))
    for path in fields(entry):
        assert verdicts(path, bound.most) == ([], "")
        for beyond in (f"{least_ms - 1}ms", f"{most_ms // 1000 + 1}s", "999999h"):
            if beyond in ("0ms", "-1ms"):
                continue  # refused, or none of these, by the format itself
            by_crd, by_models = verdicts(path, beyond)
            assert any(f"write a duration from {bound.least} to" in says for says in by_crd)
            assert bound.message in by_models


@pytest.mark.parametrize("entry", NUMBER_BOUNDS)
def test_numbers_beyond_their_bounds_are_refused(entry):
    bound = NUMBER_BOUNDS[entry]
    for path in fields(entry):
        assert verdicts(path, bound.most) == ([], "")
        for beyond in (bound.least - 1, bound.most + 1):
            by_crd, by_models = verdicts(path, beyond)
            said = f"write a whole number from {bound.least} to" if bound.word else "bounds"
            assert any(path.replace("[]", "[0]") in says and said in says for says in by_crd)
            assert (said if bound.word else "should be") in by_models


@pytest.mark.parametrize("entry", [b.field for b in NUMBER_BOUNDS.values() if b.word])
def test_beside_a_number_only_the_one_word_may_be_written(entry):
    bound = NUMBER_BOUNDS[entry]
    for path in fields(entry):
        assert verdicts(path, bound.word) == ([], "")
        for wrong in ("", "Auto", str(bound.least), "auto "):
            by_crd, by_models = verdicts(path, wrong)
            assert any(f'or "{bound.word}"' in says for says in by_crd)
            assert f'or "{bound.word}"' in by_models
