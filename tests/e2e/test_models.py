"""Models from a hub and from an S3 store, fetched by a Job of the real cluster and then served."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.weights.tiny import write_tiny
from tests.e2e.installed import Installed, complete

pytestmark = pytest.mark.cluster

STORES = Path(__file__).parents[1] / "support/stores.py"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
ENDPOINT = "http://stores.e2e.svc:8000"
SLOW = 8001
"""The port of a store that sends a tenth of the weights in 3 s."""


def volume(argosy: Installed, claim: str, folder: Path) -> None:
    """A PersistentVolume over a folder of this machine, for one claim."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"namespace": argosy.namespace, "name": claim},
    }
    manifest = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}}
    argosy.kubectl("apply", "-f", "-", given=yaml.safe_dump(manifest | {"spec": spec}))


@pytest.fixture(scope="module")
def stores(argosy: Installed) -> Iterator[Path]:
    """A pod that serves `org/tiny` as a hub and as an S3 store; gives a folder for claims."""
    folder = Path(tempfile.mkdtemp(prefix="argosy-models-"))
    try:
        served = folder / "served"
        write_tiny(served / "org/tiny")
        for path in (folder, served, served / "org", served / "org/tiny"):
            path.chmod(0o755)
        claim = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume(argosy, "served", served)
        objects: list[dict[str, Any]] = [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "served"},
                "spec": claim | {"resources": {"requests": {"storage": "1Gi"}}},
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "stores"},
                "data": {"stores.py": STORES.read_text()},
            },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "keys"},
                "stringData": {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "stores"},
                "spec": {
                    "selector": {"app": "stores"},
                    "ports": [{"name": f"p{port}", "port": port} for port in (8000, SLOW)],
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "stores", "labels": {"app": "stores"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {
                            "name": f"stores-{words[0]}",
                            "image": "local/shell",
                            "command": ["python", "/stores/stores.py", "/served", *words],
                            "securityContext": RESTRICTED,
                            "volumeMounts": [
                                {"name": "stores", "mountPath": "/stores"},
                                {"name": "served", "mountPath": "/served", "readOnly": True},
                            ],
                        }
                        for words in (["8000"], [str(SLOW), "3"])
                    ],
                    "volumes": [
                        {"name": "stores", "configMap": {"name": "stores"}},
                        {"name": "served", "persistentVolumeClaim": {"claimName": "served"}},
                    ],
                },
            },
        ]
        argosy.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))
        yield folder
        argosy.kubectl("delete", "pod/stores", "--wait=false")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def asking(**container: Any) -> dict[str, Any]:
    """A template of the Job's container."""
    return {"template": {"spec": {"containers": [{"name": "fetch", **container}]}}}


SOURCES = {
    "from-hub": ("hf://org/tiny@main", asking(env=[{"name": "HF_ENDPOINT", "value": ENDPOINT}])),
    "from-s3": (
        "s3://org/tiny",
        asking(
            env=[
                {"name": "AWS_ENDPOINT_URL", "value": ENDPOINT},
                {"name": "AWS_REGION", "value": "us-east-1"},
            ],
            envFrom=[{"secretRef": {"name": "keys"}}],
        ),
    ),
}


@pytest.mark.parametrize("name", ["from-hub", pytest.param("from-s3", marks=pytest.mark.long)])
def test_a_fetched_model_answers_through_the_gateway(
    argosy: Installed, stores: Path, name: str
) -> None:
    uri, asked = SOURCES[name]
    place = stores / name
    place.mkdir()
    os.chmod(place, 0o777)
    volume(argosy, f"{name}-model", place)
    model = {"uri": uri, "fetch": {"size": "1Gi", **asked}}
    argosy.apply(name, model=model, engine={"dtype": "float32"})
    argosy.until_condition(name, "ModelFetched", "AsSpecified", 90)
    argosy.until_ready(name, 120)
    assert complete(argosy.url(name), name).status_code == 200
    said = (argosy.fleet(name) or {})["status"]["model"]
    assert (place / said["path"] / ".argosy.json").exists()
    (pod,) = argosy.pods(name, "colocated")
    assert f"/models/{said['path']}" in pod["spec"]["containers"][0]["args"]
    argosy.kubectl("delete", "sd", name, "--wait=false")


@pytest.mark.long
def test_a_repository_that_does_not_exist_is_named_before_any_engine_pod(
    argosy: Installed, stores: Path
) -> None:
    place = stores / "none"
    place.mkdir()
    os.chmod(place, 0o777)
    volume(argosy, "from-none-model", place)
    _, asked = SOURCES["from-hub"]
    model = {"uri": "hf://org/none@main", "fetch": {"size": "1Gi", **asked}}
    argosy.apply("from-none", model=model)
    message = argosy.until_condition("from-none", "Stalled", "SourceNotFound", 90)
    assert "org/none@main" in message
    assert argosy.pods("from-none", "colocated") == []
    argosy.kubectl("delete", "sd", "from-none", "--wait=false")


@pytest.mark.long
def test_a_fetch_says_how_far_it_is(argosy: Installed, stores: Path) -> None:
    """Of 40 MiB, because 4 MiB are written at a time."""
    large = stores / "served/org/large"
    large.mkdir()
    shutil.copy(stores / "served/org/tiny/config.json", large)
    zeros = bytes(40 << 20)
    tensor = {"dtype": "F32", "shape": [len(zeros) // 4], "data_offsets": [0, len(zeros)]}
    header = json.dumps({"t": tensor}).encode()
    whole = len(header).to_bytes(8, "little") + header + zeros
    (large / "model.safetensors").write_bytes(whole)
    place = stores / "slow"
    place.mkdir()
    os.chmod(place, 0o777)
    volume(argosy, "slow-model", place)
    env = [{"name": "HF_ENDPOINT", "value": ENDPOINT.replace("8000", str(SLOW))}]
    fetch = {"size": "1Gi", **asking(env=env)}
    argosy.apply("slow", model={"uri": "hf://org/large@main", "fetch": fetch})

    def said() -> str:
        return str(argosy.condition("slow", "ModelFetched").get("message", ""))

    part = re.compile(r"[1-3]\d\.\d of 40\.0 MiB are there")
    argosy.until("the part that is there", lambda: part.search(said()), 90)
    argosy.kubectl("delete", "sd", "slow", "--wait=false")


@pytest.mark.long
def test_a_missing_account_of_the_job_is_named_until_it_exists(
    argosy: Installed, stores: Path
) -> None:
    place = stores / "by-reader"
    place.mkdir()
    os.chmod(place, 0o777)
    volume(argosy, "by-reader-model", place)
    _, asked = SOURCES["from-hub"]
    fetch = {"size": "1Gi", "serviceAccountName": "reader", **asked}
    model = {"uri": "hf://org/tiny@main", "fetch": fetch}
    argosy.apply("by-reader", model=model, progressDeadline="20s")
    message = argosy.until_condition("by-reader", "ModelFetched", "ServiceAccountNotFound")
    assert "no ServiceAccount reader" in message
    assert argosy.condition("by-reader", "Stalled")["status"] == "False"
    argosy.until_condition("by-reader", "Stalled", "ServiceAccountNotFound", 60)
    argosy.kubectl("create", "serviceaccount", "reader")
    argosy.until_condition("by-reader", "ModelFetched", "AsSpecified", 120)
    argosy.kubectl("delete", "sd", "by-reader", "--wait=false")
