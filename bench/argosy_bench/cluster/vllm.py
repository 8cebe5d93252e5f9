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
from local.demo.kube import Kube, await_answer, condition, is_ready
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


def manifest(model: str, **spec: Any) -> dict[str, Any]:
    """The ServingDeployment; each pod computes with one thread, so that two share this machine.

    `spec` comes in place of its members.
    """
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
            "roles": {"colocated": {"replicas": {"min": 1, "max": 2}}},
            "slo": {"ttft": {"target": "1500ms"}, "tpot": {"target": "250ms"}},
            "autoscaling": {
                "interval": "5s",
                "coldStart": "60s",
                "scaleDown": {"stabilization": "30s"},
            },
            "metrics": {"scrapeInterval": "1s", "rateWindow": "20s"},
            **spec,
        },
    }


@contextlib.contextmanager
def running(peer: Path, **spec: Any) -> Iterator[tuple[Kube, str]]:
    """The fleet, Ready, and its gateway's URL. All ends with the block. `spec`: of `manifest`."""
    with tempfile.TemporaryDirectory(prefix="argosy-vllm-") as folder:
        file = Path(folder) / "images.json"
        file.write_text(json.dumps(images(peer)))
        cluster = Cluster("vllm", nodes=2, state_dir=Path(folder) / "c", images_file=file)
        cluster.start(tied=True)
        try:
            kube = Kube(cluster.kubeconfig)
            helm_install(kube, "--wait", "--timeout", "300s")
            kube.kubectl("create", "namespace", NAMESPACE)
            kube.kubectl("apply", "-f", "-", given=_claim(_weights().parent))
            apply(kube, **spec)
            yield kube, await_answer(f"http://127.0.0.1:{cluster.host_port(NAME, 80, NAMESPACE)}")
        finally:
            cluster.stop()


def apply(kube: Kube, **spec: Any) -> None:
    """Apply the fleet, and wait until it is Ready and no pod of an older revision is left."""
    whole = yaml.safe_dump(manifest(_weights().name, **spec))
    kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", given=whole)

    def serves(found: dict[str, Any]) -> bool:
        return is_ready(found) and condition(found, "RolledOut")["status"] == "True"

    kube.wait(SD, serves, timeout_s=READY_S, what="the fleet of vLLM serves as applied")


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


def rows(name: str) -> tuple[Figure, ...]:
    """Return the figures of a fleet that takes a second replica and gives it back."""
    return (
        Figure(f"{name}_requests_lost", target=Target("==", 0), digits=0),
        Figure(f"{name}_replicas_max", target=Target(">=", 2), digits=0),
        Figure(f"{name}_replicas_last", target=Target("==", 1), digits=0),
        Figure(f"{name}_explains", target=Target("==", 1), digits=0),
        Figure(f"{name}_requests", digits=0),
        Figure(f"{name}_requests_shed", digits=0),
        Figure(f"{name}_second_serves_s", "s", digits=0),
        Figure(f"{name}_back_at_one_s", "s", digits=0),
    )


CLIENTS = 10
PROMPT, ANSWER = 48, 24
UP_S, DOWN_S = 600.0, 600.0
_READ_S = 1.0


def measure(peer: Path, figures: Figures) -> None:
    """Put every figure of `rows`. `peer`: an environment with vLLM's CPU build."""
    figures.declare(rows("vllm_fleet"))
    with running(peer) as (kube, url):
        run = Run(kube, url, "colocated", PROMPT, ANSWER)
        asyncio.run(run.play())
        why = kube.kubectl("argosy", "explain", NAME, "-n", NAMESPACE)
        figures.notes["explain"] = why[:4000]
    figures.put("vllm_fleet_explains", all(run.reasons) and "colocated       2 → 1" in why)
    run.put(figures, "vllm_fleet")


class Run:
    """The clients, and what they and the fleet's status say."""

    def __init__(
        self, kube: Kube, url: str, role: str, prompt: int, answer: int, *, clients: int = CLIENTS
    ) -> None:
        """`role` is the one whose replicas change; `prompt` and `answer` are tokens; so many
        `clients` ask at once when the load is high."""
        self.kube, self.url, self.role = kube, url, role
        self._tokens = prompt, answer
        self._at_once = clients
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
            for number in range(self._at_once):
                group.create_task(self._client(http, number))
            try:
                # A law that has learnt nothing yet may have made a second pod already.
                await self._until(1, DOWN_S)
                self._clients, began = self._at_once, time.monotonic()
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
            due = Due(time.monotonic() - self._began, 0, *self._tokens)
            seen = await ask(http, self.url, NAME, self._at_once * asked + number, due, self._began)
            self.seen.append(seen)
            asked += 1
            await asyncio.sleep(0.2 if self._clients > 1 else 2.0)

    async def _until(self, replicas: int, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            status = await asyncio.to_thread(self._status)
            role = status["roles"][self.role]
            self.serving = role.get("serving", 0)
            self.most = max(self.most, self.serving)
            decision = (status.get("autoscaling") or {}).get("lastDecision") or {}
            if decision.get("from") != decision.get("to"):
                self.reasons.setdefault(decision["time"], decision["message"])
            if self.serving == role.get("desired") == replicas:
                return
            await asyncio.sleep(_READ_S)
        raise TimeoutError(f"not at {replicas} replicas within {limit_s:g} s: {status}")

    def put(self, figures: Figures, name: str) -> None:
        """Put what `rows` declares."""
        outcomes = [one.outcome for one in self.seen]
        lost = [one for one in self.seen if one.outcome not in ("ok", "shed")]
        figures.put(f"{name}_requests_lost", len(lost))
        figures.put(f"{name}_replicas_max", self.most)
        figures.put(f"{name}_replicas_last", self.serving)
        figures.put(f"{name}_requests", len(outcomes))
        figures.put(f"{name}_requests_shed", outcomes.count("shed"))
        figures.put(f"{name}_second_serves_s", self.up_s)
        figures.put(f"{name}_back_at_one_s", self.down_s)
        figures.lists[f"{name}_lost"] = [asdict(one) for one in lost[:20]]
        figures.lists[f"{name}_decisions"] = [
            {"at": at, "message": message} for at, message in self.reasons.items()
        ]

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.kube.get(SD) or {})["status"]
        return found
