"""What an answer is to hold besides the text: choices, echo, probabilities, token ids."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from argosy_engine.server.openai.asked.fields import flag, integer, whole
from argosy_engine.server.openai.asked.prompts import MOST_CHOICES
from argosy_engine.server.openai.asked.tools import NO_TOOLS, Tools
from argosy_engine.server.openai.parameters import bad

__all__ = ["Form", "form_of"]

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
