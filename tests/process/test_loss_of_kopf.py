"""A leader whose watches have ended: it writes nothing more, and its process ends with 1.

Without watches the operator would serve a picture that grows old, and no one would take over.
"""

import asyncio
import logging
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from argosy_operator.shell import app, trigger
from argosy_operator.shell.telemetry import metrics
from tests.ports.api_server import ApiServer
from tests.support.model import IMAGES

Watch = Callable[..., Awaitable[None]]


async def ends_at_once(**_: Any) -> None:
    return


async def fails(**_: Any) -> None:
    raise RuntimeError("the thread of the watches is gone")


@pytest.mark.parametrize(
    ("watch", "reason"),
    [
        (ends_at_once, "ending: kopf ended"),
        (fails, "ending: kopf ended: the thread of the watches is gone"),
    ],
)
async def test_the_leader_ends_with_1_and_keeps_its_lease_for_its_seconds(
    watch: Watch,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(trigger.kopf, "operator", watch)
    server = ApiServer(places=10, work_s=0.0)
    with caplog.at_level(logging.ERROR):
        async with server.serving(tmp_path) as kubeconfig, asyncio.timeout(20):
            options = app.Options(
                images=IMAGES,
                namespace="ns",
                lease_namespace="ns",
                metrics_port=0,
                kubeconfig=kubeconfig,
            )
            assert await app.run(options) == 1
    assert reason in [record.getMessage() for record in caplog.records]
    assert metrics.LEADER._value.get() == 0
    # The standby waits for the Lease's end: a release could overlap with a late write of this one.
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"]


async def test_watches_begin_where_the_pods_user_has_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With user ids that the platform assigns: kopf asked for the name, for a peering of its own
    that we do not use, and ended."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    class Asks(trigger.Trigger):
        def _login(self, **_: Any) -> None:
            loop.call_soon_threadsafe(asked.set)

    of = Asks(None, "ns", lambda *_: None)  # type: ignore[arg-type]  # it logs in nowhere
    of.start()
    login = asyncio.create_task(asked.wait())
    await asyncio.wait({login, of.ended}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert asked.is_set(), of.ended
    of.stop()


async def enqueued(handler: str, **event: Any) -> list[tuple[tuple[str, str], int | None]]:
    """What one event of a watch enqueues."""
    found: list[tuple[tuple[str, str], int | None]] = []

    def enqueue(key: tuple[str, str], generation: int | None) -> None:
        found.append((key, generation))

    of = trigger.Trigger(None, None, enqueue)  # type: ignore[arg-type]  # it logs in nowhere
    await getattr(of, handler)(**event)
    await asyncio.sleep(0)
    return found


async def test_a_fleets_event_enqueues_it_with_the_generation_of_its_spec() -> None:
    event = {"namespace": "ns", "name": "chat", "meta": {"generation": 3}, "labels": {}}
    assert await enqueued("_fleet", **event) == [(("ns", "chat"), 3)]


async def test_an_event_of_a_child_enqueues_the_fleet_that_its_label_names() -> None:
    labels = {"serving.argosy.dev/fleet": "chat"}
    event = {"namespace": "ns", "name": "chat-decode-0", "meta": {"generation": 7}}
    assert await enqueued("_child", **event, labels=labels) == [(("ns", "chat"), None)]
    assert await enqueued("_child", **event, labels={}) == []
