"""vLLM with prefill and decode apart: 1 → 2 → 1 prefill pods on the SLO, and no request lost.

A colocated fleet gives the texts first. Then the same fleet goes to mode disaggregated, gives the
same texts, and takes a second prefill pod while four clients ask. vLLM's own counters show the KV
that moved. It runs on a one-machine Kubernetes of its own, with the weights of
`local.weights.smollm2`.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from argosy_bench.cluster.vllm import IMAGE, NAME, NAMESPACE, Run, apply, rows, running
from local.demo.kube import Kube
from local.demo.traffic.client import ANSWER_LIMIT_S
from local.figures import Figure, Figures, Target

FIGURES = (
    *rows("vllm_apart"),
    Figure("vllm_apart_texts", digits=0),
    Figure("vllm_apart_texts_that_differ", target=Target("==", 0), digits=0),
    Figure("vllm_apart_kv_share", target=Target(">=", 0.95), digits=2),
    Figure("vllm_apart_kv_read_late", target=Target("==", 0), digits=0),
)
PROMPT, ANSWER, CLIENTS = 600, 2, 4
"""Tokens, and those who ask at once: prefill is what such requests wait for, and its KV is quicker
to move than to compute."""
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "UCX_TLS": "tcp,self",  # pods of one machine use it as those of two nodes do
}
_COMMON: dict[str, Any] = {
    "engine": {
        "type": "vllm",
        "image": IMAGE,
        "dtype": "float32",  # sums of another order give the same text
        "maxModelLen": 1024,
        "maxNumSeqs": 8,
        "args": ["--enforce-eager"],
        "env": [{"name": name, "value": value} for name, value in _VARIABLES.items()],
    },
    "slo": {"ttft": {"target": "6s"}, "tpot": {"target": "2s"}},
}
COLOCATED = {**_COMMON, "roles": {"colocated": {"replicas": {"min": 1, "max": 1}}}}
APART = {
    **_COMMON,
    "mode": "disaggregated",
    "roles": {
        "prefill": {"replicas": {"min": 1, "max": 2}},
        "decode": {"replicas": {"min": 1, "max": 1}},
    },
}
MOVED = "vllm:prompt_tokens_by_source_total/external_kv_transfer"
COMPUTED = "vllm:prompt_tokens_by_source_total/local_compute"
READ_LATE = "vllm:nixl_num_notifications_after_expiry_total"
_STORY = "The sailor looked at the wide sea and said nothing to the others. "
_TITLES = ("Storm", "Calm", "Harbour", "Island")


def pods(kube: Kube, role: str) -> list[dict[str, Any]]:
    """Return the role's pods that are not leaving."""
    selector = f"serving.argosy.dev/fleet={NAME},serving.argosy.dev/role={role}"
    found = kube.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector) or {}
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


def counters(kube: Kube, role: str) -> dict[str, float]:
    """Return what the role's pods count, by name, with its `source` where a name has one."""
    sums = dict[str, float]()
    for pod in pods(kube, role):
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8000/proxy/metrics"
        for line in kube.http.get(path).raise_for_status().text.splitlines():
            if line.startswith("vllm:"):
                series, _, value = line.rpartition(" ")
                plain, _, labels = series.partition("{")
                source = labels.partition('source="')[2].partition('"')[0]
                key = f"{plain}/{source}" if source else plain
                sums[key] = sums.get(key, 0.0) + float(value)
    return sums


_OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("completions", {"prompt": "The capital of France is", "max_tokens": 8}),
    ("chat/completions", {"max_tokens": 16}),
    ("chat/completions", {"max_tokens": 16, "stream": True}),
    (
        "chat/completions",
        {
            "max_tokens": 24,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "ship",
                    "schema": {
                        "type": "object",
                        "properties": {"name": {"type": "string", "maxLength": 8}},
                        "required": ["name"],
                        "additionalProperties": False,
                    },
                },
            },
        },
    ),
)


def texts(url: str) -> list[str]:
    """Return the greedy answers to a few requests of each shape."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("completions", {"prompt": f"{title}. {12 * _STORY}", "max_tokens": 12})
        for title in _TITLES
    ]
    with httpx.Client(timeout=ANSWER_LIMIT_S, trust_env=False) as http:
        return [_text(http, url, path, more) for path, more in (*asked, *_OTHERS)]


def _text(http: httpx.Client, url: str, path: str, more: dict[str, Any]) -> str:
    chat = {"messages": [{"role": "user", "content": "Name a ship and three colours."}]}
    body = {"model": NAME, "temperature": 0, **(chat if path.startswith("chat") else {}), **more}
    answer = http.post(f"{url}/v1/{path}", json=body).raise_for_status()
    if not body.get("stream"):
        choice = answer.json()["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


def measure(peer: Path, figures: Figures) -> None:
    """Put every figure of FIGURES. `peer`: an environment with vLLM's CPU build and nixl."""
    figures.declare(FIGURES)
    with running(peer, **COLOCATED) as (kube, url):
        expected = texts(url)
        apply(kube, **APART)
        differ = [pair for pair in zip(expected, texts(url), strict=True) if pair[0] != pair[1]]
        run = Run(kube, url, "prefill", PROMPT, ANSWER, clients=CLIENTS)
        before = counters(kube, "decode")
        try:
            asyncio.run(run.play())
        except TimeoutError as error:
            figures.notes["vllm-apart"] = str(error)
        grown = {name: n - before.get(name, 0.0) for name, n in counters(kube, "decode").items()}
        late = counters(kube, "prefill")[READ_LATE]
        why = kube.kubectl("argosy", "explain", NAME, "-n", NAMESPACE)
        figures.notes["explain"] = why[:4000]
    figures.lists["differ"] = [{"colocated": old, "apart": new} for old, new in differ]
    figures.put("vllm_apart_texts", len(expected))
    figures.put("vllm_apart_texts_that_differ", len(differ))
    figures.put("vllm_apart_kv_share", grown[MOVED] / max(grown[MOVED] + grown[COMPUTED], 1))
    figures.put("vllm_apart_kv_read_late", late)
    figures.put("vllm_apart_explains", all(f"{role} " in why for role in ("prefill", "decode")))
    run.put(figures, "vllm_apart")
