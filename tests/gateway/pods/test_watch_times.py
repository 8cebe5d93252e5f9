"""What the watch asks of the API server, and when: in virtual time, with its own time limits."""

import asyncio
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from argosy_gateway.errors import UnreachableError
from argosy_gateway.pods import watch
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.watch import WatchTimes, follow_api_server, follow_file
from argosy_gateway.wire.http1 import Head
from tests.gateway.pods.test_watch import listing, names, pod
from tests.support import virtual

NEVER = object()
"""An answer, or a part of one, that does not come."""
REFUSED = UnreachableError("refused")


class Exchange:
    """One answer: a status, then its parts; a number is a pause."""

    def __init__(self, status, *parts):
        self.status, self.parts = status, list(parts)
        self.open = True

    async def head(self):
        if self.status is NEVER:
            await asyncio.sleep(1e6)
        return Head(self.status, ())

    async def read(self):
        while self.parts:
            part = self.parts.pop(0)
            if part is NEVER:
                await asyncio.sleep(1e6)
            elif isinstance(part, bytes):
                return part
            else:
                await asyncio.sleep(part)
        return b""

    def abort(self):
        self.open = False


class Api:
    """Answers call after call by a script; then refuses connections."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked = []
        self.began = None

    async def call(self, host, port, *, method, target, headers, connect_s, tls):
        url, now = urlsplit(target), asyncio.get_running_loop().time()
        self.began = self.began or now
        self.asked.append(
            {
                "at": now - self.began,
                "to": (host, port, tls, method, url.path, connect_s),
                "query": {key: value for key, (value,) in parse_qs(url.query).items()},
                "headers": dict(headers),
            }
        )
        step = self.script[len(self.asked) - 1] if len(self.asked) <= len(self.script) else REFUSED
        if isinstance(step, Exception):
            raise step
        return step

    def times(self):
        return [round(asked["at"], 3) for asked in self.asked]

    def kinds(self):
        """What each call asked for: a list, or a watch from a version."""
        return [asked["query"].get("resourceVersion", "list") for asked in self.asked]


def follow(api, monkeypatch, seconds):
    """The directory after so many seconds. Random times take their mean."""
    monkeypatch.setattr(watch.http1, "call", api.call)
    monkeypatch.setattr(watch.random, "uniform", lambda low, high: (low + high) / 2)

    async def run():
        directory = Directory(asyncio.get_running_loop().time)
        server = ApiServer("10.0.0.1", 6443, token="t")
        following = asyncio.create_task(
            follow_api_server(server, namespace="ns", fleet="f", into=directory, times=WatchTimes())
        )
        await asyncio.sleep(seconds)
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return directory

    directory = virtual.run(run())
    assert not [step for step in api.script[: len(api.asked)] if getattr(step, "open", False)]
    return directory


def listed(*pods, version="5", more=None):
    return Exchange(200, json.dumps(listing(*pods, version=version, more=more)).encode())


def event(kind, thing):
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def test_pods_of_the_fleet_are_listed_by_pages_and_then_watched(monkeypatch):
    api = Api(listed(more="page 2"), listed(pod("a")), Exchange(200, NEVER))
    follow(api, monkeypatch, 10)
    assert {str(asked["to"]) for asked in api.asked} == {
        str(("10.0.0.1", 6443, None, "GET", "/api/v1/namespaces/ns/pods", 5.0))
    }
    assert api.asked[0]["headers"] == {"authorization": "Bearer t", "accept": "application/json"}
    selector = {"labelSelector": "serving.argosy.dev/fleet=f"}
    assert [asked["query"] for asked in api.asked] == [
        {**selector, "limit": "500"},
        {**selector, "limit": "500", "continue": "page 2"},
        {
            **selector,
            "watch": "1",
            "resourceVersion": "5",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "275",
        },
    ]


def test_an_api_server_that_is_away_is_asked_after_pauses_that_double_to_10_s(monkeypatch):
    api = Api()
    directory = follow(api, monkeypatch, 50)
    assert api.times() == pytest.approx([0, 0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 22.6, 32.6, 42.6])
    assert not directory.listed


def test_pauses_begin_anew_when_the_api_server_is_back(monkeypatch):
    back = Exchange(200, event("ADDED", pod("b", "6")))
    api = Api(*[REFUSED] * 3, listed(pod("a")), *[REFUSED] * 3, back)
    directory = follow(api, monkeypatch, 3.5)
    # 0.2, 0.4 and 0.8 s after errors, none after the list; and the same again.
    expected = [0, 0.2, 0.6, 1.4, 1.4, 1.6, 2.0, 2.8, 3.0, 3.2]
    assert api.times()[: len(expected)] == pytest.approx(expected)
    assert api.kinds()[3:9] == ["list", "5", "5", "5", "5", "6"]
    assert names(directory) == ["a", "b"]


@pytest.mark.parametrize(
    ("steps", "again_at", "kinds"),
    [
        ([listed(), Exchange(200, NEVER)], 150.2, ["list", "5", "5"]),
        (
            [listed(), Exchange(200, 149, event("BOOKMARK", pod("x", "8")), NEVER)],
            299.2,
            ["list", "5", "8"],
        ),
        ([listed(), Exchange(NEVER)], 30.2, ["list", "5", "5"]),
        ([Exchange(NEVER)], 30.2, ["list", "list"]),
        ([Exchange(200, NEVER)], 30.2, ["list", "list"]),
        ([listed(), Exchange(200, 3)], 3.2, ["list", "5", "5"]),
        ([listed(), Exchange(410)], 0, ["list", "5", "list"]),
        ([listed(), Exchange(200, 3, event("ERROR", {"code": 410}))], 3, ["list", "5", "list"]),
        ([listed(), Exchange(200, 3, event("ERROR", {"code": 500}))], 3.2, ["list", "5", "5"]),
        ([listed(), Exchange(500, b"no")], 0.2, ["list", "5", "5"]),
        ([listed(), Exchange(200, b"x" * (8 << 20), 1, b"x", 9)], 1.2, ["list", "5", "5"]),
    ],
    ids=[
        "silent for 150 s",
        "silent after a bookmark",
        "no answer to the watch",
        "no answer to the list",
        "half a list",
        "ended by the server",
        "410",
        "410 in an event",
        "another error in an event",
        "500",
        "an event larger than 8 MiB",
    ],
)
def test_a_watch_that_ended_is_begun_again_from_the_last_version(
    monkeypatch, steps, again_at, kinds
):
    for step in steps:
        step.open = True
    again = Api(*[Exchange(step.status, *step.parts) for step in steps])
    follow(again, monkeypatch, again_at + 0.1)
    assert again.kinds() == kinds
    assert again.times()[-1] == pytest.approx(again_at)


def test_events_in_one_piece_and_in_many_are_applied_in_their_order(monkeypatch):
    stream = b"".join(
        [
            event("ADDED", pod("b", "6")),
            b"\n",
            event("MODIFIED", pod("a", "7", labels={})),  # it lost its labels: no engine any more
            event("ADDED", pod("c", "8")),
            event("DELETED", pod("c", "9")),
            event("BOOKMARK", pod("d", "10")),
        ]
    )
    bytewise = [stream[i : i + 1] for i in range(len(stream))]
    for parts in ([stream], bytewise):
        api = Api(listed(pod("a")), Exchange(200, *parts), Exchange(200, NEVER))
        assert names(follow(api, monkeypatch, 1)) == ["b"]
        assert api.kinds() == ["list", "5", "10"]


@pytest.mark.parametrize(
    ("ready", "denied"),
    [(200, True), (401, True), (403, True), (500, False), (NEVER, False), (REFUSED, False)],
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_denial_counts_only_from_a_server_that_is_healthy(monkeypatch, status, ready, denied):
    probe = ready if ready is REFUSED else Exchange(ready)
    again = ready if ready is REFUSED else Exchange(ready)
    api = Api(listed(pod("a")), Exchange(status), probe, Exchange(status), again)
    directory = follow(api, monkeypatch, 70)
    assert (directory.denied_for_s() > 0) == denied
    assert names(directory) == ["a"]
    asked = api.asked[2]
    assert (asked["to"][4], "authorization" in asked["headers"]) == ("/readyz", False)


def test_a_denial_ends_with_the_next_answer(monkeypatch):
    denials = [Exchange(403), Exchange(200)] * 2
    api = Api(listed(pod("a")), *denials, Exchange(200, NEVER))
    assert follow(api, monkeypatch, 10).denied_for_s() == 0


def test_pages_of_a_list_add_up(monkeypatch):
    halves = json.dumps(listing(pod("b"), more="page 3")).encode()
    second = Exchange(200, halves[:50], halves[50:])
    api = Api(listed(pod("a"), more="page 2"), second, listed(pod("c")), Exchange(200, NEVER))
    assert names(follow(api, monkeypatch, 1)) == ["a", "b", "c"]


FULL = {
    "name": "a",
    "role": "prefill",
    "ip": "10.0.0.1",
    "uid": "u",
    "revision": "r",
    "state": "draining",
    "port": 1,
    "kv_port": 2,
}
SHORT = {"name": "b", "role": "decode", "ip": "10.0.0.2"}


def test_a_file_names_pods_and_is_read_ten_times_a_second(tmp_path):
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps([FULL, SHORT]))

    async def read():
        directory = Directory(asyncio.get_running_loop().time)
        following = asyncio.create_task(follow_file(file, into=directory))
        await asyncio.sleep(0.01)
        first = list(directory.all())
        file.write_text("[]")
        await asyncio.sleep(0.1)
        following.cancel()
        return first, list(directory.all())

    first, then = virtual.run(read())
    assert first == [
        Endpoint("u", "a", "10.0.0.1", Role.PREFILL, "r", State.DRAINING, port=1, kv_port=2),
        Endpoint("b", "b", "10.0.0.2", Role.DECODE, "", State.SERVING, port=8000, kv_port=8002),
    ]
    assert then == []
