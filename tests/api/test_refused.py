"""Bad specs are refused with our sentence, by the models and by the CRD's own rules."""

import pytest
from pydantic import ValidationError

from argosy_operator.api.crd.definition import serving_deployments
from argosy_operator.api.v1alpha1 import ServingDeployment
from tests.api.crd_reading import defaulted, refusals, schema_of
from tests.api.refused import REFUSED, manifest

SCHEMA = schema_of(serving_deployments())


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


def test_a_minimal_spec_is_accepted():
    fleet = ServingDeployment.model_validate(manifest({}))
    assert refusals(SCHEMA, defaulted(SCHEMA, manifest({}))) == []
    assert fleet.spec.mode == "colocated"
    assert fleet.served_name == "bad"


def test_an_slo_needs_both_numbers():
    spec = {"slo": {"ttft": {"target": "1s"}}}
    with pytest.raises(ValidationError, match="tpot"):
        ServingDeployment.model_validate(manifest(spec))
    found = refusals(SCHEMA, defaulted(SCHEMA, manifest(spec)))
    assert (".spec.slo.tpot", "required") in found
