"""vLLM's CPU build behind our gateway: 1 → 2 → 1 replicas on the SLO, and no request lost.

A single client asks until the law has learnt that one replica is enough. Then more of them than one
replica serves at once ask, until a second one serves. Then the single one again, until the fleet is
back at one. The fleet runs on a one-machine Kubernetes of its own, with the test weights.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import yaml

from local.cluster.cluster import Cluster
from local.demo.kube import Kube, await_answer, is_ready
from local.demo.places.place import helm_install
from local.demo.traffic.client import ANSWER_LIMIT_S, ask
from local.demo.traffic.plan import Due
from local.demo.traffic.score import Seen
from local.figures import Figure, Figures, Target

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
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
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


ROWS = (
    Figure("vllm_fleet_requests_lost", target=Target("==", 0), digits=0),
    Figure("vllm_replicas_max", target=Target(">=", 2), digits=0),
    Figure("vllm_replicas_last", target=Target("==", 1), digits=0),
    Figure("vllm_explains", target=Target("==", 1), digits=0),
    Figure("vllm_fleet_requests", digits=0),
    Figure("vllm_fleet_requests_shed", digits=0),
    Figure("vllm_second_serves_s", "s", digits=0),
    Figure("vllm_back_at_one_s", "s", digits=0),
)
CLIENTS = 10
PROMPT, ANSWER = 48, 24
TTFT, TPOT = "1500ms", "250ms"
UP_S, DOWN_S = 600.0, 600.0
_READ_S = 1.0


def measure(peer: Path, figures: Figures) -> None:
    """Put every figure of ROWS. `peer`: an environment with vLLM's CPU build."""
    figures.declare(ROWS)
    with running(peer, most=2, ttft=TTFT, tpot=TPOT) as (kube, url):
        run = _Run(kube, url)
        asyncio.run(run.play())
        why = kube.kubectl("argosy", "explain", NAME, "-n", NAMESPACE)
        figures.notes["explain"] = why[:4000]
    outcomes = [one.outcome for one in run.seen]
    lost = [one for one in run.seen if one.outcome not in ("ok", "shed")]
    figures.put("vllm_fleet_requests_lost", len(lost))
    figures.put("vllm_replicas_max", run.most)
    figures.put("vllm_replicas_last", run.serving)
    figures.put("vllm_explains", all(run.reasons) and "colocated       2 → 1" in why)
    figures.put("vllm_fleet_requests", len(outcomes))
    figures.put("vllm_fleet_requests_shed", outcomes.count("shed"))
    figures.put("vllm_second_serves_s", run.up_s)
    figures.put("vllm_back_at_one_s", run.down_s)
    figures.lists["lost"] = [asdict(one) for one in lost[:20]]
    figures.lists["decisions"] = [
        {"at": at, "message": message} for at, message in run.reasons.items()
    ]


class _Run:
    """The clients, and what they and the fleet's status say."""

    def __init__(self, kube: Kube, url: str) -> None:
        self.kube, self.url = kube, url
        self.seen: list[Seen] = []
        self.most = self.serving = 0
        self.up_s = self.down_s = 0.0
        self.reasons: dict[str, str] = {}
        """Time → the law's words, at each change of replicas."""
        self._clients, self._ended = 1, False
        self._began = time.monotonic()

    async def play(self) -> None:
        """Raises TimeoutError if the replicas do not come or do not go."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        timeout = httpx.Timeout(ANSWER_LIMIT_S, connect=10.0)
        async with (
            httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(CLIENTS):
                group.create_task(self._client(http, number))
            try:
                # A law that has learnt nothing yet may have made a second pod already.
                await self._until(1, DOWN_S)
                self._clients, began = CLIENTS, time.monotonic()
                await self._until(2, UP_S)
                self.up_s = time.monotonic() - began
                await asyncio.sleep(20)  # both serve
                self._clients, began = 1, time.monotonic()
                await self._until(1, DOWN_S)
                self.down_s = time.monotonic() - began
            finally:
                self._ended = True

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        """Asks again and again, whenever its number is among those of the moment."""
        asked = 0
        while not self._ended:
            if number >= self._clients:
                await asyncio.sleep(0.5)
                continue
            due = Due(time.monotonic() - self._began, 0, PROMPT, ANSWER)
            seen = await ask(http, self.url, NAME, CLIENTS * asked + number, due, self._began)
            self.seen.append(seen)
            asked += 1
            await asyncio.sleep(0.2 if self._clients > 1 else 2.0)

    async def _until(self, replicas: int, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            status = await asyncio.to_thread(self._status)
            role = status["roles"]["colocated"]
            self.serving = role.get("serving", 0)
            self.most = max(self.most, self.serving)
            decision = (status.get("autoscaling") or {}).get("lastDecision") or {}
            if decision.get("from") != decision.get("to"):
                self.reasons.setdefault(decision["time"], decision["message"])
            if self.serving == role.get("desired") == replicas:
                return
            await asyncio.sleep(_READ_S)
        raise TimeoutError(f"not at {replicas} replicas within {limit_s:g} s: {status}")

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.kube.get(SD) or {})["status"]
        return found
