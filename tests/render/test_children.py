"""What the cluster gets: valid, owned, restricted, and as the seams between the programs say."""

import json

import kubernetes_validate
import pytest

from argosy_operator.core.snapshot import names
from argosy_operator.render import gateway
from argosy_operator.render.fleet import render_role, render_serving_role
from tests.render.fleets import IMAGES, deployment, fleet
from tests.render.restricted import offences

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
SIM = {"uri": "sim://llama-70b-h100-tp4"}
FLEETS = {
    "disaggregated": fleet(slo=SLO),
    "colocated": fleet(mode="colocated"),
    "a range of gateways": fleet(routing={"autoscaling": {"min": 3, "max": 9}}),
    "simulated": fleet(model=SIM, roles={"prefill": {"resources": {"gpu": 0}}}),
    "large": fleet(
        roles={"decode": {"resources": {"gpu": 4, "cpu": 8, "memory": "64Gi"}}},
        engine={"args": ["--block-size=32"], "env": [{"name": "HOME", "value": "/data"}]},
    ),
    "longest name": fleet("a" * 40, model=SIM),
}


def children(one):
    """All objects of a fleet in one revision."""
    objects = gateway.objects(one, IMAGES)
    for name, _ in one.spec.active_roles():
        objects.append(deployment(one, name))
        objects += render_role(one, name)
    return objects


ALL = [
    pytest.param(child, id=f"{case}: {child['kind']} {child['metadata']['name'][:24]}")
    for case, one in FLEETS.items()
    for child in children(one)
]
PODS = [pytest.param(*p.values, id=p.id) for p in ALL if p.values[0]["kind"] == "Deployment"]


def container(one, role_name="decode"):
    made = deployment(one, role_name)
    return made["spec"]["template"]["spec"]["containers"][0]


def flags(args):
    """--flag value pairs of a rendered command line, without program and command."""
    return dict(zip(args[2::2], args[3::2], strict=True))


def settings(one):
    """The settings of the fleet's gateways, as `flags`."""
    (found,) = (c for c in children(one) if c["kind"] == "ConfigMap")
    return flags(["", "", *json.loads(found["data"][names.SETTINGS_KEY])])


@pytest.mark.parametrize("child", ALL)
def test_it_is_valid_and_owned_by_the_fleet(child):
    if child["kind"] != "ServingRole":
        kubernetes_validate.validate(child, "1.36", strict=True)
    (owner,) = child["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ServingDeployment", "1234-5678")
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, False)
    assert child["metadata"]["namespace"] == "prod"
    assert child["metadata"]["labels"][names.MANAGED_BY] == "argosy"


@pytest.mark.parametrize("child", PODS)
def test_its_pods_pass_the_restricted_profile(child):
    assert offences(child["spec"]["template"]["spec"]) == []


@pytest.mark.parametrize("child", PODS)
def test_no_environment_name_is_there_twice(child):
    seen = [env["name"] for env in child["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert len(seen) == len(set(seen))
    assert {"POD_NAME", "POD_IP", "POD_NAMESPACE"} <= set(seen)


def test_the_gateway_is_told_when_engines_may_hold_first_tokens():
    held = fleet(slo={**SLO, "firstToken": "WithinTarget"})
    for one, expected in ((FLEETS["disaggregated"], None), (held, "within-target")):
        assert settings(one).get("--first-token") == expected


def test_grace_outlasts_drain_and_lease():
    one = fleet(drain={"timeout": "90s"}, kvTransfer={"timeout": "6500ms"})
    made = deployment(one, "prefill")
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 90 + 20 + 10
    given = flags(container(one, "prefill")["args"])
    assert (given["--drain-timeout-s"], given["--lease-s"]) == ("90", "19.5")


def test_replicas_are_rendered_only_if_given():
    one = FLEETS["colocated"]
    assert deployment(one, "colocated", 3)["spec"]["replicas"] == 3
    assert "replicas" not in deployment(one, "colocated", None)["spec"]
    assert "replicas" not in render_serving_role(one, "colocated")["spec"]


def test_labels_and_annotations_of_the_fleet_are_not_copied():
    body = {
        "metadata": {
            "name": "chat",
            "uid": "u",
            "labels": {"argocd.argoproj.io/instance": "app"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {"model": SIM},
    }
    made = children(type(FLEETS["large"]).model_validate(body))
    assert "argocd" not in str(made)
    assert "last-applied" not in str(made)


def autoscaler(**scaling):
    found = gateway.objects(fleet(routing={"autoscaling": {"max": 9, **scaling}}), IMAGES)
    (made,) = (child for child in found if child["kind"] == "HorizontalPodAutoscaler")
    return made["spec"]


def test_a_range_of_gateways_is_an_autoscaler_by_the_cpu_of_their_own_container():
    spec = autoscaler()
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
    front = gateway.objects(fleet(routing={"autoscaling": {"max": 9}}), IMAGES)
    (made,) = (child for child in front if child["kind"] == "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert spec["scaleTargetRef"]["name"] == made["metadata"]["name"]
    (metric,) = spec["metrics"]
    assert metric["containerResource"] == {
        "name": "cpu",
        "container": container["name"],
        "target": {"type": "AverageValue", "averageValue": "700m"},
    }


@pytest.mark.parametrize("policy", ["CPU", "External"])
def test_who_scales_the_gateways_changes_nothing_in_their_pods(policy):
    more = {"max": 9} if policy == "CPU" else {}
    scaled = fleet(routing={"autoscaling": {"policy": policy, **more}})
    fixed, others = (
        next(o for o in gateway.objects(f, IMAGES) if o["kind"] == "Deployment")
        for f in (fleet(routing={"replicas": 7}), scaled)
    )
    assert fixed["spec"].pop("replicas") == 7
    assert others == fixed
