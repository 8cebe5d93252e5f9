"""A leader whose watches have ended: it writes nothing more, and its process ends with 1.

Without watches the operator would serve a picture that grows old, and no one would take over.
"""

import asyncio
import logging
import os
import pwd
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from argosy_bench.ports import free_ports
from argosy_operator.shell import app, metrics, trigger
from tests.adapters.api_server import ApiServer
from tests.support.model import IMAGES

Watch = Callable[..., Awaitable[None]]
OURS = ("servingdeployments", "servingroles")


async def ends_at_once(*, stop_flag: threading.Event) -> None:
    """As kopf, it leaves a thread behind that waits for the flag."""
    asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)


async def fails(*, stop_flag: threading.Event) -> None:
    await ends_at_once(stop_flag=stop_flag)
    raise RuntimeError("the thread of the watches is gone")


async def leaves_a_thread_that_hangs(*, stop_flag: threading.Event) -> None:
    """Such as one that looks up a name."""
    asyncio.get_running_loop().run_in_executor(None, HUNG.wait)


HUNG = threading.Event()


@pytest.fixture(autouse=True)
def triggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[trigger.Trigger]]:
    """Those that the operators of the test make. An operator's process ends with its threads; that
    of the tests would wait for them."""
    made: list[trigger.Trigger] = []

    class Noted(trigger.Trigger):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(app, "Trigger", Noted)
    HUNG.clear()
    yield made
    HUNG.set()
    for one in made:
        one._stop.set()


@pytest.mark.parametrize(
    ("watch", "reason"),
    [
        (ends_at_once, "ending: kopf ended"),
        (fails, "ending: kopf ended: the thread of the watches is gone"),
        (leaves_a_thread_that_hangs, "ending: kopf ended"),
    ],
)
async def test_the_leader_ends_with_1_and_keeps_its_lease_for_its_seconds(
    watch: Watch,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    async def spawn(*, stop_flag: threading.Event, **_: Any) -> list[asyncio.Task[None]]:
        stays = asyncio.create_task(asyncio.Event().wait())
        return [stays, asyncio.create_task(watch(stop_flag=stop_flag))]

    async def hang(_: object) -> None:
        """Ending may take kopf for ever: it waits for watches that it has cancelled."""
        await asyncio.Event().wait()

    monkeypatch.setattr(trigger.kopf, "spawn_tasks", spawn)
    monkeypatch.setattr(trigger.kopf, "run_tasks", hang)
    server = ApiServer(places=10, work_s=0.0)
    with caplog.at_level(logging.ERROR):
        async with server.serving(tmp_path) as kubeconfig, asyncio.timeout(20):
            assert await app.run(options(kubeconfig)) == 1
    assert reason in [record.getMessage() for record in caplog.records]
    assert metrics.LEADER._value.get() == 0
    # The standby waits for the Lease's end: a release could overlap with a late write of this one.
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"]


def options(kubeconfig: str, metrics_port: int = 0) -> app.Options:
    return app.Options(
        images=IMAGES,
        namespace="ns",
        lease_namespace="ns",
        metrics_port=metrics_port,
        kubeconfig=kubeconfig,
    )


async def until(holds: Callable[[], Any]) -> None:
    """Wait for what other tasks bring about; they announce nothing."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def watched(server: ApiServer) -> bool:
    return server.watched >= set(trigger.KINDS)


async def test_a_leader_whose_crds_are_deleted_ends_and_no_replica_leads_until_they_are_back(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server, (port,) = ApiServer(places=10, work_s=0.0), free_ports(1)
    async with server.serving(tmp_path) as kubeconfig:
        leader = asyncio.create_task(app.run(options(kubeconfig)))
        await until(lambda: leader.done() or watched(server))
        server.take_away(*OURS)
        async with asyncio.timeout(30):
            assert await leader == 1
        (why,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ending")]
        assert "ServingDeployment 404" in why

        server.lease = None
        waiting = asyncio.create_task(app.run(options(kubeconfig, port)))
        with caplog.at_level(logging.WARNING):
            await until(lambda: "not standing for the Lease" in caplog.text)
        status, said = await ask(port, "/ready")
        assert (status, server.lease) == (503, None)
        assert all(f"{plural}.serving.argosy.dev" in said for plural in OURS)
        assert (await ask(port, "/health"))[0] == 200, "a restart brings no CRD"

        server.absent.clear()
        await until(lambda: waiting.done() or watched(server))
        assert (await ask(port, "/ready"))[0] == 200
        os.kill(os.getpid(), signal.SIGTERM)
        assert await waiting == 0


async def test_a_standby_gives_the_lease_back_if_the_crds_are_gone_when_it_gets_it(
    tmp_path: Path,
) -> None:
    server = ApiServer(places=10, work_s=0.0)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = {"holderIdentity": "another", "renewTime": now, "leaseDurationSeconds": 60}
    meta = {"name": "argosy-operator", "namespace": "ns", "resourceVersion": "1"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
    server.lease = lease | {"spec": held}
    async with server.serving(tmp_path) as kubeconfig:
        standby = asyncio.create_task(app.run(options(kubeconfig)))
        await until(lambda: server.lease_reads)
        server.absent.update(OURS)
        server.lease = lease | {"spec": held | {"holderIdentity": ""}}
        await until(lambda: standby.done() or len(server.renewed_at) >= 2)
        assert server.lease["spec"]["holderIdentity"] == ""
        assert not server.watched
        os.kill(os.getpid(), signal.SIGTERM)
        assert await standby == 0


async def test_an_operator_that_cannot_reach_the_api_server_is_not_ready_and_says_why(
    tmp_path: Path,
) -> None:
    async with ApiServer(places=1, work_s=0.0).serving(tmp_path) as kubeconfig:
        pass  # it is away now
    (port,) = free_ports(1)
    running = asyncio.create_task(app.run(options(kubeconfig, port)))
    said = ""
    async with asyncio.timeout(30):
        while "Unreachable" not in said:
            await asyncio.sleep(0.05)
            with suppress(httpx.TransportError):
                status, said = await ask(port, "/ready")
    assert status == 503
    assert (await ask(port, "/health"))[0] == 200, "a restart does not help"
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


def behind_proxy(kubeconfig: Path) -> None:
    """The server is now the proxy to a server that has no address."""
    config = yaml.safe_load(kubeconfig.read_text())
    (cluster,) = config["clusters"]
    proxy = cluster["cluster"]["server"]
    cluster["cluster"] = {"server": "http://api.invalid", "proxy-url": proxy}
    kubeconfig.write_text(yaml.safe_dump(config))


async def test_watches_and_calls_go_through_the_proxy_of_the_kubeconfig(tmp_path: Path) -> None:
    server = ApiServer(places=10, work_s=0.0)
    async with server.serving(tmp_path) as path:
        behind_proxy(Path(path))
        leader = asyncio.create_task(app.run(options(path)))
        await until(lambda: leader.done() or watched(server))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await leader == 0


@pytest.mark.parametrize(
    ("trouble", "why"), [("silent", "no answer"), ("unwatchable", "the API server answers 403")]
)
async def test_a_leader_ends_and_names_the_one_kind_that_it_cannot_watch(
    trouble: str,
    why: str,
    triggers: list[trigger.Trigger],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(trigger, "LOOK_S", 0.05)
    server = ApiServer(places=10, work_s=0.0)
    getattr(server, trouble).add("pods")
    others, refused = set(trigger.KINDS.values()) - {"Pod"}, trouble == "unwatchable"
    async with server.serving(tmp_path) as kubeconfig:
        leader = asyncio.create_task(app.run(options(kubeconfig)))
        await until(lambda: triggers)
        watches = triggers[-1].watches
        await until(lambda: watches._answered.keys() == others)
        await until(lambda: ("Pod" in watches._refused) == refused)
        assert not leader.done()
        monkeypatch.setattr(trigger, "FIRST_S", 0.0)
        async with asyncio.timeout(30):
            assert await leader == 1
    (said,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ending")]
    assert f"Pod ({why}" in said
    assert "Service" not in said


async def ask(port: int, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"http://127.0.0.1:{port}{path}")
    return answer.status_code, answer.text


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
