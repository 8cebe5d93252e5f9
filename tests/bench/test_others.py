"""The fleet of vLLM that the bench runs gets from the operator what users' fleets get."""

from pathlib import Path

from argosy_bench.cluster import vllm as bench
from argosy_operator.api.v1alpha1 import ServingDeployment
from tests.render.fleets import deployment


def test_the_image_of_the_bench_sets_no_variable_that_the_operator_renders():
    """It set USER, which the operator did not, so the bench ran what crashed for users."""
    spec = bench.manifest("smol")
    spec["metadata"] |= {"namespace": "vllm", "uid": "1234-5678"}
    made = deployment(ServingDeployment.model_validate(spec), "colocated")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    (image,) = bench.images(Path("peer")).values()
    rendered = {env["name"] for env in container["env"]}
    assert {"HOME", "USER"} <= rendered
    assert rendered & image["env"].keys() == set()
