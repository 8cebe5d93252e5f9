"""Names fit where Kubernetes puts them, and two fleets never share one."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory
from argosy_operator.shell.gather import Observed, compose
from tests.render.fleets import IMAGES, fleet
from tests.support.model import ISSUER

fleets = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
revisions = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)


def children(fleet, revision):
    """(kind, name) of everything that a fleet may own."""
    roles = ("prefill", "decode", "colocated")
    deployments = [names.engine_deployment(fleet, role, revision) for role in roles]
    return {
        *(("Deployment", name) for name in (*deployments, names.gateway(fleet))),
        *(("ServingRole", names.serving_role(fleet, role)) for role in roles),
        *(("PodDisruptionBudget", names.serving_role(fleet, role)) for role in roles),
        ("PodDisruptionBudget", names.gateway(fleet)),
        ("ServiceAccount", names.gateway(fleet)),
        ("Service", names.service(fleet)),
    }


@given(fleet=fleets, revision=revisions)
def test_every_name_and_label_fits_into_63_characters(fleet, revision):
    labels = chain.from_iterable(names.labels(fleet, r, revision).values() for r in ("decode",))
    for text in chain((name for _, name in children(fleet, revision)), labels):
        assert len(text) <= 63


@given(one=fleets, other=fleets, revision=revisions)
def test_two_fleets_never_share_a_child(one, other, revision):
    if one != other:
        assert not children(one, revision) & children(other, revision)


HUB = {"uri": "hf://org/tiny@main", "fetch": {"size": "1Gi"}}
SPECS: dict[str, dict[str, Any]] = {
    "disaggregated": {},
    "fetched": {"model": HUB},
    "scaled gateways": {"mode": "colocated", "routing": {"autoscaling": {"max": 9}}},
}


@pytest.mark.parametrize("case", SPECS)
def test_all_that_the_longest_name_is_made_into_fits_into_63_characters(case):
    one = fleet("a" * 40, **SPECS[case])
    snapshot = compose(one, IMAGES, Observed({}, (), {}, None, ISSUER), LoopMemory(), Clock(9, 9))
    made = [*snapshot.wanted, *snapshot.engines.values(), snapshot.learnt, snapshot.fetch_job]
    objects = [obj for obj in made if obj is not None]
    assert len(objects) > 8
    for obj in objects:
        template = obj.get("spec", {}).get("template", {}).get("metadata", {})
        labels = obj["metadata"].get("labels", {}) | template.get("labels", {})
        for text in (obj["metadata"]["name"], *labels.values()):
            assert len(text) <= 63, (obj["kind"], text)
