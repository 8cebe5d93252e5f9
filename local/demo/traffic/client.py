"""Open-loop client: sends each request when it is due, whether or not others were answered.

Runs as its own process (`python -m local.demo.traffic.client URL MODEL OUT.jsonl`), so that the
demo's own work never delays a request. Once its plan is made, it prints the time of the plan's
second 0 on the machine's monotonic clock, which the readings use too. Every request opens its own
connection, as many users would. Each finished request becomes a line of OUT.jsonl, which the live
view and `score.py` read.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import httpx

from local.demo.traffic.plan import Due, arrivals
from local.demo.traffic.score import Seen
from local.demo.traffic.stream import Stream

ANSWER_LIMIT_S = 90.0
"""Longest silence of an answer; after it the request counts as lost."""
LEAD_S = 0.2
"""From the printed line to second 0, in which the readings begin."""


async def ask(
    http: httpx.AsyncClient, url: str, model: str, number: int, due: Due, begin: float
) -> Seen:
    """Send one streamed completion and time its tokens by the monotonic clock.

    Once a connection stands the request counts as accepted. After that 429 alone is shedding; any
    other answer that is not whole is lost, a 503 after a wait in the gateway's queue among them.
    """
    stream = Stream(due.output_tokens)
    sent = time.monotonic()
    headers = httpx.Headers()

    def seen(outcome: str, problem: str = "") -> Seen:
        first_s = stream.first_s if outcome == "ok" else None
        return Seen(
            due_s=due.at_s,
            phase=due.phase,
            outcome=outcome,
            ttft_s=None if first_s is None else first_s - sent,
            tpot_s=None if first_s is None else stream.tpot_s(),
            tokens=stream.tokens or 0,
            ended_s=time.monotonic() - begin,
            late_s=sent - begin - due.at_s,
            prefill_pod=headers.get("x-argosy-prefill-pod", ""),
            decode_pod=headers.get("x-argosy-decode-pod", ""),
            problem=problem,
        )

    try:
        async with http.stream(
            "POST", f"{url}/v1/completions", json=_body(model, number, due)
        ) as answer:
            headers = answer.headers
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                outcome = "shed" if answer.status_code == 429 else "lost"
                return seen(outcome, f"status {answer.status_code}: {text[:200]}")
            async for line in answer.aiter_lines():
                stream.line(line, time.monotonic())
                if stream.done:
                    break
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return seen("refused", f"{type(error).__name__} {error}")
    except httpx.HTTPError as error:
        return seen("lost", f"{type(error).__name__} {error}")
    problem = stream.problem()
    return seen("lost" if problem else "ok", problem)


def _body(model: str, number: int, due: Due) -> dict[str, Any]:
    # The first words are unique, so that no prefix cache serves one request's prompt to another.
    # Two, since a simulated engine knows 32,000 words.
    words = [f"request{number}", f"again{number}"][: due.prompt_tokens]
    prompt = " ".join(words) + " word" * (due.prompt_tokens - len(words))
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": due.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def run(url: str, model: str, out: TextIO, begin: float, plan: list[Due]) -> None:
    """Play the whole plan against `url`; returns when every request has ended."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(ANSWER_LIMIT_S, connect=10.0)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http:

        async def one(number: int, due: Due) -> None:
            seen = await ask(http, url, model, number, due, begin)
            out.write(json.dumps(asdict(seen)) + "\n")
            out.flush()

        async with asyncio.TaskGroup() as sending:
            for number, due in enumerate(plan):
                await asyncio.sleep(max(0.0, begin + due.at_s - time.monotonic()))
                sending.create_task(one(number, due))


if __name__ == "__main__":
    base, name, path = sys.argv[1:4]
    due = arrivals()
    with Path(path).open("w") as records:
        second_0 = time.monotonic() + LEAD_S
        print(second_0, flush=True)  # noqa: T201 - the demo reads it
        asyncio.run(run(base, name, records, second_0, due))
