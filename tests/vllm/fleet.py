"""A fleet of real vLLM pods, as the tests see it: answers, counters and processes."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from argosy_bench.cluster.fleet import processes_of
from argosy_bench.cluster.vllm import NAME
from argosy_bench.cluster.vllm_apart import counters, pods
from local.demo.kube import Kube

Pod = dict[str, Any]
TOKENS = 8
WITHIN_S = 120.0
START_S = 400.0
"""vLLM starts in 100 s where two cores are shared with another pod."""


@dataclass
class Fleet:
    """One prefill and one decode pod behind a gateway."""

    kube: Kube
    url: str
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    def ask(self, prompt: str, **more: Any) -> str:
        """Return the greedy text of a completion; AssertionError if it is none."""
        body = {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, **more}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=WITHIN_S)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def begin(self, prompt: str) -> Future[str]:
        """Ask in another thread."""
        return self._threads.submit(self.ask, prompt)

    def ask_decode_alone(self, prompt: str) -> str:
        """Return what the decode pod answers if it computes the prompt, as it does with this."""
        return self.ask(prompt, prompt_logprobs=0)

    def pod(self, role: str) -> Pod:
        """Return the only pod of the role that is not leaving."""
        (pod,) = pods(self.kube, role)
        return pod

    def counters(self, role: str) -> dict[str, float]:
        """Return what the role's pod counts (`argosy_bench.cluster.vllm_apart.counters`)."""
        return counters(self.kube, role)

    def grown(self, role: str, name: str, since: dict[str, float]) -> float:
        """Return by how much a counter of the role's pod has grown."""
        return self.counters(role).get(name, 0.0) - since.get(name, 0.0)

    def until(self, what: str, holds: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
        """Return the first value that is true; AssertionError says what was not."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                if found := holds():
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not within {within_s:.0f} s: {what}")

    def is_whole(self) -> bool:
        """Whether both pods are Ready."""
        return all(_is_ready(self.pod(role)) for role in ("prefill", "decode"))

    @contextlib.contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        """Stop what computes in the role's pod for the length of the block."""
        self.stop(role)
        try:
            yield
        finally:
            self.go_on(role)

    def stop(self, role: str) -> None:
        """Stop what computes in the role's pod; its server goes on."""
        self._signal(self._computing(role), signal.SIGSTOP)

    def go_on(self, role: str) -> None:
        """Undo `stop`."""
        self._signal(self._computing(role), signal.SIGCONT)

    def kill(self, role: str) -> None:
        """Kill the role's container; the kubelet starts it again."""
        servers = processes_of(self.pod(role))
        self._signal([*self._computing(role), *servers], signal.SIGKILL)

    def _computing(self, role: str) -> list[int]:
        servers = processes_of(self.pod(role))
        return [process for process in _tree(servers) if process not in servers]

    def _signal(self, processes: list[int], number: signal.Signals) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def _is_ready(pod: Pod) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _tree(roots: list[int]) -> list[int]:
    """Return these processes and all that descend from them: vLLM's workers overwrite the variables
    by which a pod's processes are found."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = list(roots)
    for process in found:  # it grows
        found += [child for child, parent in parents.items() if parent == process]
    return list(dict.fromkeys(found))
