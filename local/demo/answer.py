"""A real answer from real weights: by a prefill and a decode pod, and by a colocated one."""

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import Kube, is_ready
from local.demo.places.place import NAMESPACE, Place
from local.demo.view import console, say

QUESTION = "The capital of France is"
EXPECTED = "Paris"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at 100 degrees. To make tea, first",
)
GREEDY_TOKENS = 64
START_LIMIT_S = 180


def run(place: Place, figures: DemoFigures, then: Callable[[], None]) -> None:
    """Apply two fleets with the same weights, ask both, compare, and delete the colocated one.

    `then` is called when both are Ready: it starts what may run while they answer.
    """
    kube = place.kube
    apart = yaml.safe_load(Path("examples/five-lines.yaml").read_text())
    together = {**apart, "metadata": {"name": f"{apart['metadata']['name']}-colocated"}}
    together["spec"] = {**apart["spec"], "mode": "colocated", "routing": {"replicas": 1}}
    place.provide_weights()
    applied = time.monotonic()
    manifest = Path("examples/five-lines.yaml").read_text().rstrip()
    console.print(manifest, style="cyan", soft_wrap=True)
    for fleet in (apart, together):
        kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", given=yaml.safe_dump(fleet))
    for fleet in (apart, together):
        _wait_ready(kube, fleet["metadata"]["name"])
    figures.put("fleets_ready_s", time.monotonic() - applied)
    then()
    figures.put("engine_start_s", slowest_start_s(kube, apart["metadata"]["name"]))
    first = place.publish(apart["metadata"]["name"])
    second = place.publish(together["metadata"]["name"])
    text = _ask(first, apart["metadata"]["name"])
    figures.put("answer_correct", EXPECTED in text)
    with ThreadPoolExecutor(2) as asking:  # both fleets at once: their texts must not change
        fleets = ((first, apart["metadata"]["name"]), (second, together["metadata"]["name"]))
        one, other = asking.map(lambda fleet: _texts(*fleet), fleets)
    same = one == other
    figures.put("pd_equals_colocated", same)
    verdict = "the same texts" if same else "DIFFERENT texts"
    say(
        f"{len(PROMPTS)} prompts, {GREEDY_TOKENS} greedy tokens each, "
        f"disaggregated and colocated: {verdict}"
    )
    kube.kubectl("delete", "sd", "-n", NAMESPACE, together["metadata"]["name"], "--wait=false")


def _wait_ready(kube: Kube, name: str) -> None:
    path = fleet_path(name)
    kube.wait(path, is_ready, timeout_s=START_LIMIT_S, what=f"fleet {name} Ready")
    say(f"fleet {name} is Ready")


def fleet_path(name: str) -> str:
    """API path of a ServingDeployment of the demo."""
    return f"/apis/serving.argosy.dev/v1alpha1/namespaces/{NAMESPACE}/servingdeployments/{name}"


def slowest_start_s(kube: Kube, fleet: str) -> float:
    """Longest time from a pod's creation to Ready among a fleet's engines, in whole seconds."""
    pods = kube.get(
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        labelSelector=f"serving.argosy.dev/fleet={fleet},serving.argosy.dev/role!=gateway",
    )
    assert pods is not None
    return max(_start_s(pod) for pod in pods["items"])


def _start_s(pod: dict[str, Any]) -> float:
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return (datetime.fromisoformat(ready["lastTransitionTime"]) - created).total_seconds()


def _ask(url: str, model: str) -> str:
    """Stream the answer to the terminal, with the pods that served it."""
    body = {"model": model, "prompt": QUESTION, "max_tokens": 24, "temperature": 0, "stream": True}
    text = ""
    console.print(f"\n  [bold]{QUESTION}[/bold]", end="")
    with (
        httpx.Client(timeout=60, trust_env=False) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        answer.raise_for_status()
        for line in answer.iter_lines():
            with contextlib.suppress(ValueError, IndexError, KeyError):
                piece = json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                text += piece
                console.print(piece, end="", markup=False, soft_wrap=True)
        headers = answer.headers
    console.print(
        f"\n  prefill by {headers.get('x-argosy-prefill-pod')}, "
        f"decode by {headers.get('x-argosy-decode-pod')}\n",
        soft_wrap=True,
    )
    if not headers.get("x-argosy-prefill-pod"):
        raise DemoError(
            "no prefill pod served the question, so the answer was not disaggregated: "
            "see the gateway's log"
        )
    return text


def _texts(url: str, model: str) -> list[str]:
    """Greedy answers to all prompts, asked at once: a batch must not change a text."""
    with ThreadPoolExecutor(len(PROMPTS)) as asking:
        return list(asking.map(lambda prompt: _greedy(url, model, prompt), PROMPTS))


def _greedy(url: str, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": GREEDY_TOKENS, "temperature": 0}
    body["ignore_eos"] = True
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    whole = answer.json()
    if whole["usage"]["completion_tokens"] != GREEDY_TOKENS:
        raise DemoError(
            f"{model} answered {whole['usage']['completion_tokens']} tokens instead of the "
            f"{GREEDY_TOKENS} that were asked for"
        )
    text: str = whole["choices"][0]["text"]
    return text
