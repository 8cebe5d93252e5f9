"""Models from a registry that asks for a password: the kubelet pulls them, engines mount them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.weights.tiny import write_tiny
from tests.e2e.installed import Installed, complete
from tests.support import registry

pytestmark = [pytest.mark.cluster, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "examples"
PORT = 5000
SYSTEM = "kube-system"


@pytest.fixture(scope="module")
def served(argosy: Installed) -> Iterator[str]:
    """A registry on the nodes' loopback, which is where they speak plain HTTP; the model in it."""
    folder = Path(tempfile.mkdtemp(prefix="argosy-registry-"))
    try:
        write_tiny(folder / "model")
        for path in (folder / "model").iterdir():
            path.chmod(0o644)
        for tag in ("v1", "v3"):
            layers = [registry.tar_of(folder / "model")]
            registry.push(folder / "served", f"models/tiny:{tag}", layers)
        objects: list[dict[str, Any]] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "registry"},
                "data": {"registry.py": Path(registry.__file__).read_text()},
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "registry"},
                "spec": {
                    "hostNetwork": True,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {
                            "name": "registry",
                            "image": "local/shell",
                            "command": ["python", "/code/registry.py", "/served", str(PORT)],
                            "args": ["reader", "right"],
                            "securityContext": {"runAsUser": 0},
                            "volumeMounts": [
                                {"name": "code", "mountPath": "/code"},
                                {"name": "served", "mountPath": "/served", "readOnly": True},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "code", "configMap": {"name": "registry"}},
                        {"name": "served", "hostPath": {"path": str(folder / "served")}},
                    ],
                },
            },
        ]
        given = yaml.safe_dump_all(objects)
        argosy.kube.kubectl("-n", SYSTEM, "apply", "-f", "-", given=given)
        for name, password in (("registry", "right"), ("wrong", "wrong")):
            words = ("create", "secret", "docker-registry", name, "--docker-username=reader")
            server = f"--docker-server=127.0.0.1:{PORT}"
            argosy.kubectl(*words, server, f"--docker-password={password}")
        wait = ("wait", "--for=condition=Ready", "pod/registry", "--timeout=40s")
        argosy.kube.kubectl("-n", SYSTEM, *wait)
        yield f"127.0.0.1:{PORT}"
        argosy.kube.kubectl(
            "-n", SYSTEM, "delete", "pod/registry", "--wait=false", "--ignore-not-found"
        )
        argosy.kubectl("delete", "secret", "registry", "wrong")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_model_of_a_registry_answers_through_the_gateway(argosy: Installed, served: str) -> None:
    template = yaml.safe_load((EXAMPLES / "oci-model.yaml").read_text())["spec"]["template"]
    model = {"uri": f"oci://{served}/models/tiny:v1"}
    argosy.apply("from-oci", model=model, template=template, engine={"dtype": "float32"})
    argosy.until_ready("from-oci", 120)
    assert complete(argosy.url("from-oci"), "from-oci").status_code == 200
    (pod,) = argosy.pods("from-oci", "colocated")
    mounts = pod["status"]["containerStatuses"][0]["volumeMounts"]
    (weights,) = (mount for mount in mounts if mount["name"] == "weights")
    assert (weights["mountPath"], weights["readOnly"]) == ("/models", True)
    argosy.kubectl("delete", "sd", "from-oci", "--wait=false")


@pytest.mark.parametrize(
    ("name", "tag", "secret", "said"),
    [
        ("oci-wrong", "v1", "wrong", "(401)"),
        ("oci-none", "v2", "registry", "(404)"),
    ],
)
def test_a_model_that_cannot_be_pulled_is_named(
    argosy: Installed, served: str, name: str, tag: str, secret: str, said: str
) -> None:
    uri = f"{served}/models/tiny:{tag}"
    template = {"spec": {"imagePullSecrets": [{"name": secret}]}}
    argosy.apply(name, model={"uri": f"oci://{uri}"}, template=template, progressDeadline="25s")
    first = argosy.until_condition(name, "Ready", "ImagePullFailed", 60)
    assert argosy.condition(name, "Stalled")["status"] == "False"
    for words in (said, uri, "cannot pull the model", "spec.model.uri", "imagePullSecrets"):
        assert words in first
    assert argosy.until_condition(name, "Stalled", "ImagePullFailed", 60) == first
    argosy.kubectl("delete", "sd", name, "--wait=false")


def test_on_warm_nodes_a_fleet_starts_while_the_registry_is_away(
    argosy: Installed, served: str
) -> None:
    warm = yaml.safe_load((EXAMPLES / "warm-nodes.yaml").read_text())
    spec = warm["spec"]["template"]["spec"]
    del spec["nodeSelector"]
    spec["containers"][0]["image"] = "local/shell"
    image = spec["volumes"][0]["image"]["reference"] = f"{served}/models/tiny:v3"
    argosy.kubectl("apply", "-f", "-", given=yaml.safe_dump(warm))
    argosy.kubectl("rollout", "status", "daemonset/warm-nodes", "--timeout=60s")
    argosy.kube.kubectl("-n", SYSTEM, "delete", "pod/registry", "--timeout=30s")
    template = {"spec": {"imagePullSecrets": spec["imagePullSecrets"]}}
    model = {"uri": f"oci://{image}"}
    argosy.apply("warm", model=model, template=template, engine={"dtype": "float32"})
    argosy.until_ready("warm", 120)
    assert complete(argosy.url("warm"), "warm").status_code == 200
    argosy.kubectl("delete", "sd/warm", "daemonset/warm-nodes", "--wait=false")
