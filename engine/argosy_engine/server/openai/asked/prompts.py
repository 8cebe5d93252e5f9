"""The prompts of a request as token ids: one of a chat, one or several of a completion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.asked.fields import flag, integer, limit_name, whole, wholes
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import bad

__all__ = [
    "MOST_CHOICES",
    "Prompt",
    "encode",
    "prompts_of",
    "refuse_long_answer",
    "refuse_vast",
]

MOST_CHOICES = 128
"""Of one request: OpenAI's bound of n, here for all prompts together."""
_CONTEXTS = 4
_FEWEST_VAST = 16_384
"""A text is tokenised to be cut or counted up to four contexts, and always up to 16,384 tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt."""

    token_ids: list[int]
    text: str | None = None
    """As the client wrote it; None if it wrote token ids, or if the text was cut."""


def prompts_of(
    body: Mapping[str, Any], tokenizer: Tokenizer, max_model_len: int
) -> tuple[Prompt, ...]:
    """Of a body of /v1/completions: a text, token ids, or a list of either."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or whole(prompt[0]) is not None:
        return (_prompt(body, prompt, tokenizer, max_model_len, "prompt"),)
    if len(prompt) > MOST_CHOICES:
        raise bad("prompt", f"a request has at most {MOST_CHOICES} prompts, got {len(prompt)}")
    return tuple(
        _prompt(body, each, tokenizer, max_model_len, f"prompt[{at}]")
        for at, each in enumerate(prompt)
    )


def _prompt(
    body: Mapping[str, Any], prompt: Any, tokenizer: Tokenizer, max_model_len: int, param: str
) -> Prompt:
    if isinstance(prompt, str):
        special = flag(body, "add_special_tokens", default=True)
        return encode(body, prompt, tokenizer, max_model_len, param, special=special)
    ids = wholes(prompt)
    if not ids:
        raise bad(param, "must be a text, a list of token ids, or a list of these")
    most = _most_tokens(body, max_model_len)
    if most is None:
        _refuse_long(len(ids), max_model_len, param)
    if min(ids) < 0 or max(ids) >= tokenizer.vocab_size:
        raise bad(param, f"token ids are 0 … {tokenizer.vocab_size - 1}")
    return Prompt(_cut(ids, most))


def refuse_long_answer(body: Mapping[str, Any], prompt: int, answer: int, context: int) -> None:
    """ApiError 400 where an answer as long as it may be has no room behind the longest prompt."""
    if prompt + answer > context:
        name = limit_name(body)
        raise ApiError(
            400,
            f"{name}: this model's context is {context} tokens; the prompt has {prompt} and "
            f"{answer!r:.40} tokens are to be generated: shorten the prompt or lower {name}",
            param=name,
            code="context_length_exceeded",
        )


def encode(
    body: Mapping[str, Any],
    text: str,
    tokenizer: Tokenizer,
    max_model_len: int,
    param: str,
    *,
    special: bool,
) -> Prompt:
    """Ids of a text that fits; most of those that do not are refused before they cost a second."""
    most = _most_tokens(body, max_model_len)
    if most is None:
        _refuse_long(tokenizer.fewest_tokens(text), max_model_len, param, about="at least ")
    else:
        refuse_vast(text, tokenizer, max_model_len, param)
    token_ids = tokenizer.encode(text, add_special_tokens=special)
    if not token_ids:
        raise bad(param, "is empty: send at least one token")
    if most is None:
        _refuse_long(len(token_ids), max_model_len, param)
    cut = _cut(token_ids, most)
    return Prompt(cut, text if len(cut) == len(token_ids) else None)


def refuse_vast(text: str, tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    """ApiError 400 before a text that may be longer than the context costs seconds."""
    most = max(_CONTEXTS * max_model_len, _FEWEST_VAST)
    fewest = tokenizer.fewest_tokens(text)
    if fewest > most:
        raise bad(param, f"has at least {fewest} tokens: a text of at most {most} is tokenised")


def _most_tokens(body: Mapping[str, Any], max_model_len: int) -> int | None:
    """`truncate_prompt_tokens`: a longer prompt loses its beginning. -1: what the context holds."""
    most = integer(body, "truncate_prompt_tokens", None, low=-1)
    if most == 0 or (most is not None and most >= max_model_len):
        raise bad("truncate_prompt_tokens", f"must be -1, or 1 to {max_model_len - 1}")
    return max_model_len - 1 if most == -1 else most


def _cut(token_ids: list[int], most: int | None) -> list[int]:
    return token_ids if most is None else token_ids[-most:]


def _refuse_long(count: int, max_model_len: int, param: str, *, about: str = "") -> None:
    if count >= max_model_len:
        raise ApiError(
            400,
            f"this model's context is {max_model_len} tokens and the prompt has {about}{count}: "
            "shorten it so that at least one token can follow",
            param=param,
            code="context_length_exceeded",
        )
