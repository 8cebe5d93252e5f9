"""The Job that fetches a model, its claim, and engines that mount an image."""

from dataclasses import replace

import pytest

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import digest
from argosy_operator.render import fetch
from argosy_operator.render.common import Images
from tests.render.fleets import deployment, fleet
from tests.render.restricted import offences
from tests.support.model import IMAGES

ASKED = {
    "size": "40Gi",
    "storageClassName": "fast",
    "serviceAccountName": "reader",
    "template": {
        "spec": {
            "containers": [
                {
                    "name": "fetch",
                    "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example.com"}],
                    "envFrom": [{"secretRef": {"name": "hub"}}],
                }
            ]
        }
    },
}
OF_ALL = {
    "metadata": {"labels": {"cost-center": "42"}},
    "spec": {
        "priorityClassName": "batch",
        "containers": [{"name": "engine", "env": [{"name": "A"}]}, {"name": "log", "image": "l"}],
        "volumes": [{"name": "certs", "configMap": {"name": "corporate-ca"}}],
    },
}


def fetched(**spec: object) -> ServingDeployment:
    return fleet(model={"uri": "hf://org/tiny@v1", "fetch": ASKED}, **spec)


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
    secrets = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    made = deployment(fleet(model={"uri": f"oci://{image}"}, template=secrets), "decode")
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


def test_the_job_is_placed_as_engines_are_and_has_a_size_of_its_own() -> None:
    placed = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"a": []}},
        "schedulerName": "packs",
        "imagePullSecrets": [{"name": "registry"}],
    }
    small = {"requests": {"cpu": "250m", "memory": "1Gi"}}
    items = [{"name": "fetch", "resources": small}]
    job = fetch.job(
        fetched(
            roles={"prefill": {"template": {"spec": placed}}},
            routing={"template": {"spec": {"nodeSelector": {"zone": "b"}}}},
            template={"spec": {"containers": items}},
        ),
        IMAGES,
    )
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    assert {key: pod[key] for key in placed} == placed
    assert pod["containers"][0]["resources"]["requests"].items() >= small["requests"].items()


def inputs(one: ServingDeployment, images: Images = IMAGES) -> str:
    job = fetch.job(one, images)
    assert job is not None
    return str(job["metadata"]["annotations"][names.INPUTS])


def test_what_the_fleet_asks_of_the_job_is_noted_apart_from_how_it_is_written() -> None:
    known = {inputs(fetched())}
    newer = replace(
        IMAGES, fetch="registry.example/fetch:2", template=PodTemplate.model_validate(OF_ALL)
    )
    assert inputs(fetched(), newer) in known
    gateways = {"template": {"metadata": {"labels": {"a": "b"}}}}
    assert inputs(fetched(routing=gateways)) in known
    for other in (
        fleet(model={"uri": "hf://org/tiny@v2", "fetch": ASKED}),
        fleet(model={"uri": "hf://org/tiny@v1", "fetch": {"claimName": "models"}}),
        fetched(engine={"image": "own:1"}),
        fetched(template={"spec": {"nodeSelector": {"zone": "a"}}}),
        fetched(template=OF_ALL),
    ):
        assert inputs(other) not in known
        known.add(inputs(other))
