"""Simulated engines as processes on loopback, on ports that were free."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from argosy_bench.ports import free_ports


@dataclass(frozen=True)
class SimEngine:
    """`api`, `admin`, `kv` are ports."""

    process: subprocess.Popen
    name: str
    role: str
    api: int
    admin: int
    kv: int

    def page(self, path: str, method: str = "GET") -> httpx.Response:
        """An answer of the admin port."""
        return httpx.request(method, f"http://127.0.0.1:{self.admin}{path}", verify=False)

    def metric(self, line_start: str) -> float:
        text = self.page("/metrics").text
        return next(
            float(x.rsplit(" ", 1)[1]) for x in text.splitlines() if x.startswith(line_start)
        )

    def entry(self) -> dict[str, object]:
        """A line of the gateway's `--endpoints` file."""
        return {
            "name": self.name,
            "role": self.role,
            "ip": "127.0.0.1",
            "port": self.api,
            "kv_port": self.kv,
            "revision": "0a0a0a0a",
        }


def eventually(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Await a state of another process, which announces nothing."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError("did not come about in time")


@contextlib.contextmanager
def sim_engines(
    *roles: str, options: tuple[str, ...] = (), logs: Path | None = None
) -> Iterator[list[SimEngine]]:
    """One ready engine a role, all started at once; killed when the block ends.

    `logs` is a folder for the engines' standard error, a file each with the engine's name.
    """
    with contextlib.ExitStack() as stack:
        folder = logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = []
        for index, role in enumerate(roles):
            name = f"{role}-{index}"
            log = stack.enter_context((folder / name).open("wb"))
            engines.append(_start(name, role, options, log))
            stack.callback(engines[-1].process.wait)
            stack.callback(engines[-1].process.kill)
        for engine in engines:
            eventually(lambda engine=engine: _is_ready(engine, folder / engine.name))
        yield engines


def _is_ready(engine: SimEngine, log: Path) -> bool:
    if engine.process.poll() is not None:
        raise AssertionError(f"{engine.name} ended: {log.read_text()[-2000:]}")
    return engine.page("/ready").status_code == 200


def _start(name: str, role: str, options: tuple[str, ...], log: BinaryIO) -> SimEngine:
    api, admin, kv = free_ports(3)
    command = f"""engine serve --model sim:opt-13b-a100 --served-name m --role {role}
        --host 127.0.0.1 --port {api} --admin-port {admin} --kv-port {kv}"""
    process = subprocess.Popen(
        [sys.executable, "-m", "argosy", *command.split(), *options],
        env={**os.environ, "POD_NAME": name},
        stderr=log,
    )
    return SimEngine(process, name, role, api, admin, kv)
