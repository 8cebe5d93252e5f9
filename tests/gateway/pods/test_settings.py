"""How often the settings object is read, what is asked for, and which answers count."""

import asyncio
import contextlib
import json
import random

import pytest

from argosy_gateway.errors import ApiServerError
from argosy_gateway.pods import watch
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.watch import WatchTimes, follow_settings

TARGET = "/api/v1/namespaces/n/configmaps/f-gateway"


class EndedError(Exception):
    """The script has no further answer."""


async def paused(answers, monkeypatch, caplog, **given):
    """The pauses between these answers, what was taken, and what was logged."""
    pauses, taken, asked = [], [], []

    async def read(server, target, times):
        asked.append((server, target, times))
        if not answers:
            raise EndedError
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def slept(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(watch, "_read_settings", read)
    monkeypatch.setattr(asyncio, "sleep", slept)
    monkeypatch.setattr(
        random, "uniform", lambda low, high: 1.0 if (low, high) == (0.8, 1.2) else 0
    )
    server, times = ApiServer("h", 1), WatchTimes()
    with pytest.raises(EndedError):
        await follow_settings(server, TARGET, taken.append, times=times, **given)
    assert set(asked) == {(server, TARGET, times)}
    return pauses, taken, caplog.messages


async def test_it_is_read_often_until_it_is_there_and_then_seldom(monkeypatch, caplog):
    trouble = OSError("no")
    answers = [None, trouble, {"a": 1}, trouble, None]
    pauses, taken, _ = await paused(answers, monkeypatch, caplog)
    assert pauses == [1.0, 1.0, 5.0, 5.0, 5.0]
    assert taken == [None, {"a": 1}, None]


async def answered(status, body, times=None, token="t", slow=False):
    """What is read of one answer, and the head of the request."""
    heads = []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            length = len(body) + slow
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
            if slow:
                await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        server = ApiServer("127.0.0.1", listener.sockets[0].getsockname()[1], token=token)
        try:
            found = await watch._read_settings(server, TARGET, times or WatchTimes())
        except (ApiServerError, TimeoutError) as error:
            found = error
    return found, heads[0]


def config_map(**found):
    return json.dumps({"kind": "ConfigMap", **found}).encode()


async def test_the_object_is_asked_for_as_json_with_the_accounts_token():
    found, head = await answered(200, config_map(data={"a": "1"}))
    assert found == {"a": "1"}
    first, *lines = head.lower().split("\r\n")
    assert first == f"get {TARGET}?resourceversion=0 http/1.1"
    assert {"accept: application/json", "authorization: bearer t"} <= set(lines)


async def test_an_answer_that_does_not_end_is_given_up():
    found, _ = await answered(200, b"{", WatchTimes(answer_s=0.05), slow=True)
    assert isinstance(found, TimeoutError)
