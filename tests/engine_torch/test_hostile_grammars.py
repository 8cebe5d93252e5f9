"""A grammar that takes minutes to compile: it is given up, and no other request waits for it."""

import asyncio
import contextlib
import os
import signal
import threading

import httpx
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("llguidance")

from argosy_engine.errors import GrammarError  # noqa: E402
from argosy_engine.text.byte_tokenizer import ByteTokenizer  # noqa: E402
from argosy_engine.text.grammar_process import GrammarProcess  # noqa: E402
from argosy_engine.text.grammars import compose  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.engines import engine  # noqa: E402


def hostile(last: str = "") -> str:
    """25 KB, whose cost grows with the square of the length: half a minute of a core."""
    return "".join(f"[^{chr(97 + i % 26)}]?" for i in range(5000)) + last


def test_a_regex_of_minutes_stops_nobody_and_is_refused(tmp_path):
    """As it was: short bodies have one thread, and the next one waited until it had compiled."""
    with engine(write_tiny(tmp_path / "tiny"), "colocated", tmp_path / "log") as one:
        url = f"http://127.0.0.1:{one.api}/v1/completions"

        def ask(regex: str, timeout: float) -> httpx.Response:
            body = {"model": "m", "prompt": "x", "max_tokens": 3}
            return httpx.post(
                url, json={**body, "structured_outputs": {"regex": regex}}, timeout=timeout
            )

        known = "[ab]{3}"
        assert ask(known, 100).status_code == 200
        with pytest.raises(httpx.TimeoutException):
            ask(hostile(), 1)
        ended, answers = [], []

        def stays() -> None:
            answers.append(ask(hostile("x"), 100))
            ended.append("hostile")

        thread = threading.Thread(target=stays)
        thread.start()
        for _ in range(3):
            one.complete("hello", 4)
            assert ask(known, 100).status_code == 200
        ended.append("others")
        thread.join()
        assert ended == ["others", "hostile"]
        assert answers[0].status_code == 400
        error = answers[0].json()["error"]
        assert error["param"] == "structured_outputs.regex"
        assert "takes more than 2 s to compile: simplify it" in error["message"]
        assert ask("[cd]{3}", 100).status_code == 200


def process(most_s: float) -> GrammarProcess:
    return GrammarProcess(ByteTokenizer(256).grammars(256, [3]), most_s=most_s)


async def test_the_work_for_a_grammar_ends_when_its_client_leaves():
    trying = process(most_s=1000)
    assert await trying.refusal(compose("regex", "a")) is None
    pid = trying._process.pid
    leaving = asyncio.ensure_future(trying.refusal(compose("regex", hostile())))
    await asyncio.sleep(0)
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving
    assert leaving.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await trying.refusal(compose("regex", "b")) is None
    await trying.close()


async def test_a_grammar_that_takes_too_long_is_given_up_and_the_next_one_is_tried():
    trying = process(most_s=0.2)
    with pytest.raises(GrammarError, match="more than 0\\.2 s"):
        await trying.refusal(compose("regex", hostile()))
    assert await trying.refusal(compose("regex", "b")) is None
    assert "unclosed group" in await trying.refusal(compose("regex", "("))
    await trying.close()


async def test_a_grammar_that_ends_the_process_is_refused():
    trying = process(most_s=1000)
    assert await trying.refusal(compose("regex", "a")) is None
    pid = trying._process.pid
    asked = asyncio.ensure_future(trying.refusal(compose("regex", hostile())))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(GrammarError, match="ended with SIGSEGV"):
        await asked
    assert await trying.refusal(compose("regex", "b")) is None
    await trying.close()
