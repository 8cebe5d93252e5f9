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
def test_its_selector_selects_its_own_pods(child):
    labels = child["spec"]["template"]["metadata"]["labels"]
    assert child["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("child", PODS)
def test_prometheus_finds_the_port_that_the_container_opens(child):
    template = child["spec"]["template"]
    port = int(template["metadata"]["annotations"]["prometheus.io/port"])
    ports = {p["name"]: p["containerPort"] for p in template["spec"]["containers"][0]["ports"]}
    assert ports["admin"] == port


@pytest.mark.parametrize("child", PODS)
def test_no_environment_name_is_there_twice(child):
    seen = [env["name"] for env in child["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert len(seen) == len(set(seen))
    assert {"POD_NAME", "POD_IP", "POD_NAMESPACE"} <= set(seen)


def test_weights_come_from_the_claim_and_are_read_only():
    one = container(FLEETS["disaggregated"])
    assert flags(one["args"])["--model"] == "/models/some/model"
    assert {"name": "weights", "mountPath": "/models", "readOnly": True} in one["volumeMounts"]
    made = deployment(FLEETS["disaggregated"], "decode")
    volumes = {v["name"]: v for v in made["spec"]["template"]["spec"]["volumes"]}
    assert volumes["weights"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_simulated_engines_get_a_preset_and_no_volume():
    one = container(FLEETS["simulated"], "prefill")
    given = flags(one["args"])
    assert (given["--model"], given["--load-format"]) == ("sim:llama-70b-h100-tp4", "sim")
    assert [mount["name"] for mount in one["volumeMounts"]] == ["tmp", "peers", "token"]
    assert one["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}


def test_gpus_are_limits_and_their_nodes_are_tolerated():
    made = deployment(FLEETS["large"], "decode")
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"},
    }
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]


def test_the_users_arguments_and_environment_come_last():
    one = container(FLEETS["large"])
    assert one["args"][-1] == "--block-size=32"
    assert [env["value"] for env in one["env"] if env["name"] == "HOME"] == ["/data"]


def test_engines_get_no_slo_flags():
    given = flags(container(FLEETS["disaggregated"])["args"])
    assert not [flag for flag in given if flag.startswith("--slo")]


def test_the_gateway_gets_the_slo_in_milliseconds():
    given = settings(FLEETS["disaggregated"])
    assert (given["--slo-ttft-ms"], given["--slo-tpot-ms"]) == ("1000", "40")
    deployment = gateway.objects(FLEETS["disaggregated"], IMAGES)[-1]
    one = deployment["spec"]["template"]["spec"]["containers"][0]
    assert one["args"][:2] == ["gateway", "run"]


def test_the_gateway_is_told_when_engines_may_hold_first_tokens():
    held = fleet(slo={**SLO, "firstToken": "WithinTarget"})
    for one, expected in ((FLEETS["disaggregated"], None), (held, "within-target")):
        assert settings(one).get("--first-token") == expected


def test_the_service_is_named_as_the_fleet_and_reaches_the_gateways_port():
    service = next(c for c in children(FLEETS["colocated"]) if c["kind"] == "Service")
    assert service["metadata"]["name"] == "chat"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["spec"]["ports"][0]["targetPort"] == 8080
    assert service["spec"]["selector"][names.ROLE] == "gateway"


def test_the_gateways_role_is_fixed_and_reads_pods_and_its_settings_only():
    for one in FLEETS.values():
        own = {"resources": ["configmaps"], "resourceNames": [f"{one.name}-gateway"]}
        expected = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], **own, "verbs": ["get"]},
        ]
        assert [c["rules"] for c in children(one) if c["kind"] == "Role"] == [expected]


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


def test_rendering_twice_gives_the_same_and_shares_nothing():
    first, second = children(FLEETS["large"]), children(FLEETS["large"])
    assert first == second
    first[-1]["metadata"]["labels"]["x"] = "y"
    assert children(FLEETS["large"]) == second


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


@pytest.mark.parametrize("one", FLEETS.values(), ids=FLEETS)
def test_one_missed_probe_does_not_make_an_engine_unready(one):
    for role_name, _ in one.spec.active_roles():
        probe = container(one, role_name)["readinessProbe"]
        assert probe["failureThreshold"] == 3
        # A drain is told by annotation; a silent pod is left within ten seconds.
        assert 3 * max(probe["periodSeconds"], probe["timeoutSeconds"]) <= 10


@pytest.mark.parametrize("one", FLEETS.values(), ids=FLEETS)
def test_a_process_that_hangs_is_ended_without_the_time_of_a_drain(one):
    """Until it ends its requests wait, though another pod could answer those without a byte yet."""
    front = next(o for o in gateway.objects(one, IMAGES) if o["kind"] == "Deployment")
    engines = [container(one, role_name) for role_name, _ in one.spec.active_roles()]
    for made in (*engines, *front["spec"]["template"]["spec"]["containers"]):
        probe = made["livenessProbe"]
        hung_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
        assert hung_s + probe["terminationGracePeriodSeconds"] <= 60


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
