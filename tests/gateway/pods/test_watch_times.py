"""What the watch asks of the API server, and when: in virtual time, with its own time limits."""

import asyncio
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from argosy_gateway.errors import UnreachableError
from argosy_gateway.pods import watch
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.endpoints import Directory
from argosy_gateway.pods.watch import WatchTimes, follow_api_server
from argosy_gateway.wire.http1 import Head
from tests.gateway.pods.test_watch import listing
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


def test_an_api_server_that_is_away_is_asked_after_pauses_that_double_to_10_s(monkeypatch):
    api = Api()
    directory = follow(api, monkeypatch, 50)
    assert api.times() == pytest.approx([0, 0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 22.6, 32.6, 42.6])
    assert not directory.listed
