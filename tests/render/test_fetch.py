"""The Job that fetches a model, its claim, and engines that mount an image."""

from dataclasses import replace

import kubernetes_validate
import pytest

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.pods.defaults import PodDefaults
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import digest
from argosy_operator.render.images import Images
from argosy_operator.render.models import fetch
from tests.render.fleets import deployment, fleet
from tests.render.restricted import offences
from tests.support.model import IMAGES

ASKED = {
    "size": "40Gi",
    "storageClassName": "fast",
    "serviceAccountName": "reader",
    "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example.com"}],
    "envFrom": [{"secretRef": {"name": "hub"}}],
}


def fetched(**spec: object) -> ServingDeployment:
    return fleet(model={"uri": "hf://org/tiny@v1", "fetch": ASKED}, **spec)


def test_the_job_runs_with_the_account_and_the_secret_that_the_user_names() -> None:
    job = fetch.job(fetched(), IMAGES)
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["serviceAccountName"] == "reader"
    assert pod["automountServiceAccountToken"] is False
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"name": "HF_ENDPOINT", "value": "https://hub.example.com"} in container["env"]
    words = ["fetch", "run", "--uri", "hf://org/tiny@v1", "--root", "/models", "--fleet", "chat"]
    assert container["args"] == words


def test_a_job_that_runs_is_not_made_again_for_its_recommended_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = fetch.job(fetched(), IMAGES)
    monkeypatch.setattr(names, "recommended", lambda *_: {})
    other = fetch.job(fetched(), IMAGES)
    assert job is not None
    assert other is not None
    labels = [j["spec"]["template"]["metadata"]["labels"] for j in (job, other)]
    assert labels[0] != labels[1]
    notes = [j["metadata"]["annotations"][names.FETCHES] for j in (job, other)]
    assert notes[0] == notes[1]


def test_the_jobs_pod_is_restricted() -> None:
    job = fetch.job(fetched(), IMAGES)
    assert job is not None
    assert offences(job["spec"]["template"]["spec"]) == []


def test_the_job_is_placed_as_engines_are_and_asks_for_no_gpu() -> None:
    section = {"nodeSelector": {"zone": "a"}, "imagePullSecrets": [{"name": "registry"}]}
    job = fetch.job(fetched(pods=[section]), IMAGES)
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert "nvidia.com/gpu" not in str(pod)


def test_ids_that_the_cluster_assigns_are_left_to_it() -> None:
    job = fetch.job(fetched(pods=[{"userIds": "Assigned"}]), IMAGES)
    assert job is not None
    assert "fsGroup" not in job["spec"]["template"]["spec"]["securityContext"]


@pytest.mark.parametrize(
    ("engine", "any_will_do"),
    [
        ({}, False),
        ({"image": "own:1"}, True),
        ({"type": "vllm", "image": "vllm/vllm-openai:v0.11.0"}, True),
        ({"type": "sglang", "image": "lmsysorg/sglang:v0.5.0"}, True),
    ],
)
def test_an_engine_image_of_ones_own_is_not_asked_about_its_architectures(
    engine: dict[str, str], any_will_do: bool
) -> None:
    job = fetch.job(fetched(engine=engine, mode="colocated"), IMAGES)
    assert job is not None
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--any-architecture" in args) is any_will_do


def test_the_claim_is_as_large_as_asked() -> None:
    (claim,) = fetch.claim(fetched())
    assert claim["metadata"]["name"] == "chat-model"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "40Gi"}},
        "storageClassName": "fast",
    }


def test_a_claim_of_the_users_is_not_made() -> None:
    named = fleet(model={"uri": "s3://b/p", "fetch": {"claimName": "models"}})
    assert fetch.claim(named) == []
    assert named.model_claim == "models"


def test_a_model_of_an_image_is_a_volume_that_the_nodes_pull() -> None:
    image = "registry.example.com/models/tiny@sha256:" + "a" * 64
    secrets = [{"imagePullSecrets": [{"name": "registry"}]}]
    made = deployment(fleet(model={"uri": f"oci://{image}"}, pods=secrets), "decode")
    pod = made["spec"]["template"]["spec"]
    assert {"name": "weights", "image": {"reference": image}} in pod["volumes"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = pod["containers"]
    assert {"name": "weights", "mountPath": "/models", "readOnly": True} in container[
        "volumeMounts"
    ]
    assert container["args"][container["args"].index("--model") + 1] == "/models"
    assert offences(pod) == []


def test_the_job_is_this_object() -> None:
    job = fetch.job(fleet(model={"uri": "s3://b/p", "fetch": {"claimName": "models"}}), IMAGES)
    assert job is not None
    meta, spec = job["metadata"], job["spec"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert (meta["name"], meta["namespace"]) == ("chat-fetch", "prod")
    assert meta["labels"]["serving.argosy.dev/role"] == "fetch"
    labels = names.pod_labels("chat", "fetch")
    bare = spec | {"template": spec["template"] | {"metadata": {"labels": labels}}}
    assert meta["annotations"].keys() == {names.FETCHES, names.INPUTS}
    assert meta["annotations"][names.FETCHES] == digest(bare)
    assert spec["backoffLimit"] == 2**31 - 1
    assert spec["ttlSecondsAfterFinished"] == 86_400
    assert spec["template"]["metadata"]["labels"].items() >= labels.items()
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "weights", "persistentVolumeClaim": {"claimName": "models"}},
    ]
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == ("fetch", IMAGES.fetch)
    assert container["command"] == ["argosy"]
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container["volumeMounts"] == [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "weights", "mountPath": "/models"},
    ]
    assert {"name": "HOME", "value": "/tmp"} in container["env"]
    assert {env["name"] for env in container["env"]} > {"HOME"}


def test_the_job_gets_the_placement_of_engines_and_the_size_of_gateways() -> None:
    placed = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "schedulerName": "packs",
        "imagePullSecrets": [{"name": "registry"}],
    }
    small = {"requests": {"cpu": "250m", "memory": "1Gi"}}
    sections = [
        {"roles": ["prefill", "decode"], **placed},
        {"roles": ["gateway"], "resources": small, "nodeSelector": {"zone": "b"}},
    ]
    job = fetch.job(fetched(pods=sections), IMAGES)
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    assert {key: pod[key] for key in placed} == placed
    assert pod["containers"][0]["resources"]["requests"].items() >= small["requests"].items()


OF_ALL = {
    "labels": {"cost-center": "42"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "priorityClassName": "batch",
    "env": [{"name": "SSL_CERT_FILE", "value": "/certs/ca.pem"}, {"name": "A", "value": "item"}],
    "envFrom": [{"configMapRef": {"name": "proxies"}}],
    "volumes": [{"name": "certs", "mountPath": "/certs", "configMap": {"name": "corporate-ca"}}],
}


def test_the_jobs_pod_has_what_items_ask_of_all_pods() -> None:
    """A mesh's sidecar would keep it from ending, a policy may want labels, and a hub of the
    company's own may have a certificate of the company's."""
    own = {"env": [{"name": "A", "value": "own"}], "envFrom": [{"secretRef": {"name": "hub"}}]}
    model = {"uri": "hf://org/tiny@v1", "fetch": {"claimName": "models", **own}}
    job = fetch.job(fleet(model=model, pods=[OF_ALL]), IMAGES)
    assert job is not None
    kubernetes_validate.validate(job, "1.36", strict=True)
    meta, pod = job["spec"]["template"]["metadata"], job["spec"]["template"]["spec"]
    assert meta["labels"]["cost-center"] == "42"
    assert meta["labels"].items() >= names.selector("chat", "fetch").items()
    assert meta["annotations"] == OF_ALL["annotations"]
    assert pod["priorityClassName"] == "batch"
    assert {"name": "certs", "configMap": {"name": "corporate-ca"}} in pod["volumes"]
    (container,) = pod["containers"]
    mount = {"name": "certs", "mountPath": "/certs", "readOnly": True}
    assert mount in container["volumeMounts"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert (env["SSL_CERT_FILE"], env["A"], env["HOME"]) == ("/certs/ca.pem", "own", "/tmp")
    # Of two with the same key the kubelet takes the last.
    assert container["envFrom"] == [*OF_ALL["envFrom"], *own["envFrom"]]


@pytest.mark.parametrize("role", ["prefill", "decode", "gateway"])
def test_what_items_ask_of_some_roles_alone_is_not_for_the_job(role: str) -> None:
    bare = fetch.job(fetched(), IMAGES)
    assert fetch.job(fetched(pods=[{"roles": [role], **OF_ALL}]), IMAGES) == bare


def test_the_jobs_pod_asks_for_no_device_whatever_all_pods_ask_for() -> None:
    amounts = {"cpu": 8, "memory": "64Gi", "ephemeral-storage": "10Gi", "hugepages-2Mi": "1Gi"}
    asked = {
        "requests": amounts,
        "limits": {**amounts, "rdma/hca": 1, "amd.com/gpu": 2},
        "claims": [{"name": "nic", "resourceClaimTemplateName": "one-nic"}],
    }
    device = {"resources": asked, "runtimeClassName": "nvidia", "sharedMemory": "8Gi"}
    job = fetch.job(fetched(pods=[device]), IMAGES)
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    assert pod.keys() & {"resourceClaims", "runtimeClassName"} == set()
    plain = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "10Gi"}
    assert pod["containers"][0]["resources"] == {"requests": plain, "limits": plain}
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "weights"]


def test_the_job_follows_the_defaults_of_gateways() -> None:
    images = replace(IMAGES, pods=PodDefaults.model_validate({"gateways": OF_ALL}))
    # A variable of engines does not take the place of a default of the others.
    job = fetch.job(fetched(engine={"env": [{"name": "SSL_CERT_FILE", "value": "/x"}]}), images)
    assert job is not None
    template = job["spec"]["template"]
    assert template["metadata"]["labels"]["cost-center"] == "42"
    assert {"name": "SSL_CERT_FILE", "value": "/certs/ca.pem"} in template["spec"]["containers"][0][
        "env"
    ]


def test_several_items_together_may_have_more_than_one_may() -> None:
    def tolerated(of: str) -> dict[str, object]:
        return {"tolerations": [{"key": f"{of}{at}", "operator": "Exists"} for at in range(16)]}

    job = fetch.job(fetched(pods=[tolerated("a"), tolerated("b")]), IMAGES)
    assert job is not None
    assert len(job["spec"]["template"]["spec"]["tolerations"]) == 32


def inputs(one: ServingDeployment, images: Images = IMAGES) -> str:
    job = fetch.job(one, images)
    assert job is not None
    return str(job["metadata"]["annotations"][names.INPUTS])


def test_what_the_fleet_asks_of_the_job_is_noted_apart_from_how_it_is_written() -> None:
    known = {inputs(fetched())}
    defaults = PodDefaults.model_validate({"gateways": OF_ALL, "engines": OF_ALL})
    newer = replace(IMAGES, fetch="registry.example/fetch:2", pods=defaults)
    assert inputs(fetched(), newer) in known
    one_gateway = {"roles": ["gateway"], "labels": {"a": "b"}}
    assert inputs(fetched(pods=[one_gateway])) in known
    for other in (
        fleet(model={"uri": "hf://org/tiny@v2", "fetch": ASKED}),
        fleet(model={"uri": "hf://org/tiny@v1", "fetch": {"claimName": "models"}}),
        fetched(engine={"image": "own:1"}),
        fetched(pods=[{"nodeSelector": {"zone": "a"}}]),
        *(fetched(pods=[{name: OF_ALL[name]}]) for name in OF_ALL),
    ):
        assert inputs(other) not in known
        known.add(inputs(other))


def test_without_a_storage_class_the_clusters_own_counts() -> None:
    (claim,) = fetch.claim(fleet(model={"uri": "s3://b/p", "fetch": {"size": "1Gi"}}))
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert claim["metadata"]["labels"]["serving.argosy.dev/role"] == "fetch"
    assert "storageClassName" not in claim["spec"]
    assert fetch.claim(fleet()) == []
    assert fetch.job(fleet(), IMAGES) is None
