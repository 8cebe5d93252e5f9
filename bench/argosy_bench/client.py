"""A client of streamed completions that costs little, and notes when each token came."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil

from argosy_bench.processes import MODEL

PATIENCE_S = 60.0
"""A client that has no whole answer by then leaves."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: a prompt whose first word no other request has, so that no prefix cache helps."""

    number: int
    prompt_tokens: int
    tokens: int
    """Of the answer."""
    due_s: float = 0.0
    """Seconds after the load begins."""

    def head_and_body(self) -> bytes:
        """Write the request as HTTP."""
        words = itertools.chain(
            [f"load{self.number}"], (f"w{i}" for i in range(self.prompt_tokens - 1))
        )
        options = {"max_tokens": self.tokens, "ignore_eos": True, "stream": True}
        body = json.dumps({"model": MODEL, "prompt": " ".join(words), **options}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class Answer:
    """What its client saw. Times are those of `time.monotonic`."""

    ask: Ask
    sent: float = 0.0
    late_s: float = 0.0
    """How late the client itself sent it."""
    status: int = 0
    """0 without an answer."""
    pod: str = ""
    """The pod that decodes."""
    at: list[float] = field(default_factory=list)
    """When each token came."""
    text: str = ""
    whole: bool = False

    @property
    def ttft_s(self) -> float:
        """Time to first token; what a client waits at most if there is none."""
        return self.at[0] - self.sent if self.at else PATIENCE_S

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens; what a client waits at most if the answer is not whole."""
        if not self.whole:
            return PATIENCE_S
        return (self.at[-1] - self.at[0]) / max(len(self.at) - 1, 1)


async def ask(
    port: int,
    one: Ask,
    begin: float | None = None,
    on_token: Callable[[Answer], None] | None = None,
) -> Answer:
    """Send a request, when it is due after `begin` if that is given, and read its stream."""
    if begin is not None:
        await asyncio.sleep(max(0.0, begin + one.due_s - time.monotonic()))
    answer = Answer(one, time.monotonic())
    answer.late_s = answer.sent - begin - one.due_s if begin is not None else 0.0
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(one.head_and_body())
                await _read(reader, answer, on_token)
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError):
        answer.whole = False
    return answer


async def _read(
    reader: asyncio.StreamReader, answer: Answer, on_token: Callable[[Answer], None] | None
) -> None:
    answer.status = int((await reader.readline()).split()[1])
    while line := await reader.readline():
        if line.startswith(b"x-argosy-decode-pod: "):
            answer.pod = line.split()[1].decode()
        elif line.startswith(b"data: [DONE]"):
            answer.whole = True
        elif line.startswith(b"data: {") and (text := _text_of(line)):
            answer.at.append(time.monotonic())
            answer.text += text
            if on_token:
                on_token(answer)


def _text_of(line: bytes) -> str:
    choices = json.loads(line[6:]).get("choices", ())
    return "".join(choice["text"] for choice in choices)


async def play(port: int, asks: Iterable[Ask]) -> list[Answer]:
    """Send every request when it is due, whatever became of the others; return all answers."""
    begin = time.monotonic() + 0.5
    return await asyncio.gather(*(ask(port, one, begin) for one in asks))


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
