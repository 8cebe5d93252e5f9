"""How the tokens of a request are to be drawn, and what its answer holds besides the text.

`Form` has choices, echo, probabilities and token ids.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults, SamplingParams
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.parameters import (
    MOST_IDS,
    bad,
    flag,
    ids,
    integer,
    limit_name,
    number,
    texts,
    whole,
)
from argosy_engine.server.openai.tools import NO_TOOLS, Tools
from argosy_engine.transfer.wire import MAX_SAMPLING_BYTES

MOST_CHOICES = 128
"""Of one request: OpenAI's bound of n, here for all prompts together."""

_MOST_LIKELY = 20
"""OpenAI's bound of `top_logprobs`, and vLLM's `--max-logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The default is a plain answer: one choice of text."""

    n: int = 1
    best_of: int = 1
    """So many are generated for each prompt, at least `n`; the likeliest are sent."""

    echo: bool = False
    """The prompt stands before the text."""

    without_output: bool = False
    """`max_tokens: 0`: only the echo."""

    logprobs: int | None = None
    """How many of the likeliest tokens are sent with each token; None: no probabilities."""

    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    continuous_usage: bool = False
    """Each chunk has the usage so far."""

    tools: Tools = NO_TOOLS

    reasons: bool = False
    """Reasoning stands apart from the content."""

    @property
    def only_text(self) -> bool:
        """The text alone says all of the answer: counts of its tokens follow from it."""
        return replace(self, reasons=False, continuous_usage=False) == Form()


def form_of(
    body: Mapping[str, Any],
    *,
    chat: bool,
    prompts: int,
    tools: Tools = NO_TOOLS,
    reasons: bool = False,
) -> Form:
    """ApiError 400 for what does not go together."""
    n = integer(body, "n", 1, low=1)
    best_of = integer(body, "best_of", n, low=1)
    if best_of < n:
        raise bad("best_of", f"must be at least n, {n!r:.40}")
    if max(n, best_of) * prompts > MOST_CHOICES:
        name = "n" if best_of == n else "best_of"
        raise bad(
            name,
            f"a request has at most {MOST_CHOICES} choices, all prompts together; this one asks "
            f"for {max(n, best_of) * prompts!r:.40}: lower {name} or send several requests",
        )
    stream = flag(body, "stream")
    if stream and best_of > n:
        raise bad("best_of", "the best are known at the end only: leave out stream or best_of")
    echo = flag(body, "echo")
    if chat and echo:
        raise bad("echo", "only goes with /v1/completions: leave it out")
    told = _at_most(body, "prompt_logprobs")
    if stream and told is not None:
        raise bad("prompt_logprobs", "comes with whole answers only: leave out stream")
    logprobs = _chat_logprobs(body) if chat else _at_most(body, "logprobs")
    options = body.get("stream_options")
    return Form(
        n=n,
        best_of=best_of,
        echo=echo,
        without_output=echo and whole(body.get("max_tokens")) == 0,
        logprobs=logprobs,
        prompt_logprobs=told,
        return_token_ids=flag(body, "return_token_ids"),
        continuous_usage=isinstance(options, dict)
        and flag(options, "continuous_usage_stats", within="stream_options")
        and flag(options, "include_usage", within="stream_options"),
        tools=tools,
        reasons=reasons,
    )


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    top = _at_most(body, "top_logprobs")
    if not flag(body, "logprobs"):
        if top:
            raise bad("top_logprobs", 'only goes with "logprobs": true')
        return None
    return top or 0


def _at_most(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is False and name == "logprobs":
        return None
    count: int | None = integer(body, name, None, low=0)
    if count is not None and count > _MOST_LIKELY:
        raise bad(name, f"must be at most {_MOST_LIKELY}, got {count!r:.40}")
    return count


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
        allowed_token_ids=_read_allowed_tokens(body, tokenizer.vocab_size),
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


def _read_allowed_tokens(body: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
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
