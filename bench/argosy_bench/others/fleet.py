"""A fleet of vLLM's CPU build on a one-machine Kubernetes of its own, with the test weights."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from local.cluster.cluster import Cluster
from local.demo.kube import Kube, await_answer, is_ready
from local.demo.places.place import helm_install

__all__ = ["IMAGE", "NAME", "NAMESPACE", "SD", "images", "manifest", "running"]

NAME, NAMESPACE, IMAGE = "peer", "vllm", "docker.io/vllm/vllm-openai:v0.32.0"
SD = f"/apis/serving.argosy.dev/v1alpha1/namespaces/{NAMESPACE}/servingdeployments/{NAME}"
READY_S = 600.0
"""vLLM starts in 30 to 60 s on two idle cores."""


def images(peer: Path) -> dict[str, Any]:
    """The image as the one-machine runtime takes it: programs of the environment `peer`."""
    venv = peer.absolute()
    variables = {
        "PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": f"{venv}/lib/libiomp5.so",
        "VLLM_TARGET_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    base = (venv / "bin" / "python").resolve().parents[1]
    entry = {
        "paths": [str(venv), str(base)],
        "env": variables,
        "entrypoint": [f"{venv}/bin/vllm", "serve"],
        "user": 65532,
    }
    return {IMAGE.rpartition(":")[0]: entry}


def manifest(model: str, *, most: int, ttft: str, tpot: str) -> dict[str, Any]:
    """The ServingDeployment; each pod computes with one thread, so that two share this machine."""
    variables = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    }
    return {
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": f"pvc://models/{model}"},
            "engine": {
                "type": "vllm",
                "image": IMAGE,
                "dtype": "bfloat16",
                "maxModelLen": 1024,
                "maxNumSeqs": 4,
                "args": ["--enforce-eager"],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
            },
            "routing": {"replicas": 1, "queue": "none"},
            "drain": {"timeout": "120s"},
            "roles": {"colocated": {"replicas": {"min": 1, "max": most}}},
            "slo": {"ttft": {"target": ttft}, "tpot": {"target": tpot}},
            "autoscaling": {
                "interval": "5s",
                "coldStart": "60s",
                "scaleDown": {"stabilization": "30s"},
            },
            "metrics": {"scrapeInterval": "1s", "rateWindow": "20s"},
        },
    }


@contextlib.contextmanager
def running(peer: Path, **asked: Any) -> Iterator[tuple[Kube, str]]:
    """The fleet, Ready, and its gateway's URL. All ends with the block. `asked`: of `manifest`."""
    weights = _weights()
    with tempfile.TemporaryDirectory(prefix="argosy-vllm-") as folder:
        file = Path(folder) / "images.json"
        file.write_text(json.dumps(images(peer)))
        cluster = Cluster("vllm", nodes=2, state_dir=Path(folder) / "c", images_file=file)
        cluster.start(tied=True)
        try:
            kube = Kube(cluster.kubeconfig)
            helm_install(kube, "--wait", "--timeout", "300s")
            kube.kubectl("create", "namespace", NAMESPACE)
            kube.kubectl("apply", "-f", "-", given=_claim(weights.parent))
            spec = manifest(weights.name, **asked)
            kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", given=yaml.safe_dump(spec))
            kube.wait(SD, is_ready, timeout_s=READY_S, what="the fleet of vLLM is Ready")
            yield kube, await_answer(f"http://127.0.0.1:{cluster.host_port(NAME, 80, NAMESPACE)}")
        finally:
            cluster.stop()


def _weights() -> Path:
    words = [sys.executable, "-m", "local.weights.smollm2"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - ours
    return Path(done.stdout.strip().splitlines()[-1])


def _claim(folder: Path) -> str:
    """A volume over the folder, and the claim `models`."""
    spec = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "vllm-models"},
        "spec": {
            **spec,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": "models"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": NAMESPACE},
        "spec": {
            **spec,
            "volumeName": "vllm-models",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return yaml.safe_dump_all([volume, claim])
