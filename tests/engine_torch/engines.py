"""Engines as processes on loopback, with ports that were free."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from argosy_bench.ports import free_ports


@dataclass(frozen=True)
class Engine:
    api: int
    admin: int
    kv: int
    pid: int = 0

    def complete(
        self, prompt: str, max_tokens: int, prefill: "Engine | None" = None, **more: object
    ) -> str:
        """Greedy text of exactly `max_tokens` tokens, through /v1/completions."""
        return self.choice(prompt, max_tokens, prefill, **more)["text"]

    def choice(
        self, prompt: str, max_tokens: int, prefill: "Engine | None" = None, **more: object
    ) -> dict:
        """The whole choice of that text."""
        body = {
            "model": "m",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        headers = {"content-type": "application/json"}
        if prefill is not None:
            headers["x-argosy-prefill"] = f"127.0.0.1:{prefill.kv}"
        url = f"http://127.0.0.1:{self.api}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=100) as answer:
            return json.load(answer)["choices"][0]

    def metric(self, line: str) -> float:
        """The value of the sample that begins with `line`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as page:
            text = page.read().decode()
        return next(float(x.rsplit(" ", 1)[1]) for x in text.splitlines() if x.startswith(line))


@contextlib.contextmanager
def engine(
    model: Path,
    role: str,
    log: Path,
    *options: str,
    program: tuple[str, ...] = ("-m", "argosy"),
    within_s: float = 60.0,
) -> Iterator[Engine]:
    """A ready engine; ended when the block ends. `program`: what Python runs in argosy's place.

    AssertionError if it is not ready `within_s`.
    """
    ports = Engine(*free_ports(3))
    command = f"""engine serve --model {model} --served-name m --role {role} --dtype float32
        --host 127.0.0.1 --port {ports.api} --admin-port {ports.admin} --kv-port {ports.kv}
        --threads 1 --kv-cache-tokens 4096 --max-num-batched-tokens 64 --drain-timeout-s 5"""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *program, *command.split(), *options], stdout=out, stderr=out
        )
        try:
            _await_ready(ports, process, log, within_s)
            yield replace(ports, pid=process.pid)
        finally:
            process.terminate()
            process.wait(30)


def _await_ready(ports: Engine, process: subprocess.Popen, log: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the engine ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{ports.admin}/ready", timeout=2).close()
            return
        time.sleep(0.1)  # another process: there is nothing to await but its answer
    raise AssertionError(f"the engine was not ready in {within_s} s: {log.read_text()[-2000:]}")
