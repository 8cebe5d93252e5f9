"""How the tokens of a request are to be drawn, from its body."""

import json
import random
from collections.abc import Mapping
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults, SamplingParams
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.asked.fields import (
    MOST_IDS,
    flag,
    ids,
    integer,
    limit_name,
    number,
    texts,
)
from argosy_engine.server.openai.asked.form import Form
from argosy_engine.server.openai.parameters import bad
from argosy_engine.transfer.wire import MAX_SAMPLING_BYTES

__all__ = ["sampling_of"]

_MOST_BIASES = 1024
"""vLLM has no bound; OpenAI's is 300."""
_LONGEST_ID = 10
"""Digits of a token id."""
_MOST_BAD_WORDS = 128
_LONGEST_BAD_WORD = 1000
_MOST_STOP_IDS = 1024
_LARGEST_SEED = (1 << 63) - 1
"""OpenAI's and vLLM's."""


def sampling_of(
    body: Mapping[str, Any],
    default_max: int,
    defaults: SamplingDefaults,
    tokenizer: Tokenizer,
    form: Form,
    grammar: str = "",
) -> SamplingParams:
    """ApiError 400 for a value that is out of range."""
    name = limit_name(body)
    max_tokens = 1 if form.without_output else integer(body, name, default_max, low=1)
    told = [form.prompt_logprobs, form.logprobs if form.echo else None]
    ranked = 0 if form.best_of > form.n else None
    seed = integer(body, "seed", None, low=-_LARGEST_SEED - 1)
    if seed is not None and seed > _LARGEST_SEED:
        raise bad("seed", f"must have 64 bits: at most {_LARGEST_SEED}, got {seed!r:.40}")
    min_tokens = integer(body, "min_tokens", 0, low=0)
    if min_tokens > max_tokens:
        raise bad("min_tokens", f"must be at most {name}, {max_tokens!r:.40}")
    penalty = defaults.repetition_penalty
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=number(body, "temperature", defaults.temperature, low=0.0, high=2.0),
        top_p=number(body, "top_p", defaults.top_p, low=0.0, high=1.0, above=True),
        top_k=min(max(0, integer(body, "top_k", defaults.top_k, low=-1)), MOST_IDS),
        min_p=number(body, "min_p", defaults.min_p, low=0.0, high=1.0),
        repetition_penalty=number(body, "repetition_penalty", penalty, low=0.01, high=100.0),
        presence_penalty=number(body, "presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=number(body, "frequency_penalty", 0.0, low=-2.0, high=2.0),
        logit_bias=_biases(body, tokenizer.vocab_size),
        allowed_token_ids=_allowed(body, tokenizer.vocab_size),
        bad_words=_bad_words(body, tokenizer),
        grammar=grammar,
        logprobs=ranked if form.logprobs is None else form.logprobs,
        prompt_logprobs=max((count for count in told if count is not None), default=None),
        seed=random.getrandbits(31) if seed is None else seed & 0x7FFF_FFFF_FFFF_FFFF,
        ignore_eos=flag(body, "ignore_eos"),
        stop_token_ids=ids(body, "stop_token_ids", tokenizer.vocab_size, most=_MOST_STOP_IDS),
    )
    _refuse_large(sampling)
    return sampling


def _refuse_large(sampling: SamplingParams) -> None:
    """What a decode engine could not tell a prefill engine is refused by engines of every role."""
    sizes = {
        name: len(json.dumps(value, separators=(",", ":")))
        for name in ("bad_words", "allowed_token_ids", "logit_bias", "stop_token_ids")
        if (value := getattr(sampling, name))
    }
    room = MAX_SAMPLING_BYTES - len(json.dumps(sampling.grammar))
    if sum(sizes.values()) > room:
        largest = max(sizes, key=lambda name: sizes[name])
        raise bad(
            largest,
            f"takes {sizes[largest]} bytes as token ids; all that says how tokens are drawn takes "
            f"{MAX_SAMPLING_BYTES} bytes at most: write less",
        )


def _biases(body: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = body.get("logit_bias") or {}
    if not isinstance(given, dict) or len(given) > _MOST_BIASES:
        raise bad("logit_bias", f"must be an object of at most {_MOST_BIASES} token ids")
    biases: dict[int, float] = {}
    for token, bias in given.items():
        known = token.isascii() and token.isdigit() and len(token) <= _LONGEST_ID
        if not known or int(token) >= vocab_size:
            raise bad("logit_bias", f"{token!r:.40} is no token id: they are 0 … {vocab_size - 1}")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise bad("logit_bias", f"{token!r:.40} must be a number from -100 to 100")
        biases[int(token)] = float(bias)
    return tuple(biases.items())


def _allowed(body: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    if body.get("allowed_token_ids") == []:
        raise bad("allowed_token_ids", "allows no token: name some, or leave it out")
    return ids(body, "allowed_token_ids", vocab_size)


def _bad_words(body: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is spelled at the beginning of a text and after a space, as in vLLM."""
    spelled: list[tuple[int, ...]] = []
    for word in texts(body, "bad_words", _MOST_BAD_WORDS, longest=_LONGEST_BAD_WORD):
        for text in dict.fromkeys((word.lstrip(), " " + word.lstrip())):
            token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if token_ids:
                spelled.append(token_ids)
    return tuple(dict.fromkeys(spelled))
