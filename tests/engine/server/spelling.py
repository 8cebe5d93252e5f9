"""An engine's HTTP side, loop and scheduler in one task, over a runner that spells out bytes.

No thread, no socket and no time: a request runs when `Engine.post` does. A drawn byte depends on
the seed, its position and all tokens before it, so a text that goes on elsewhere shows any
difference.
"""

import asyncio
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import httpx

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import GuaranteedNoEvict
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.sim import SimRunner
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from tests.kv.nodes import BLOCK, QUICK

EOS = 3
_CHARACTERS = ("a", "b", "é", "🙂", " ")
_BROKEN = 0xE2
"""Begins a character that no other byte ends."""


class SpellingRunner(SimRunner):
    """Draws UTF-8 a byte at a time, seldom a broken one, and sometimes the end."""

    def __init__(self, config: EngineConfig, says: str = "") -> None:
        """With `says` that is every answer."""
        super().__init__("spelling", QUICK, config, sleep=lambda _: None)
        self.says = [*says.encode(), EOS] if says else []
        self.eos_token_ids, self.vocab_size = frozenset({EOS}), 256

        self.knows_likely = True
        self.grammars = ByteTokenizer(256).grammars(256, self.eos_token_ids)
        self.prompt_tokens = 0
        """Computed so far, those of the prefix cache left out."""

    def execute(self, plan):
        drawing = [chunk for chunk in plan.chunks if chunk.samples]
        drawn = [self._drawn(chunk) for chunk in drawing]
        self.prompt_tokens += plan.prefill_tokens
        asked = list(zip(drawing, drawn, strict=True))
        return StepOutput(
            token_ids=drawn,
            busy_s=0.0,
            likely={
                c.request_id: likely(token, c.sampling.logprobs)
                for c, token in asked
                if c.sampling.logprobs is not None
            },
            prompt_likely={
                c.request_id: {
                    at: likely(c.tokens[at], c.sampling.prompt_logprobs)
                    for at in range(c.start + 1, min(c.start + c.count + 1, c.n_prompt))
                }
                for c in plan.chunks
                if c.sampling.prompt_logprobs is not None
            },
        )

    def _drawn(self, chunk):
        """The byte that comes next, or where a grammar forbids it the next one that it allows."""
        if self.says:
            return self.says[min(len(chunk.tokens) - chunk.n_prompt, len(self.says) - 1)]
        byte, grammar = next_byte(chunk.tokens, chunk.sampling.seed), chunk.sampling.grammar
        if not grammar:
            return byte
        output = chunk.tokens[chunk.n_prompt - chunk.sampling.sent :]
        mask = self.grammars.mask(chunk.request_id, grammar, output)
        allowed = [b for b in range(256) if mask[b // 8] >> b % 8 & 1]
        # White space last: else JSON is mostly that.
        return min(allowed, key=lambda b: (b in b" \t\n\r", (b - byte) % 256))


def likely(token: int, most: int):
    """As if token t had the log probability -t / 8, rank 7, and `a`, `b` … were the likeliest."""
    return ((token, -token / 8, 7), *((97 + i, -i / 2, i + 1) for i in range(most)))


def next_byte(tokens: list[int], seed: int) -> int:
    tail = bytes(tokens[-3:])
    for character in ("é", "🙂"):
        whole = character.encode()
        for length in range(len(whole) - 1, 0, -1):
            if tail.endswith(whole[:length]):
                return whole[length]
    key = f"{seed}:{len(tokens)}:{tokens}".encode()
    pick = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big")
    if pick % 31 == 0:
        return EOS
    if pick % 17 == 0:
        return _BROKEN
    return _CHARACTERS[pick % len(_CHARACTERS)].encode()[0]


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    ids: tuple[int, ...] | None
    """From its comment; None without one."""
    closing: bool
    data: str

    @property
    def chunk(self) -> dict[str, Any]:
        return json.loads(self.data)

    @property
    def text(self) -> str:
        if self.data == "[DONE]" or not self.chunk["choices"]:
            return ""
        choice = self.chunk["choices"][0]
        return choice["delta"].get("content", "") if "delta" in choice else choice["text"]

    @property
    def reason(self) -> str | None:
        whole = self.data == "[DONE]" or not self.chunk["choices"]
        return None if whole else self.chunk["choices"][0]["finish_reason"]


def events_of(stream: str) -> list[Event]:
    return [_event(part) for part in stream.split("\n\n") if part]


def _event(part: str) -> Event:
    comment, ids, closing = "", None, False
    if part.startswith(":"):
        comment, _, part = part.partition("\n")
        assert comment.startswith(": argosy ")
        words = comment.removeprefix(": argosy ").split(" ")
        ids = tuple(int(i) for i in words[0].split(",") if i)
        closing = words[1:] == ["end"]
    return Event(ids, closing, part.removeprefix("data: "))


class Engine:
    """A colocated engine; `post` answers one request."""

    def __init__(self, *, says: str = "", **options: Any) -> None:
        """With `says` that is every answer."""
        config = EngineConfig(
            model="x", served_name="m", block_size=BLOCK, pod_name="pod-a", **options
        )
        self.runner = SpellingRunner(config, says)
        scheduler = Scheduler(
            pool=BlockPool(num_blocks=256, block_size=BLOCK),
            limits=Limits(max_num_seqs=8, max_num_batched_tokens=64, max_queue=8, vocab_size=256),
            policy=GuaranteedNoEvict(),
            eos=self.runner.eos_token_ids,
            max_model_len=160,
        )
        metrics = EngineMetrics(config, max_model_len=160)
        self.loop = EngineLoop(
            scheduler=scheduler, runner=self.runner, metrics=metrics, deliver=_deliver
        )
        self.app = OpenAiApi(config, self.loop, ByteTokenizer(256)).app()

    async def post(self, path: str, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
        """The whole answer. Header names are written with underscores."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            answering = asyncio.ensure_future(client.post(path, content=content, headers=named))
            while not answering.done():
                self.loop._take_in(wait=False)
                self.loop._turn()
                self.loop._flush()
                await asyncio.sleep(0)
            return answering.result()

    async def get(self, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.get(path)


def _deliver(batch) -> None:
    for sink, event in batch:
        sink.refuse(event) if isinstance(event, Refusal) else sink.emit(event)
