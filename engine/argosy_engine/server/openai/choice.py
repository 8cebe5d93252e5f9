"""One choice of an answer: its request in the engine, its tokens, and the chunks of its text.

`Rendering` has its echo, probabilities and token ids, in the forms of both endpoints. A request
that asks for none of them costs nothing here: each method answers with a constant.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import Likely
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.answer import Fragments, Piece, TextFlow, TokenSink
from argosy_engine.server.openai.request import Parsed, Prompt
from argosy_engine.server.openai.tool_calls import (
    PARSERS,
    NamedCall,
    Shaper,
    TextCalls,
    thinks_at_its_end,
)

_LEAST = -9999.0
"""In place of minus infinity, which JSON lacks; vLLM's."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[Likely]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""

    def entry(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": max(value, _LEAST), "bytes": list(text.encode())}

    return {
        "content": [
            {
                **entry(likely[0][0], likely[0][1]),
                "top_logprobs": [entry(token, value) for token, value, _ in likely[1:]],
            }
            for likely in tokens
        ]
    }


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Iterable[tuple[int, Likely]], most: int, offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion's choice; a token of which nothing is told, as the prompt's first,
    has null. `offset` is where its text begins in the answer."""
    texts: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token, likely in tokens:
        text = tokenizer.decode([token])
        texts.append(text)
        offsets.append(offset)
        offset += len(text)
        values.append(max(likely[0][1], _LEAST) if likely else None)
        # The token itself is among them, as OpenAI has it: "up to logprobs + 1".
        named = [*likely[1 : most + 1], *likely[:1]]
        top = {tokenizer.decode([id_]): max(value, _LEAST) for id_, value, _ in named}
        tops.append(top if likely else None)
    return {
        "tokens": texts,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def prompt_logprobs(
    tokenizer: Tokenizer, n_prompt: int, told: Mapping[int, Likely], most: int
) -> list[dict[str, Any] | None]:
    """For each token of the prompt what its position told; null for the first."""
    return [
        None
        if at not in told
        else {
            str(token): {
                "logprob": max(value, _LEAST),
                "rank": rank,
                "decoded_token": tokenizer.decode([token]),
            }
            for token, value, rank in (*told[at][1 : most + 1], told[at][0])
        }
        for at in range(n_prompt)
    ]


class Rendering:
    """Of one choice."""

    def __init__(self, parsed: Parsed, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self._form, self._chat = parsed.form, parsed.chat
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._offset = 0
        """Characters of the answer before the tokens that `logprobs_json` tells of next."""
        self.echo = ""
        """The prompt's text, if it is asked for."""
        if parsed.form.echo:
            text = prompt.text
            self.echo = tokenizer.decode(prompt.token_ids) if text is None else text

    def logprobs(
        self,
        ids: Sequence[int],
        likely: Sequence[Likely],
        prompt: Mapping[int, Likely] | None = None,
    ) -> object:
        """The member `logprobs`; with `prompt` the prompt's tokens stand before."""
        most = self._form.logprobs
        if most is None:
            return None
        if self._chat:
            return chat_logprobs(self._tokenizer, likely)
        tokens = list(zip(ids, likely, strict=True))
        if prompt is not None:
            before = enumerate(self._prompt.token_ids)
            tokens = [*((token, prompt.get(at, ())) for at, token in before), *tokens]
        told = completion_logprobs(self._tokenizer, tokens, most, self._offset)
        self._offset += sum(map(len, told["tokens"]))
        return told

    def logprobs_json(
        self,
        ids: Sequence[int],
        likely: Sequence[Likely],
        prompt: Mapping[int, Likely] | None = None,
    ) -> str:
        """The same for a chunk."""
        if self._form.logprobs is None:
            return "null"
        return json.dumps(self.logprobs(ids, likely, prompt))

    def members(self, ids: Sequence[int], told: Mapping[int, Likely]) -> dict[str, object]:
        """Further members of the choice of a whole answer."""
        form, members = self._form, dict[str, object]()
        if form.return_token_ids:
            members["token_ids"] = list(ids)
        if not self._chat:
            members |= self.of_the_prompt(told)
        return members

    def of_the_prompt(self, told: Mapping[int, Likely]) -> dict[str, object]:
        """What is told of the prompt: a completion has it in its choice, a chat beside them."""
        form, members = self._form, dict[str, object]()
        if form.return_token_ids:
            members["prompt_token_ids"] = self._prompt.token_ids
        if form.prompt_logprobs is not None:
            n_prompt, most = len(self._prompt.token_ids), form.prompt_logprobs
            members["prompt_logprobs"] = prompt_logprobs(self._tokenizer, n_prompt, told, most)
        return members

    def ids_json(self, ids: Sequence[int]) -> str:
        """Further members of a chunk's choice."""
        if not self._form.return_token_ids:
            return ""
        return f',"token_ids":{json.dumps(list(ids))}'

    def prompt_ids_of_a_chat(self) -> str:
        """Further members of a chat's first chunk."""
        return self._prompt_ids() if self._chat else ""

    def prompt_ids_of_a_completion(self) -> str:
        """Further members of the choice in a completion's first chunk."""
        return "" if self._chat else self._prompt_ids()

    def _prompt_ids(self) -> str:
        if not self._form.return_token_ids:
            return ""
        return f',"prompt_token_ids":{json.dumps(self._prompt.token_ids)}'


_TEMPLATES_END = 16
"""Tokens of the prompt's end in which a template begins the reasoning."""


class Choice:
    """From submit to its finish reason."""

    def __init__(
        self,
        parsed: Parsed,
        prompt: Prompt,
        request: NewRequest,
        flow: TextFlow,
        fragments: Fragments,
        tokenizer: Tokenizer,
    ) -> None:
        self.request = request
        self.flow = flow
        self.sink = TokenSink()
        self.fragments = fragments
        self.rendering = Rendering(parsed, prompt, tokenizer)
        self._shaper = _shaper(parsed, prompt, tokenizer)
        if self._shaper is not None:
            for text in flow.replayed:
                self._shaper.push(text)
        self.submitted = False
        self.opened = False
        """The chunks before its first text were sent."""
        self.ended = False
        self.followers: list[Choice] = []
        """Choices of the same prompt, to be submitted when its KV is in the prefix cache."""
        self._owed_ids: list[int] = []
        self._owed_likely: list[Likely] = []
        self._parsed = parsed
        self._prompt_tokens = len(prompt.token_ids)
        self._completed = flow.n_tokens
        """Tokens of the texts so far, those of an earlier engine included."""
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._likely: list[Likely] = []
        self.piece: Piece | None = None
        """The last one, with the finish reason."""

    @property
    def tokens_are_chunks(self) -> bool:
        """A token's text is its chunk: nothing is held back, looked for or told beside it."""
        form = self._parsed.form
        return not (
            self.flow.looks_for_stops
            or self._shaper is not None
            or form.logprobs is not None
            or form.return_token_ids
            or form.without_output
            or form.continuous_usage
        )

    @property
    def shares_its_prompt(self) -> bool:
        """Its prompt is computed, or it has ended: followers find what there is."""
        pulls = bool(self.sink.prefill_pod) and self.sink.pull_whole is None
        return self.ended or (self.flow.n_tokens > 0 and not pulls)

    def take(self, piece: Piece) -> None:
        """Keep what the choice of a whole answer is made of."""
        if not self._parsed.form.without_output:
            self._texts.extend(piece.texts)
            self._tokens.extend(i for ids in piece.covered for i in ids)
            self._likely.extend(one for some in piece.likely for one in some)
        if piece.reason is not None:
            self.ended, self.piece = True, piece
            if not self._parsed.form.without_output:
                self._tokens.extend(self.flow.uncovered)
                self._likely.extend(self.flow.uncovered_likely)

    def whole(self) -> dict[str, object]:
        """The choice of a whole answer."""
        assert self.piece is not None
        assert self.piece.reason is not None
        told, rendering = self.flow.prompt_likely, self.rendering
        content: str | None = rendering.echo + "".join(self._texts)
        more: dict[str, object] = {}
        if self._shaper is not None:
            self._shaper.push(content or "")
            self._shaper.finish()
            content, more = self._shaper.message()
        choice = self.fragments.choice(
            content,
            self._reason(self.piece.reason),
            self.flow.stop,
            rendering.logprobs(self._tokens, self._likely, told if rendering.echo else None),
            more,
        )
        return {**choice, **rendering.members(self._tokens, told)}

    @property
    def mean_logprob(self) -> float:
        """Of its tokens: what `best_of` ranks by."""
        return sum(one[0][1] for one in self._likely) / max(1, len(self._likely))

    def opening(self) -> str:
        """The chunks before the first text."""
        self.opened = True
        usage = self._usage(0)
        first = self.fragments.opening(self.rendering.prompt_ids_of_a_chat(), usage)
        if self.rendering.echo:
            told = self.flow.prompt_likely
            logprobs = self.rendering.logprobs_json([], [], told)
            more = self.rendering.prompt_ids_of_a_completion()
            return first + self.fragments.content(self.rendering.echo, logprobs, more, usage)
        return first

    def _usage(self, tokens: int) -> str | None:
        """The counts that each chunk tells if it is asked for: of this choice alone, as vLLM has
        it. The stream's last chunk has those of all choices."""
        if not self._parsed.form.continuous_usage:
            return None
        prompt = self._prompt_tokens  # the request's may have those that another engine has sent
        told = {"prompt_tokens": prompt, "completion_tokens": tokens}
        return json.dumps({**told, "total_tokens": prompt + tokens})

    def chunks(self, piece: Piece) -> Iterator[tuple[str, list[int]]]:
        """Chunks, each with the tokens that it completes; mostly one for each text."""
        if self._parsed.form.without_output:
            return
        for text, ids, likely in zip(piece.texts, piece.covered, piece.likely, strict=True):
            self._completed += len(ids)
            usage = self._usage(self._completed)
            deltas: list[dict[str, object]] = [{"content": text}]
            if self._shaper is not None:
                deltas = self._shaper.push(text)
            self._owed_ids += ids
            self._owed_likely += likely
            yield from self._render(deltas, usage)

    def _render(
        self, deltas: list[dict[str, object]], usage: str | None
    ) -> Iterator[tuple[str, list[int]]]:
        """What is told of tokens stands in the last chunk that they make: until then another
        engine would have to make it again."""
        for number, delta in enumerate(deltas, 1):
            ids, logprobs, more = list[int](), "null", ""
            if number == len(deltas):
                ids, self._owed_ids, likely = self._owed_ids, [], self._owed_likely
                logprobs = self.rendering.logprobs_json(ids, likely)
                more = self.rendering.ids_json(ids)
                self._owed_likely = []
            text = delta.get("content")
            if isinstance(text, str):
                yield self.fragments.content(text, logprobs, more, usage), ids
            else:
                yield self.fragments.delta(json.dumps(delta), logprobs, more, usage), ids

    def closing(self, piece: Piece) -> tuple[str, list[int]]:
        """The chunks with what was held back and with the finish reason; the tokens left."""
        assert piece.reason is not None
        held = [] if self._shaper is None else self._shaper.finish()
        usage = self._usage(0 if self._parsed.form.without_output else self.flow.n_tokens)
        text = "".join(chunk for chunk, _ in self._render(held, usage))
        ids = self._owed_ids + self.flow.uncovered
        likely = self._owed_likely + self.flow.uncovered_likely
        if self._parsed.form.without_output:
            ids, likely = [], []
        logprobs = self.rendering.logprobs_json(ids, likely) if likely else "null"
        more = self.rendering.ids_json(ids)
        reason = self._reason(piece.reason)
        return text + self.fragments.closing(reason, self.flow.stop, logprobs, more, usage), ids

    def _reason(self, reason: str) -> str:
        """A call that was asked for by name ends as a text does, as OpenAI has it."""
        named = self._parsed.form.tools.reads == "named"
        if (
            reason == "stop"
            and self._shaper is not None
            and self._shaper.calls_a_tool
            and not named
        ):
            return "tool_calls"
        return reason


def _shaper(parsed: Parsed, prompt: Prompt, tokenizer: Tokenizer) -> Shaper | None:
    tools, reasons = parsed.form.tools, parsed.form.reasons
    if not tools.reads and not reasons:
        return None
    thinks = reasons and thinks_at_its_end(tokenizer.decode(prompt.token_ids[-_TEMPLATES_END:]))
    calls: TextCalls | NamedCall | None = None
    if tools.reads == "named":
        calls = NamedCall(tools.name)
    elif tools.reads == "list":
        calls = TextCalls(tools.names)
    elif tools.reads:
        calls = PARSERS[tools.reads](tools.names)
    return Shaper(
        calls,
        reasons=reasons,
        thinks=thinks,
        only_calls=tools.reads == "list",
        parallel=tools.parallel,
    )


async def merge_pieces(
    choices: list[Choice], started: "asyncio.Queue[Choice]"
) -> AsyncGenerator[tuple[Choice, Piece], None]:
    """Pieces of all choices as they come; those in `started` are listened to. ClientGoneError."""
    pieces: asyncio.Queue[tuple[Choice, Piece] | BaseException] = asyncio.Queue()

    async def listen(choice: Choice) -> None:
        try:
            async for piece in choice.flow.pieces(choice.sink):
                await pieces.put((choice, piece))
        except Exception as error:
            await pieces.put(error)

    listeners: list[asyncio.Task[None]] = []
    ended = 0
    try:
        while ended < len(choices):
            while not started.empty():
                listeners.append(asyncio.create_task(listen(started.get_nowait())))
            found = await pieces.get()
            if isinstance(found, BaseException):
                raise found
            ended += found[1].reason is not None
            yield found
    finally:
        for listener in listeners:
            listener.cancel()
