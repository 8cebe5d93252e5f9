"""The watch of pods under faults that a real API server does not produce on demand."""

import asyncio
import contextlib
import datetime as dt
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from argosy_gateway.pods.credentials import ApiServer, in_cluster
from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.watch import WatchTimes, follow_api_server, follow_file
from local.cluster.config.pki import make_authority

TIMES = WatchTimes(first_backoff_s=0.01, longest_backoff_s=0.02, silence_s=0.2, answer_s=0.2)
BROKEN = 500


def pod(name, version="1", **meta):
    """A Ready engine pod, as the API server lists it."""
    labels = {
        "serving.argosy.dev/fleet": "f",
        "serving.argosy.dev/role": "colocated",
        "serving.argosy.dev/revision": "0a",
        "pod-template-hash": "7c9",
    }
    owner = {"kind": "ReplicaSet", "name": "f-colocated-0a-7c9", "controller": True}
    own = {"name": name, "uid": name, "labels": labels, "ownerReferences": [owner]}
    return {
        "metadata": {**own, "resourceVersion": version, **meta},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class FaultyApi:
    """Answers each list or watch by the next line of a script; then hangs."""

    def __init__(self, *script):
        self.script = list(script)
        self.queries = []
        self.tokens = []
        self.token_file = None  # its content is replaced after the second query
        self.health = 200  # of /readyz, which asks for no token
        self.health_asked_with = []

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET /readyz "):
                self.health_asked_with.append("Bearer" in head)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % self.health)
                writer.close()
                return
            query = {k: v[0] for k, v in parse_qs(urlsplit(head.split(" ")[1]).query).items()}
            self.queries.append(query)
            self.tokens += [x.split(" ")[-1] for x in head.split("\r\n") if "Bearer" in x]
            if len(self.queries) == 2 and self.token_file:
                self.token_file.write_text("second\n")
            step = self.script.pop(0) if self.script else "hang"
            if isinstance(step, dict):  # a list
                data = json.dumps(step).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            elif isinstance(step, int):
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % step)
            elif isinstance(step, list):  # a watch's events
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                for kind, thing in step:
                    line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
                    for part in (line[:9], line[9:]):
                        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                writer.write(b"0\r\n\r\n")
            elif isinstance(step, bytes):  # a watch's bytes, as they are
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + step)
            elif step == "silent":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                await reader.read()
            elif step == "hang":
                await reader.read()
            writer.close()


def listing(*pods, version="1", more=None):
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(pods)}


async def follow(api, until, tmp_path: Path):
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    token = tmp_path / "token"
    token.write_text("first\n")
    api.token_file = token
    at = ApiServer("127.0.0.1", server.sockets[0].getsockname()[1], None, token_file=token)
    directory = Directory(asyncio.get_running_loop().time)
    task = asyncio.create_task(
        follow_api_server(at, namespace="ns", fleet="f", into=directory, times=TIMES)
    )
    try:
        async with asyncio.timeout(5):
            while not until(directory):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
    return directory


def names(directory):
    return sorted(e.name for e in directory.all())


async def test_a_deleted_pod_is_removed_by_its_uid_which_is_not_its_name(tmp_path):
    """A StatefulSet's pod comes back under its name; a late event is about the one before."""
    old, new = pod("a", "8", uid="uid-1"), pod("a", "9", uid="uid-2")
    api = FaultyApi(listing(old), [("ADDED", new), ("DELETED", old), ("ADDED", pod("end"))])
    directory = await follow(api, lambda d: "end" in names(d), tmp_path)
    assert sorted(e.uid for e in directory.all()) == ["end", "uid-2"]


async def test_pages_of_a_list_are_joined_and_events_applied(tmp_path):
    api = FaultyApi(
        listing(pod("a"), more="next"),
        listing(pod("b"), version="7"),
        [
            ("ADDED", pod("c", "8")),
            ("DELETED", pod("a", "9")),
            ("MODIFIED", pod("b", "10", annotations={"serving.argosy.dev/drain": "x"})),
            ("BOOKMARK", {"metadata": {"resourceVersion": "11"}}),
        ],
    )
    directory = await follow(api, lambda d: len(api.queries) > 3, tmp_path)
    assert names(directory) == ["b", "c"]
    assert [e.name for e in directory.serving()] == ["c"]
    assert next(e for e in directory.all() if e.name == "b").state is State.DRAINING
    assert api.queries[1]["continue"] == "next"
    assert api.queries[2]["resourceVersion"] == "7"
    assert api.queries[3]["resourceVersion"] == "11"
    assert api.queries[0]["labelSelector"] == "serving.argosy.dev/fleet=f"
    assert api.tokens[0] == "first"
    assert api.tokens[-1] == "second"


async def test_410_leads_to_a_new_list_and_what_is_gone_is_forgotten(tmp_path):
    gone = ("ERROR", {"code": 410, "message": "too old"})
    api = FaultyApi(listing(pod("a")), [gone], listing(pod("b")), 410, listing(pod("c")))
    assert names(await follow(api, lambda d: names(d) == ["c"], tmp_path)) == ["c"]


async def test_pods_stay_known_while_the_api_server_fails(tmp_path):
    api = FaultyApi(listing(pod("a"), version="5"), 500, "close", 403, "hang", [], 500)
    directory = await follow(api, lambda d: len(api.queries) > 6, tmp_path)
    assert [e.name for e in directory.serving()] == ["a"]
    assert {q["resourceVersion"] for q in api.queries[1:]} == {"5"}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_gateway_that_the_api_server_refuses_knows_since_when(tmp_path, status):
    api = FaultyApi(listing(pod("a")), *[status] * 1000)
    directory = await follow(api, lambda d: d.denied_for_s() > 0, tmp_path)
    assert names(directory) == ["a"]
    assert not any(api.health_asked_with)


@pytest.mark.parametrize(
    "script", [[BROKEN] * 20, ["close"] * 20, [401] * 20], ids=["500", "closed", "401 for all"]
)
async def test_an_api_server_that_fails_every_request_denies_no_gateway(tmp_path, script):
    """One that cannot read etcd knows no token: it answers 401 to every token, and is not ready."""
    api = FaultyApi(listing(pod("a")), *script)
    api.health = BROKEN
    asked = 0

    def over(directory):
        nonlocal asked
        assert directory.denied_for_s() == 0
        asked = len(api.queries)
        return asked > 15

    await follow(api, over, tmp_path)


async def test_json_of_another_shape_does_not_end_the_watch(tmp_path):
    odd = (
        [("ADDED", None)],
        b"[" * 200_000 + b"\n",
        b"null\n",
        b"not JSON\n",
        b'{"type": "ADDED"}\n',
    )
    api = FaultyApi({}, {"metadata": []}, listing(version="5"), *odd, [("ADDED", pod("a", "6"))])
    await follow(api, lambda d: names(d) == ["a"], tmp_path)


async def test_a_silent_watch_is_started_again_from_the_last_version(tmp_path):
    api = FaultyApi(listing(version="5"), "silent", [("ADDED", pod("a", "6"))])
    await follow(api, lambda d: names(d) == ["a"], tmp_path)


async def test_a_file_of_endpoints_is_followed_and_survives_nonsense(tmp_path, caplog):
    file = tmp_path / "e.json"
    file.write_text('[{"name":"a","role":"colocated","ip":"127.0.0.1","port":1}]')
    directory = Directory(asyncio.get_running_loop().time)
    task = asyncio.create_task(follow_file(file, into=directory, every_s=0.005))
    async with asyncio.timeout(5):
        while names(directory) != ["a"]:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        for nonsense in ("nonsense", "7", '["a"]', "[{}]", '[{"name":"a","role":"x","ip":"i"}]'):
            caplog.clear()
            file.write_text(nonsense)
            while "cannot be read" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            assert names(directory) == ["a"]
        file.write_text("[]")
        while names(directory):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    task.cancel()


async def test_an_entry_of_the_file_may_say_all_of_a_pod_and_must_say_little(tmp_path):
    file = tmp_path / "e.json"
    little = {"name": "a", "role": "colocated", "ip": "10.0.0.1"}
    more = {"uid": "u", "revision": "r", "state": "draining", "port": 1, "kv_port": 2, "tls": True}
    whole = {"name": "b", "role": "decode", "ip": "10.0.0.2", **more}
    file.write_text(json.dumps([little, whole]))
    directory = Directory(asyncio.get_running_loop().time, speaks_tls=True)
    task = asyncio.create_task(follow_file(file, into=directory, every_s=0.005))
    async with asyncio.timeout(5):
        while len(directory.all()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    task.cancel()
    assert directory.get("a") == Endpoint(
        "a", "a", "10.0.0.1", Role.COLOCATED, "", State.SERVING, 8000, 8002, tls=False
    )
    assert directory.get("u") == Endpoint(
        "u", "b", "10.0.0.2", Role.DECODE, "r", State.DRAINING, 1, 2, tls=True
    )


def test_a_certificate_authority_that_was_replaced_is_trusted_from_the_next_request_on(tmp_path):
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(b"")
    server = in_cluster(environ, tmp_path)
    for _ in range(2):
        authority = make_authority(dt.datetime.now(dt.UTC)).certificate
        (tmp_path / "ca.crt").write_bytes(authority.public_bytes(Encoding.PEM))
        (trusted,) = server.context().get_ca_certs()
        assert int(trusted["serialNumber"], 16) == authority.serial_number


def gateway(name, version="1", **status):
    """A Ready gateway pod, as the API server lists it."""
    own = pod(name, version)
    own["metadata"]["labels"]["serving.argosy.dev/role"] = "gateway"
    own["metadata"]["ownerReferences"][0]["name"] = "f-gateway-7c9"
    return {**own, "status": {**own["status"], **status}}


async def test_the_gateways_that_take_requests_are_counted(tmp_path):
    unready = gateway("b", "9", conditions=[])
    api = FaultyApi(
        listing(gateway("a"), gateway("b"), pod("e")),
        [("MODIFIED", unready), ("ADDED", gateway("c", "10"))],
        [("DELETED", gateway("a", "11"))],
    )
    directory = await follow(api, lambda d: list(d.gateways) == ["c"], tmp_path)
    assert names(directory) == ["e"]
