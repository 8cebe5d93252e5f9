"""Open-loop client: sends each request when it is due, whether or not others were answered.

Runs as its own process (`python -m local.demo.traffic.client URL MODEL OUT.jsonl`), so that the
demo's own work never delays a request. Every request opens its own connection, as many users
would. Each finished request becomes a line of OUT.jsonl, which the live view and `score.py` read.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import httpx

from local.demo.traffic.plan import Due, arrivals
from local.demo.traffic.score import Seen

ANSWER_LIMIT_S = 90.0
"""Longest silence of an answer; after it the request counts as lost."""


async def ask(http: httpx.AsyncClient, url: str, model: str, number: int, due: Due) -> Seen:
    """Send one streamed completion and time its tokens by the monotonic clock."""
    # The first word is unique, so that no prefix cache serves one request's prompt to another.
    prompt = f"request{number} " + "word " * (due.prompt_tokens - 1)
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": due.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = time.monotonic()
    first = last = None
    tokens, done = 0, False
    accepted = False
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                outcome = "shed" if answer.status_code == 429 else "refused"
                return Seen(due.at_s, due.phase, outcome, None, None, 0)
            accepted = True
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done = True
                    break
                event = json.loads(line[6:])
                if event.get("choices"):
                    last = time.monotonic()
                    first = first or last
                elif event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
    except httpx.HTTPError as error:
        sys.stderr.write(f"request {number}: {type(error).__name__} {error}\n")
        return Seen(due.at_s, due.phase, "lost" if accepted else "refused", None, None, tokens)
    if not done or first is None or last is None:
        return Seen(due.at_s, due.phase, "lost", None, None, tokens)
    tpot = (last - first) / (tokens - 1) if tokens > 1 else None
    return Seen(due.at_s, due.phase, "ok", first - sent, tpot, tokens)


async def run(url: str, model: str, out: TextIO) -> None:
    """Play the whole plan against `url`; returns when every request has ended."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(ANSWER_LIMIT_S, connect=10.0)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http:
        start = time.monotonic()

        async def one(number: int, due: Due) -> None:
            late = time.monotonic() - start - due.at_s
            seen = await ask(http, url, model, number, due)
            out.write(json.dumps({**asdict(seen), "late_s": late}) + "\n")
            out.flush()

        async with asyncio.TaskGroup() as sending:
            for number, due in enumerate(arrivals()):
                await asyncio.sleep(max(0.0, start + due.at_s - time.monotonic()))
                sending.create_task(one(number, due))


if __name__ == "__main__":
    base, name, path = sys.argv[1:4]
    with Path(path).open("w") as records:
        asyncio.run(run(base, name, records))
