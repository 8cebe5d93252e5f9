"""A start with many fleets: the whole process, but for kopf, before a saturated API server."""

import asyncio
import os
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from argosy_operator.shell import app, metrics
from argosy_operator.shell.trigger import Watches
from tests.adapters.api_server import ApiServer
from tests.support.model import IMAGES

FLEETS = 150


class Bell:
    """In place of kopf: enqueues every fleet at once, as its first list does."""

    def __init__(self, _access: object, _namespace: object, enqueue: Any) -> None:
        self._enqueue, self.watches = enqueue, Watches()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        for number in range(FLEETS):
            self._enqueue(("ns", f"chat-{number}"), 1)

    def stop(self) -> None:
        pass


def rounds(result: str) -> float:
    return metrics.ROUNDS.labels(result)._value.get()


async def until(holds: Any, timeout_s: float) -> None:
    """Wait for what other tasks bring about; they announce nothing."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> app.Options:
    monkeypatch.setattr(app, "Trigger", Bell)
    return app.Options(images=IMAGES, namespace="ns", lease_namespace="ns", metrics_port=0)


@pytest.mark.long
@pytest.mark.slow
async def test_first_rounds_of_many_fleets_neither_fail_nor_delay_the_lease(
    options: app.Options, tmp_path: Path
) -> None:
    """The server works off 100 calls a second; the fleets' first rounds are 1,500 calls."""
    server = ApiServer(places=10, work_s=0.1)
    done, failed = rounds("done"), rounds("failed")
    async with server.serving(tmp_path) as kubeconfig:
        running = asyncio.create_task(app.run(replace(options, kubeconfig=kubeconfig)))

        def told() -> int:
            """Fleets of which status says more than who looks after them."""
            return sum("conditions" in status for status in server.statuses.values())

        await until(lambda: running.done() or told() == FLEETS, 100)
        assert not running.done(), "the operator ended by itself"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
    assert rounds("failed") == failed
    assert rounds("done") - done >= FLEETS
    assert max(later - earlier for earlier, later in pairwise(server.renewed_at)) < 8
