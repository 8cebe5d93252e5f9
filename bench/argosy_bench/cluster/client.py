"""Open-loop client of `make bench-cluster`, a process of its own.

    python -m argosy_bench.cluster.client URL MODEL RATE [ANSWERS]

ANSWERS is the file of requests for real weights; without it they are those of simulated engines.

Request n is sent when it is due, whether or not others were answered; each has its own connection.
A finished request is one line of JSON on standard output (`judge.Seen`). A line on standard input
ends the sending; the process ends when the last answer has.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import httpx

from argosy_bench.cluster.judge import Seen
from argosy_bench.cluster.requests import Ask, Asks, ask_of, asks_in
from local.demo.traffic.stream import Stream

ANSWER_LIMIT_S = 60.0
"""Longest silence; after it the request counts as lost."""
_TRIES = 40
"""Connections that one request may use; more than a gateway needs to come back."""
_PAUSE_S = 0.25
_PODS = ("x-argosy-prefill-pod", "x-argosy-decode-pod", "x-argosy-pod", "x-request-id")


async def ask(http: httpx.AsyncClient, url: str, model: str, one: Ask) -> Seen:
    """Send a request until an answer begins, and read that answer to its end."""
    sent_s, unanswered = time.monotonic(), list[float]()
    for _ in range(_TRIES):
        seen = await _try(http, url, model, one, sent_s, tuple(unanswered))
        if seen.status is not None or not seen.broken:
            return seen
        unanswered.append(seen.ended_s)
        await asyncio.sleep(_PAUSE_S)
    return seen


async def _try(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    one: Ask,
    sent_s: float,
    unanswered: tuple[float, ...],
) -> Seen:
    stream, status, text, fault, broken, pods = Stream(one.tokens), None, "", "", False, ""
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=one.body(model)) as answer:
            status = answer.status_code
            pods = " ".join(answer.headers.get(name, "") for name in _PODS)
            if status != 200:
                fault = f"status {status}: {(await answer.aread()).decode(errors='replace')[:200]}"
            elif one.stream:
                async for line in answer.aiter_lines():
                    stream.line(line, time.monotonic())
                text, fault = stream.text, stream.problem()
            else:
                text, fault = _whole(await answer.aread(), one)
    except httpx.TimeoutException as error:
        fault = f"{type(error).__name__}: no byte for {ANSWER_LIMIT_S:.0f} s"
    except httpx.HTTPError as error:
        text, broken = stream.text, not stream.fault
        fault = stream.fault or f"{type(error).__name__}: {error}"
    return Seen(
        number=one.number,
        sent_s=sent_s,
        ended_s=time.monotonic(),
        status=status,
        broken=broken,
        fault=fault,
        text=text,
        unanswered_s=unanswered,
        pods=pods,
    )


def _whole(body: bytes, one: Ask) -> tuple[str, str]:
    """Text of an unstreamed answer, and what is wrong with it."""
    try:
        answer = json.loads(body)
        (choice,), usage = answer["choices"], answer["usage"]
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        text, reason = choice["text"], choice["finish_reason"]
    except (ValueError, KeyError, TypeError) as error:
        return "", f"not a completion: {type(error).__name__} {error}: {body[:200]!r}"
    if counts != (one.prompt_tokens, one.tokens):
        return text, f"usage {counts} instead of {one.prompt_tokens, one.tokens}"
    return text, "" if reason == "length" else f"finish_reason is {reason!r} instead of 'length'"


async def run(url: str, model: str, rate: float, asks: Asks) -> None:
    """Send until a line comes on standard input, then wait for the answers."""
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(ANSWER_LIMIT_S, connect=10.0)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http:

        async def one(number: int) -> None:
            seen = await ask(http, url, model, asks(number))
            sys.stdout.write(json.dumps(asdict(seen)) + "\n")
            sys.stdout.flush()

        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as sending:
            while not stop.done():
                sending.create_task(one(number))
                number += 1
                left_s = began + number / rate - time.monotonic()
                await asyncio.wait([stop], timeout=max(0.0, left_s))


if __name__ == "__main__":
    base, name, per_s, *answers = sys.argv[1:]
    known = asks_in(Path(answers[0])) if answers else ask_of
    asyncio.run(run(base, name, float(per_s), known))
