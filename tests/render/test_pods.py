"""What users ask of pods is in the pods, beside all that the operator writes, and restricted."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.pods.defaults import PodDefaults
from argosy_operator.api.v1alpha1.pods.merged import JOINS
from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.api.v1alpha1.pods.volumes import OWN_PATHS, OWN_VOLUMES
from argosy_operator.cli.run import _pod_defaults
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.ownership import differences
from argosy_operator.core.snapshot.pods import Pod, pod_of
from argosy_operator.core.snapshot.revision import POD_FIELDS, fields, revision
from argosy_operator.render import gateway, peers, pool, workload
from argosy_operator.render.engines.kind import EnginePod
from argosy_operator.render.images import Images
from argosy_operator.render.models import fetch
from argosy_operator.render.pods.accounts import Callers
from argosy_operator.render.pods.kept import kept_by_gateways
from tests.render.fleets import IMAGES, fleet
from tests.render.overlays import ALL, accepted, overlays
from tests.render.restricted import offences
from tests.support.model import ISSUER

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIM = {"uri": "sim://llama-70b-h100-tp4"}
OLD = {"metadata": {"annotations": {names.DRAIN_TIMEOUT: "300"}}}
"""An engine Deployment from before there were defaults."""
NAME = re.compile("`([a-zA-Z]+)`")
REFUSED_FIELDS = {"security_context", "host_network"}


def engine(one: Any, role: Any = "decode", live: Any = None, images: Images = IMAGES) -> Any:
    return workload.deployment(EnginePod.of(one, role, "0" * 8, images, live))


def template(made: Any) -> Any:
    return made["spec"]["template"]


def pod(made: Any) -> Any:
    return template(made)["spec"]


def container(made: Any) -> Any:
    (only,) = pod(made)["containers"]
    return only


def front(one: Any, images: Images = IMAGES) -> Any:
    return gateway.objects(one, images)[-1]


def with_defaults(**of: Any) -> Images:
    return Images("e:1", "g:1", "p:1", PodDefaults.model_validate(of), fetch="f:1")


def revision_of(*pods: Any, **spec: Any) -> str:
    return revision(fleet(pods=list(pods), **spec), engine_image="e:1")


def test_pods_are_placed_and_equipped_as_asked() -> None:
    one = fleet(pods=[ALL])
    for made in (engine(one), front(one)):
        kubernetes_validate.validate(made, "1.36", strict=True)
        spec, labels = pod(made), template(made)["metadata"]["labels"]
        assert labels["team"] == "search"
        assert template(made)["metadata"]["annotations"].items() >= ALL["annotations"].items()
        assert spec["nodeSelector"] == {"pool": "llm"}
        asked = {"key": "pool", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}
        assert spec["tolerations"][-1] == asked
        assert spec["affinity"] == ALL["affinity"]
        (spread,) = spec["topologySpreadConstraints"]
        assert spread == {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": made["spec"]["selector"]["matchLabels"]},
        }
        assert spec["priorityClassName"] == "serving"
        assert spec["schedulerName"] == "volcano"
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["serviceAccountName"] == "llm"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert "runAsUser" not in spec["securityContext"]
        assert "runAsGroup" not in spec["securityContext"]
        claim = {"name": "nic", "resourceClaimTemplateName": "one-nic"}
        assert spec["resourceClaims"] == [claim]


def test_containers_get_resources_variables_and_files_as_asked() -> None:
    one = fleet(pods=[ALL])
    for made in (engine(one), front(one)):
        only = container(made)
        assert only["securityContext"]["readOnlyRootFilesystem"] is False
        asked = only["resources"]
        plain = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "10Gi"}
        assert asked["requests"] == plain
        limits = {"cpu": "8", "memory": "64Gi", "rdma/hca": "1"}
        assert asked["limits"].items() >= limits.items()
        assert asked["claims"] == [{"name": "nic", "request": "nic"}]
        env = {item["name"]: item for item in only["env"]}
        assert env["HF_TOKEN"] == ALL["env"][0]
        assert env["LEVEL"] == ALL["env"][1]
        assert env["PLAIN"]["value"] == "yes"
        assert only["envFrom"] == ALL["envFrom"]
        volumes = {item["name"]: item for item in pod(made)["volumes"]}
        mounts = {item["name"]: item["mountPath"] for item in only["volumeMounts"]}
        for asked in ALL["volumes"]:
            assert mounts[asked["name"]] == asked["mountPath"]
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
        assert mounts["shm"] == "/dev/shm"
        assert volumes["scratch"]["emptyDir"] == {"sizeLimit": "1Gi"}
        assert volumes["ram"]["emptyDir"] == {"medium": "Memory"}
        assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "cache"}
        assert volumes["vault"]["csi"]["readOnly"] is True
        assert volumes["ca"]["configMap"] == {"name": "ca"}
        assert volumes["hub"]["secret"] == {"secretName": "hub", "optional": True}
        fixed = {item["name"] for item in only["volumeMounts"] if item.get("readOnly")}
        asked_for = {asked["name"] for asked in ALL["volumes"]}
        # Files of Secrets and ConfigMaps cannot be written.
        assert fixed & asked_for == {"ca", "hub", "vault"}


@given(items=st.lists(overlays, max_size=3), old=st.booleans())
def test_whatever_is_asked_pods_pass_the_restricted_profile(items: Any, old: bool) -> None:
    one = fleet(pods=[accepted(item) for item in items])
    made = [engine(one, role, OLD if old else None) for role in ("prefill", "decode")]
    for deployment in (*made, front(one)):
        spec, only = pod(deployment), container(deployment)
        assert set(offences(spec)) <= {f"{only['name']} root file system"}
        annotations = template(deployment)["metadata"]["annotations"]
        assert not [key for key in annotations if "apparmor" in key or "seccomp" in key]
        # And the pod is still ours: labels, variables and paths are there once.
        labels = template(deployment)["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for found in (
            [env["name"] for env in only["env"]],
            [volume["name"] for volume in spec["volumes"]],
            [mount["mountPath"] for mount in only["volumeMounts"]],
        ):
            assert len(found) == len(set(found))
        env = {item["name"]: item for item in only["env"]}
        assert env["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@given(items=st.lists(overlays, max_size=3))
def test_whatever_is_asked_the_pod_that_fetches_is_restricted_and_uses_no_device(
    items: Any,
) -> None:
    model = {"uri": "hf://org/tiny@v1", "fetch": {"claimName": "models"}}
    job = fetch.job(fleet(model=model, pods=[accepted(item) for item in items]), IMAGES)
    spec, only = pod(job), container(job)
    assert offences(spec) == []
    found = template(job)["metadata"]
    assert not [key for key in found.get("annotations", {}) if "apparmor" in key or "sec" in key]
    assert found["labels"].items() >= names.selector("chat", names.FETCH_ROLE).items()
    for listed in (
        [env["name"] for env in only["env"]],
        [volume["name"] for volume in spec["volumes"]],
        [mount["mountPath"] for mount in only["volumeMounts"]],
    ):
        assert len(listed) == len(set(listed))
    assert "resourceClaims" not in spec
    sizes = {name for part in only["resources"].values() for name in part}
    assert sizes <= {"cpu", "memory", "ephemeral-storage"}


@given(items=st.lists(overlays, max_size=3))
def test_what_is_applied_twice_has_no_drift(items: Any) -> None:
    """Also tolerations without a key, and several of one key."""
    one = fleet(pods=[accepted(item) for item in items])
    made = engine(one)
    assert list(differences(made, copy.deepcopy(made))) == []
    assert template(engine(one, live=made)) == template(made)


def test_two_tolerations_of_one_key_are_no_drift() -> None:
    both = [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]
    made = engine(fleet(pods=[{"tolerations": [*both, {"operator": "Exists"}]}]))
    assert list(differences(made, copy.deepcopy(made))) == []
    less = copy.deepcopy(made)
    pod(less)["tolerations"].pop()
    assert len(list(differences(made, less))) == 1


def test_a_later_item_counts_before_an_earlier_one() -> None:
    volume = {"emptyDir": {}, "name": "a", "mountPath": "/a"}
    first = {
        "nodeSelector": {"pool": "a", "zone": "z"},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "volumes": [volume, {**volume, "name": "b", "mountPath": "/b"}],
        "priorityClassName": "low",
    }
    second = {
        "roles": ["decode"],
        "nodeSelector": {"pool": "b"},
        "env": [{"name": "A", "value": "3"}],
        "volumes": [{"name": "c", "mountPath": "/a", "secret": {"secretName": "s"}}],
        "priorityClassName": "high",
    }
    one = fleet(pods=[first, second])
    decode, prefill = engine(one), engine(one, "prefill")
    assert pod(decode)["nodeSelector"] == {"pool": "b", "zone": "z"}
    assert pod(prefill)["nodeSelector"] == {"pool": "a", "zone": "z"}
    assert pod(decode)["priorityClassName"] == "high"
    values = {env["name"]: env.get("value") for env in container(decode)["env"]}
    assert (values["A"], values["B"]) == ("3", "2")
    paths = {m["mountPath"]: m["name"] for m in container(decode)["volumeMounts"]}
    assert (paths["/a"], paths["/b"]) == ("c", "b")
    assert "a" not in [volume["name"] for volume in pod(decode)["volumes"]]


def test_items_of_one_role_change_no_other_pods() -> None:
    one = fleet(pods=[{"roles": ["gateway"], "nodeSelector": {"pool": "cpu"}}])
    assert pod(front(one))["nodeSelector"] == {"pool": "cpu"}
    assert engine(one) == engine(fleet())
    both = fleet(pods=[{"roles": ["prefill", "decode"], "nodeSelector": {"pool": "gpu"}}])
    assert front(both) == front(fleet())


def test_the_endpoint_picker_stands_in_the_gateways_place() -> None:
    one = fleet(
        mode="colocated",
        routing={"gateway": "epp"},
        security={"verifyPeers": False, "networkPolicy": False},
        pods=[{**ALL, "roles": ["gateway"]}],
    )
    (made,) = (o for o in pool.objects(one, IMAGES) if o["kind"] == "Deployment")
    kubernetes_validate.validate(made, "1.36", strict=True)
    assert set(offences(pod(made))) <= {"picker root file system"}
    assert pod(made)["imagePullSecrets"] == [{"name": "registry"}]
    (binding,) = (o for o in pool.objects(one, IMAGES) if o["kind"] == "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["chat-picker", "llm"]


def test_endpoint_pickers_get_what_the_chart_gives_to_gateways() -> None:
    one = fleet(
        mode="colocated",
        routing={"gateway": "epp"},
        security={"verifyPeers": False, "networkPolicy": False},
    )
    limits = {"cpu": "2", "memory": "1Gi"}
    registry = [{"name": "registry"}]
    images = with_defaults(gateways={"imagePullSecrets": registry, "resources": {"limits": limits}})
    (made,) = (o for o in pool.objects(one, images) if o["kind"] == "Deployment")
    assert pod(made)["imagePullSecrets"] == registry
    assert container(made)["resources"]["limits"] == limits


def test_gateway_pods_get_the_pull_secrets_that_the_chart_promises() -> None:
    """They run under an account of their own, so those of the default account never reach them."""
    images = with_defaults(gateways={"imagePullSecrets": [{"name": "registry"}]})
    assert pod(front(fleet(), images))["imagePullSecrets"] == [{"name": "registry"}]
    engines = with_defaults(engines={"imagePullSecrets": [{"name": "registry"}]})
    assert pod(engine(fleet(), images=engines))["imagePullSecrets"] == [{"name": "registry"}]


def test_a_quota_on_cpu_limits_can_be_met() -> None:
    limits = {"resources": {"limits": {"cpu": 2, "memory": "4Gi"}}}
    for one, images in (
        (fleet(pods=[limits]), IMAGES),
        (fleet(), with_defaults(engines=limits, gateways=limits)),
    ):
        for made in (engine(one, images=images), front(one, images)):
            assert container(made)["resources"]["limits"]["cpu"] == "2"
            assert container(made)["resources"]["limits"]["memory"] == "4Gi"


def test_engines_that_ask_for_nothing_are_not_the_first_to_be_ended() -> None:
    """A pod without requests is BestEffort."""
    one = fleet(model=SIM, roles={"decode": {"resources": {"gpu": 0}}})
    assert container(engine(one))["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}


@pytest.mark.parametrize(
    "asked",
    [
        {"requests": {"cpu": 4, "memory": "8Gi"}, "limits": {"cpu": 4, "memory": "8Gi"}},
        {"limits": {"cpu": 4, "memory": "8Gi"}},
    ],
    ids=["both", "limits alone, which Kubernetes requests, too"],
)
def test_pods_can_be_guaranteed(asked: Any) -> None:
    one = fleet(pods=[{"resources": asked}])
    for made in (engine(one), front(one)):
        resources = container(made)["resources"]
        plain = {name: resources["limits"][name] for name in ("cpu", "memory")}
        assert resources.get("requests", plain) == plain


@pytest.mark.parametrize(
    ("far", "near", "requests", "limits"),
    [
        ({"requests": {"cpu": "1"}}, {}, {"cpu": "1"}, {}),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}}, {"cpu": "2"}, {}),
        ({"limits": {"cpu": "1"}}, {"requests": {"cpu": "2"}}, {"cpu": "2"}, {"cpu": "2"}),
        ({"limits": {"cpu": "4"}}, {"requests": {"cpu": "2"}}, {"cpu": "2"}, {"cpu": "4"}),
        ({"requests": {"cpu": "4"}}, {"limits": {"cpu": "2"}}, {}, {"cpu": "2"}),
        (
            {"limits": {"memory": "1000M"}},
            {"requests": {"memory": "1Gi"}},
            *(({"memory": "1Gi"},) * 2),
        ),
    ],
)
def test_a_request_is_never_above_a_farther_limit(
    far: Any, near: Any, requests: Any, limits: Any
) -> None:
    over = PodResources.model_validate(near).over(PodResources.model_validate(far))
    assert over.requests == requests
    assert over.limits == limits


def test_the_roles_own_resources_count_before_those_of_pods() -> None:
    own = {"gpu": 2, "gpuResource": "amd.com/gpu", "cpu": 4, "memory": "16Gi"}
    asked = {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 8, "memory": "2Gi"}}
    one = fleet(roles={"decode": {"resources": own}}, pods=[{"resources": asked}])
    made = engine(one)
    assert container(made)["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi"},
        "limits": {"cpu": "8", "memory": "16Gi", "amd.com/gpu": "2"},
    }
    assert pod(made)["tolerations"][0]["key"] == "amd.com/gpu"
    assert template(made)["metadata"]["annotations"][names.GPU_RESOURCE] == "amd.com/gpu"


def test_a_slice_of_a_gpu_is_a_resource_as_others() -> None:
    own = {"gpu": 1, "gpuResource": "nvidia.com/mig-3g.40gb"}
    made = engine(fleet(roles={"decode": {"resources": own}}))
    assert container(made)["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus_that_come_with_claims_are_counted_and_asked_for_once(gpus: int) -> None:
    claim = {"name": "gpus", "resourceClaimTemplateName": "some-gpus"}
    one = fleet(
        roles={r: {"resources": {"gpu": gpus, "gpuFrom": "Claims"}} for r in ("prefill", "decode")},
        pods=[{"roles": ["prefill", "decode"], "resources": {"claims": [claim]}}],
    )
    made = engine(one)
    assert "limits" not in container(made)["resources"]
    assert pod(made)["resourceClaims"] == [claim]
    assert template(made)["metadata"]["annotations"][names.GPUS_CLAIMED] == str(gpus)


def test_no_field_of_an_item_is_forgotten() -> None:
    """It joins others, it is part of the revision, it is in the docs and an item shows it."""
    known = set(PodSettings.model_fields) - REFUSED_FIELDS
    assert set(JOINS) == known
    assert set(POD_FIELDS) == known
    page = (EXAMPLES.parent / "docs/how-to/pods.md").read_text("utf-8")
    table = {
        name for row in page.splitlines() if row.startswith("| `") for name in NAME.findall(row)
    }
    assert table >= {to_camel(name) for name in known}
    assert set(PodSettings.model_validate(ALL).model_dump(exclude_defaults=True)) == known


def test_an_own_name_or_path_is_one_that_is_rendered() -> None:
    one = fleet(
        roles={"decode": {"resources": {"gpu": 2}}, "prefill": {"resources": {"gpu": 2}}},
        autoscaling={"roleFlip": True},
        security={"tls": {"secretName": "chat-tls"}},
    )
    made = engine(one)
    assert {volume["name"] for volume in pod(made)["volumes"]} == set(OWN_VOLUMES)
    for mount in container(made)["volumeMounts"]:
        path = mount["mountPath"]
        assert any(path == own or path.startswith(own + "/") for own in OWN_PATHS), path


@pytest.mark.parametrize(
    "path",
    ["/etc/ssl/certs", "/etc/argosy-more", "/var/cache", "/usr/share/fonts", "/usr/local/share/x",
     "/opt", "/proceeds", "/library"],
)  # fmt: skip
def test_a_volume_beside_what_the_container_needs_is_mounted(path: str) -> None:
    item = {"volumes": [{"name": "data", "mountPath": path, "emptyDir": {}}]}
    mounts = container(engine(fleet(pods=[item])))["volumeMounts"]
    assert {"name": "data", "mountPath": path} in mounts


@pytest.mark.parametrize("field", sorted(set(ALL) - {"roles"}))
def test_each_field_makes_a_new_revision_where_it_changes_a_pod(field: str) -> None:
    item = {field: ALL[field]}
    assert revision_of(item) != revision_of()
    assert revision_of({**item, "roles": ["gateway"]}) == revision_of()
    assert template(engine(fleet(pods=[item]))) != template(engine(fleet()))


def test_items_that_ask_for_nothing_make_no_revision() -> None:
    empty = {"labels": {}, "volumes": [], "resources": {"requests": {}}, "roles": ["decode"]}
    assert revision_of(empty, {}) == revision_of()
    assert "pods" not in fields(fleet(pods=[empty]), engine_image="e:1")


def test_the_same_pods_by_other_items_are_the_same_revision() -> None:
    pool_ = {"nodeSelector": {"pool": "llm"}}
    split = [{**pool_, "roles": [role]} for role in ("prefill", "decode")]
    assert revision_of(pool_) == revision_of(*split)


def test_gpu_resources_are_part_of_the_revision_only_where_they_are_named() -> None:
    amd = {"decode": {"resources": {"gpuResource": "amd.com/gpu"}}}
    assert revision_of(roles=amd) != revision_of()
    plain = {"decode": {"resources": {"gpuFrom": "Resource"}}}
    assert revision_of(roles=plain) == revision_of()


def test_new_defaults_replace_no_engine_pod() -> None:
    """A chart's new value, or a newer operator: the Deployment keeps what it was made with."""
    before = engine(fleet())
    later = with_defaults(engines={**ALL, "resources": {}})
    again = engine(
        fleet(),
        live=before,
        images=Images("registry.example/engine:1", "g", "p", later.pods, fetch="f"),
    )
    assert template(again) == template(before)
    assert pod(engine(fleet(), images=later))["schedulerName"] == "volcano"


def test_pods_from_before_there_were_defaults_stay_as_they_are() -> None:
    made = engine(fleet(model=SIM, roles={"decode": {"resources": {"gpu": 0}}}), live=OLD)
    assert container(made)["resources"] == {}
    assert names.POD_DEFAULTS not in made["metadata"]["annotations"]
    assert "app.kubernetes.io/name" not in template(made)["metadata"]["labels"]


def test_a_claim_can_be_mounted_to_be_read_only_and_a_part_of_it_alone() -> None:
    volume = {
        "name": "data", "mountPath": "/data", "subPath": "a/b", "readOnly": True,
        "persistentVolumeClaim": {"claimName": "data"},
    }  # fmt: skip
    made = engine(fleet(pods=[{"volumes": [volume]}]))
    (mount,) = (m for m in container(made)["volumeMounts"] if m["name"] == "data")
    assert mount == {"name": "data", "mountPath": "/data", "subPath": "a/b", "readOnly": True}
    (source,) = (v for v in pod(made)["volumes"] if v["name"] == "data")
    assert source["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}


def test_a_volume_of_a_driver_is_writable_unless_it_is_to_be_read_only() -> None:
    csi = {"driver": "d.example.com", "volumeAttributes": {"class": "a"}}
    volume = {"name": "data", "mountPath": "/data", "csi": csi}
    made = engine(fleet(pods=[{"volumes": [volume]}]))
    (source,) = (v for v in pod(made)["volumes"] if v["name"] == "data")
    assert source["csi"] == csi


def test_a_fleet_keeps_the_defaults_that_its_front_notes_and_no_engines() -> None:
    now = PodDefaults.model_validate({"engines": {"schedulerName": "a"}, "gateways": {}})

    def noted(role: str, scheduler: str) -> Any:
        text = json.dumps({"schedulerName": scheduler})
        annotations = {names.POD_DEFAULTS: text}
        return {"metadata": {"labels": {names.ROLE: role}, "annotations": annotations}}

    bare = {"metadata": {}}
    for role in names.FRONT_ROLES:
        kept = kept_by_gateways([bare, noted("decode", "b"), noted(role, "c")], now)
        assert kept.gateways.scheduler_name == "c"
        assert kept.engines == now.engines
    silent = {"metadata": {"labels": {names.ROLE: names.GATEWAY_ROLE}}}
    assert kept_by_gateways([bare, noted("decode", "b"), silent], now) == now


@pytest.mark.parametrize(
    "text", ["{", '{"volumes": [{"name": "tmp"}]}', '{"userIds": "root"}', "7"]
)
def test_defaults_that_cannot_be_read_are_those_of_now(text: str) -> None:
    live = {"metadata": {"annotations": {names.POD_DEFAULTS: text, names.DRAIN_TIMEOUT: "300"}}}
    assert template(engine(fleet(), live=live)) == template(engine(fleet()))


def test_a_fleets_variables_count_before_the_charts() -> None:
    images = with_defaults(engines={"env": [{"name": "A", "value": "chart"}]})
    asked = {"engine": {"env": [{"name": "A", "value": "fleet"}]}}
    for spec, value in (({}, "chart"), (asked, "fleet")):
        found = [
            e["value"]
            for e in container(engine(fleet(**spec), images=images))["env"]
            if e["name"] == "A"
        ]
        assert found == [value]


def test_a_gpu_types_nodes_count_before_those_of_pods() -> None:
    kind = {"name": "h100", "costPerHour": "4.10", "nodeSelector": {"gpu": "h100"}}
    one = fleet(
        roles={r: {"gpuTypes": [kind]} for r in ("prefill", "decode")},
        pods=[{"nodeSelector": {"gpu": "any", "pool": "llm"}}],
    )
    assert pod(engine(one))["nodeSelector"] == {"gpu": "h100", "pool": "llm"}


def test_children_carry_the_labels_that_kubernetes_recommends() -> None:
    one = fleet()
    recommended = {
        "app.kubernetes.io/name": "argosy",
        "app.kubernetes.io/instance": "chat",
        "app.kubernetes.io/part-of": "argosy",
        "app.kubernetes.io/managed-by": "argosy",
    }
    for child in (engine(one), *gateway.objects(one, IMAGES)):
        assert child["metadata"]["labels"].items() >= recommended.items()
        selector = json.dumps(child.get("spec", {}).get("selector", {}))
        assert "app.kubernetes.io" not in selector
    fetched = fleet(model={"uri": "hf://org/tiny@main", "fetch": {"size": "1Gi"}})
    picker = next(o for o in pool.objects(one, IMAGES) if o["kind"] == "Deployment")
    job = fetch.job(fetched, IMAGES)
    assert job is not None
    components = {}
    for child in (engine(one), front(one), picker, job):
        labels = template(child)["metadata"]["labels"]
        assert labels.items() >= recommended.items()
        components[child["metadata"]["name"]] = labels["app.kubernetes.io/component"]
    assert components == {
        "chat-decode-00000000": "engine",
        "chat-gateway": "gateway",
        "chat-picker": "endpoint-picker",
        "chat-fetch": "fetch",
    }


@pytest.mark.parametrize("of", ["gateway", "picker"])
def test_pods_from_before_the_recommended_labels_get_them_with_their_next_image(of: str) -> None:
    one = fleet()

    def made(images: Images, live: Any = None) -> Any:
        found = (gateway if of == "gateway" else pool).objects(one, images, live=live)
        return next(o for o in found if o["kind"] == "Deployment")

    before = made(IMAGES)
    for label in set(names.recommended("chat", of)) - {names.MANAGED_BY}:
        del template(before)["metadata"]["labels"][label]
    assert template(made(IMAGES, before)) == template(before)
    after = template(made(IMAGES.having({of: "another:2"}), before))
    assert after["metadata"]["labels"]["app.kubernetes.io/component"] == (
        "gateway" if of == "gateway" else "endpoint-picker"
    )


def example(name: str) -> Any:
    body = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    meta = body["metadata"] | {"namespace": "prod", "uid": "1234-5678"}
    return ServingDeployment.model_validate({**body, "metadata": meta})


def test_the_example_of_a_private_registry_gives_all_pods_its_secret() -> None:
    one = example("private-registry")
    for made in (engine(one, "colocated"), front(one)):
        assert pod(made)["imagePullSecrets"] == [{"name": "registry"}]
    assert container(engine(one, "colocated"))["image"].startswith("registry.example.com/")


def test_the_example_of_a_node_pool_places_engines_and_gateways_apart() -> None:
    one = example("node-pool")
    for role in ("prefill", "decode"):
        made = engine(one, role)
        kubernetes_validate.validate(made, "1.36", strict=True)
        assert pod(made)["nodeSelector"] == {"pool": "llm"}
        assert {"key": "pool", "operator": "Equal", "value": "llm", "effect": "NoSchedule"} in pod(
            made
        )["tolerations"]
        # Kubernetes requests what is limited alone, so the pods are Guaranteed.
        assert container(made)["resources"] == {
            "limits": {
                "cpu": "8",
                "memory": "64Gi",
                "ephemeral-storage": "20Gi",
                "nvidia.com/gpu": "1",
            }
        }
    made = front(one)
    kubernetes_validate.validate(made, "1.36", strict=True)
    assert pod(made)["nodeSelector"] == {"pool": "general"}
    assert container(made)["resources"]["limits"] == {"cpu": "2", "memory": "512Mi"}
    assert template(made)["metadata"]["labels"]["cost-center"] == "search"


def subjects(objects: list[Any]) -> list[str]:
    (binding,) = (o for o in objects if o["kind"] == "RoleBinding")
    return [subject["name"] for subject in binding["subjects"]]


def test_pods_of_a_named_account_may_call_engines_as_those_of_ours_did() -> None:
    """While it changes, pods of the old account still run."""
    one = fleet(pods=[{"serviceAccountName": "llm"}])
    old = (
        Pod("g", "1", "gateway", "", account="chat-gateway"),
        Pod("e", "2", "decode", "0" * 8, account="chat-engine"),
        Pod("gone", "3", "decode", "0" * 8, account="older", phase="Succeeded"),
    )
    callers = Callers.of(one, IMAGES, old)
    assert callers.engines == {"llm", "chat-engine"}
    assert callers.gateways == {"llm", "chat-gateway"}
    assert subjects(gateway.objects(one, IMAGES, callers=callers)) == ["chat-gateway", "llm"]
    (_, file) = peers.objects(one, ISSUER, callers, required=True)
    callers_of = json.loads(file["data"][peers.FILE])["callers"]
    accounts = [f"system:serviceaccount:prod:{name}" for name in ("chat-engine", "llm")]
    assert callers_of["kv"] == accounts
    assert callers_of["api"] == [f"system:serviceaccount:prod:{n}" for n in ("chat-gateway", "llm")]


def test_an_account_of_one_role_calls_engines_beside_that_of_the_others() -> None:
    item = {"roles": ["decode"], "serviceAccountName": "decoders"}
    ours = names.engine_account("chat")
    assert Callers.of(fleet(pods=[item]), IMAGES) == Callers(frozenset({"decoders", ours}))
    item = {"roles": ["gateway"], "serviceAccountName": "front"}
    found = Callers.of(fleet(pods=[item]), IMAGES)
    assert found == Callers(frozenset({ours}), frozenset({"front"}))


def test_without_a_named_account_nothing_but_ours_may_call() -> None:
    callers = Callers.of(fleet(), IMAGES)
    assert callers == Callers(engines=frozenset({"chat-engine"}))
    assert subjects(gateway.objects(fleet(), IMAGES)) == ["chat-gateway"]


@pytest.mark.parametrize(
    ("text", "gpus"), [("2", 2), ("64", 64), ("", 0), ("x", 0), ("-1", 0), ("999", 0)]
)
def test_gpus_of_claims_are_counted_by_the_pods_annotation(text: str, gpus: int) -> None:
    raw = {
        "metadata": {
            "name": "a",
            "uid": "1",
            "annotations": {names.GPUS_CLAIMED: text},
            "creationTimestamp": "2026-01-02T03:00:00Z",
        },
        "spec": {"containers": [{"name": "engine"}], "serviceAccountName": "llm"},
        "status": {},
    }
    found = pod_of(raw)
    assert (found.gpus, found.account) == (gpus, "llm")


@pytest.mark.parametrize("text", ["{", '{"engines": {"userIds": "root"}}', "7"])
def test_the_operator_does_not_start_with_defaults_that_no_pod_can_have(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        _pod_defaults(text)
