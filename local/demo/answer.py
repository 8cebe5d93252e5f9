"""A real answer from real weights: by a prefill and a decode pod, and by a colocated one."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import Kube, is_ready
from local.demo.places.place import NAMESPACE, Place
from local.demo.traffic import pods
from local.demo.traffic.stream import Stream
from local.demo.view import console, say

QUESTION = "The capital of France is"
EXPECTED = "Paris"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at 100 degrees. To make tea, first",
)
GREEDY_TOKENS = 64
FIRST_TOKENS = 24
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
    text = _ask(first, apart["metadata"]["name"], kube)
    figures.put("answer_correct", EXPECTED in text)
    with ThreadPoolExecutor(2) as asking:  # both fleets at once: their texts must not change
        fleets = ((first, apart["metadata"]["name"]), (second, together["metadata"]["name"]))
        one, other = asking.map(lambda fleet: _answers(*fleet), fleets)
    check_apart(one, _names(kube, apart["metadata"]["name"]))
    check_together(other, _names(kube, together["metadata"]["name"]))
    same = [answer.text for answer in one] == [answer.text for answer in other]
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
    """Longest time from a pod's creation to Ready among a fleet's engines, in whole seconds.

    DemoError if one of them is not Ready: the fleet said that it was.
    """
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    found = pods.items(kube, path, labelSelector=f"{pods.FLEET}={fleet},{pods.ROLE}!=gateway")
    waiting = [pod["metadata"]["name"] for pod in found if not pods.is_ready(pod)]
    if waiting or not found:
        raise DemoError(f"fleet {fleet} says Ready; its pods that are not: {waiting or 'all'}")
    return max(_start_s(pod) for pod in found)


def _start_s(pod: dict[str, Any]) -> float:
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return (datetime.fromisoformat(ready["lastTransitionTime"]) - created).total_seconds()


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer and the pods that it names."""

    text: str
    prefill_pod: str | None
    """Header `x-argosy-prefill-pod`."""
    decode_pod: str | None
    """Header `x-argosy-decode-pod`, which a decode engine sends."""
    pod: str | None
    """Header `x-argosy-pod`, which a colocated engine sends."""


Names = dict[str, frozenset[str]]
"""Names of a fleet's pods by role."""


def _names(kube: Kube, fleet: str) -> Names:
    return pods.look(kube, NAMESPACE, fleet).names


def check_apart(answers: list[Answer], names: Names) -> None:
    """Each answer came through a prefill and a decode pod of this fleet; DemoError if not."""
    for answer in answers:
        _check_named("prefill", answer.prefill_pod, names)
        _check_named("decode", answer.decode_pod, names)
    _check_texts(answers)


def check_together(answers: list[Answer], names: Names) -> None:
    """Each answer came from one colocated pod of this fleet; DemoError if not."""
    for answer in answers:
        _check_named("colocated", answer.pod, names)
        if answer.prefill_pod:
            raise DemoError(f"a colocated answer was prefilled by {answer.prefill_pod}")
    _check_texts(answers)


def _check_named(role: str, pod: str | None, names: Names) -> None:
    if pod not in names.get(role, ()):
        raise DemoError(
            f"an answer names {pod or 'no pod'} as its {role} pod, and the fleet has "
            f"{', '.join(sorted(names.get(role, ()))) or 'none'}: see the gateway's log"
        )


def _check_texts(answers: list[Answer]) -> None:
    texts = {answer.text for answer in answers}
    if "" in texts or len(texts) < len(answers):
        raise DemoError(f"{len(answers)} prompts have the same or no text: {sorted(texts)}")


def _ask(url: str, model: str, kube: Kube) -> str:
    """Stream the answer to the terminal, with the pods that served it."""
    body = {"model": model, "prompt": QUESTION, "max_tokens": FIRST_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    read = Stream(FIRST_TOKENS)
    console.print(f"\n  [bold]{QUESTION}[/bold]", end="")
    with (
        httpx.Client(timeout=60, trust_env=False) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        answer.raise_for_status()
        for line in answer.iter_lines():
            shown = len(read.text)
            read.line(line, time.monotonic())
            console.print(read.text[shown:], end="", markup=False, soft_wrap=True)
        whole = _answer(read.text, answer.headers)
    console.print(
        f"\n  prefill by {whole.prefill_pod}, decode by {whole.decode_pod}\n", soft_wrap=True
    )
    if read.problem():
        raise DemoError(f"the first answer is not whole: {read.problem()}")
    check_apart([whole], _names(kube, model))
    return read.text


def _answers(url: str, model: str) -> list[Answer]:
    """Greedy answers to all prompts, asked at once: a batch must not change a text."""
    with ThreadPoolExecutor(len(PROMPTS)) as asking:
        return list(asking.map(lambda prompt: greedy(url, model, prompt), PROMPTS))


def greedy(url: str, model: str, prompt: str) -> Answer:
    """One answer that is not streamed; DemoError if it is not as long as asked."""
    body = {"model": model, "prompt": prompt, "max_tokens": GREEDY_TOKENS, "temperature": 0}
    body["ignore_eos"] = True
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    whole = answer.json()
    tokens = (whole.get("usage") or {}).get("completion_tokens")
    if tokens != GREEDY_TOKENS:
        raise DemoError(f"{model} answered {tokens} tokens instead of {GREEDY_TOKENS}")
    return _answer(whole["choices"][0]["text"], answer.headers)


def _answer(text: str, headers: httpx.Headers) -> Answer:
    apart = ("x-argosy-prefill-pod", "x-argosy-decode-pod")
    prefill, decode, one = (headers.get(name) for name in (*apart, "x-argosy-pod"))
    return Answer(text, prefill, decode, one)
