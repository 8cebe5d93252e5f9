"""A request above its limit is told where, and only where, it reaches the pods so."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.api.fields import Quantity
from argosy_operator.cli.kubectl.render import children
from argosy_operator.core.warnings.resources import above_limits
from argosy_operator.core.warnings.warning import path
from tests.render.fleets import IMAGES, fleet

BAD = {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}
PLACE = "spec.pods[0].resources.requests.cpu"


def told(*sections: dict[str, Any], **spec: Any) -> list[str]:
    found = list(above_limits(fleet(pods=list(sections), **spec).spec))
    assert all(one.refuses_pods for one in found)
    return [path(one.place) for one in found]


@pytest.mark.parametrize(
    ("sections", "spec", "places"),
    [
        ([{"resources": BAD}], {}, [PLACE]),
        ([{"resources": BAD, "roles": ["gateway"]}], {}, [PLACE]),
        ([{"resources": BAD, "roles": ["colocated"]}], {}, []),
        ([{"resources": BAD}, {"resources": {"limits": {"cpu": 4}}}], {}, []),
        ([{"resources": {"limits": {"cpu": 1}}}, {"resources": {"requests": {"cpu": 2}}}], {}, []),
        ([{"resources": BAD, "roles": ["decode"]}], {"roles": {"decode": {"resources":
         {"cpu": 1}}}}, []),
        ([{"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2048Mi"}}}], {}, []),
    ],
)  # fmt: skip
def test_the_place_is_that_of_the_section_that_counts(
    sections: list[dict[str, Any]], spec: dict[str, Any], places: list[str]
) -> None:
    assert told(*sections, **spec) == places


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "1500m", "2"]), max_size=2
)
SECTIONS = st.lists(
    st.fixed_dictionaries(
        {"resources": st.fixed_dictionaries({"requests": AMOUNTS, "limits": AMOUNTS})},
        optional={"roles": st.lists(st.sampled_from(["prefill", "decode", "gateway"]), max_size=1)},
    ),
    max_size=3,
)


@given(SECTIONS, AMOUNTS)
def test_pods_ask_for_more_than_they_may_have_only_if_it_is_told(
    sections: list[dict[str, Any]], own: dict[str, str]
) -> None:
    spec = {
        "model": {"uri": "pvc://models/some/model"},
        "mode": "disaggregated",
        "pods": sections,
        "roles": {"decode": {"resources": own}},
    }
    made = children({"metadata": {"name": "chat"}, "spec": spec}, IMAGES, "prod")
    above = [
        name
        for one in made
        if one["kind"] == "Deployment"
        for asked in [one["spec"]["template"]["spec"]["containers"][0]["resources"]]
        for name, request in asked.get("requests", {}).items()
        if Quantity(request).amount > Quantity(asked.get("limits", {}).get(name, "9Ti")).amount
    ]
    assert bool(told(*sections, roles=spec["roles"])) == bool(above)
