"""Every parameter of a request body that OpenAI's API or vLLM's has, and what this engine does.

One table for both endpoints; `docs/reference/parameters.md` is generated from it. A parameter that
would change the text or the answer's form is honoured or refused by name, never ignored. Names that
stand in no list are ignored, as vLLM does: no API documents them.

A parameter that is read counts as left out if it is null; one of a wrong type or range is a 400
that names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.server.openai.errors import ApiError

_LEAVE_OUT = "leave it out"
_STRUCTURED = "write structured_outputs with json, regex, choice or grammar"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a parameter is refused and what to write instead; `harmless` values are taken."""

    instead: str
    """Shown to the client after the parameter's name."""
    harmless: tuple[Any, ...] = ()
    """Values that change nothing, besides null and empty lists and objects."""


# `request` and `sampling` have the ranges of the values.
HONOURED: Mapping[str, str] = {
    "model": "the fleet's served name; left out it is the first one; anything else is 404",
    "prompt": "a text, a list of token ids, or a list of up to 128 of these",
    "messages": "role, text content, tool calls, reasoning; through the model's chat template",
    "n": "choices for each prompt, up to 128 in all; they share the prompt's KV blocks",
    "best_of": "so many are generated and the `n` likeliest sent; not with `stream`",
    "echo": "completions only: the prompt before the text, with `logprobs` of its tokens, too",
    "logprobs": "completions: 0 to 20 likeliest tokens with each; chats: true or false",
    "top_logprobs": "chats with `logprobs`: 0 to 20",
    "prompt_logprobs": "0 to 20; not with `stream`; the prompt is then computed without its cache",
    "return_token_ids": "`prompt_token_ids`, and `token_ids` of each choice or chunk",
    "cache_salt": "KV blocks are shared with requests of the same salt alone; prefilled by decode",
    "truncate_prompt_tokens": "a longer prompt loses its beginning; -1 is all that fits",
    "max_tokens": "default 16 for completions, the rest of the context for chats; 0 with `echo`",
    "max_completion_tokens": "the same, and taken first",
    "min_tokens": "no end of sequence, stop id or stop text before so many",
    "temperature": "0 to 2; 0 is greedy",
    "top_p": "above 0, at most 1",
    "top_k": "0 and -1 are off",
    "repetition_penalty": "0.01 to 100, over prompt and output; 1 is off",
    "presence_penalty": "-2 to 2, over the output",
    "frequency_penalty": "-2 to 2, over the output",
    "min_p": "0 to 1; 0 is off",
    "logit_bias": "token ids with -100 to 100 each; 1,024 at most",
    "allowed_token_ids": "only these are drawn; with `bad_words` 1 MB as JSON of token ids at most",
    "bad_words": "up to 128 texts, of 1,000 characters each, that the answer does not contain",
    "response_format": "`text`, `json_object`, or `json_schema` with its `schema`",
    "structured_outputs": "one of `json`, `json_object`, `regex`, `choice`, `grammar` (Lark, GBNF)",
    "tools": "chats: up to 128 functions, shown to the chat template",
    "tool_choice": "`none`, `required`, a function, `allowed_tools`, or with a parser `auto`",
    "parallel_tool_calls": "false: one call",
    "seed": "a whole number of 64 bits; the same seed gives the same text",
    "stop": "up to 64 texts; they are not part of the answer",
    "stop_token_ids": "up to 1,024 token ids that end the answer and give no text",
    "include_stop_str_in_output": "what ends the answer stands at its end; default false",
    "ignore_eos": "goes on after the end of sequence",
    "skip_special_tokens": "default true; false shows special tokens as text",
    "stream": "server-sent events",
    "stream_options": "`include_usage`, `continuous_usage_stats`",
    "add_special_tokens": "default true for completions, false for chats",
    "add_generation_prompt": "default true; for the chat template",
    "continue_final_message": "chats: the answer goes on with the last message",
    "reasoning_effort": "`none` to `max`, for the chat template; `enable_thinking` follows from it",
    "chat_template_kwargs": "names and values for the chat template, such as `enable_thinking`",
}

REFUSED: Mapping[str, Refused] = {
    "use_beam_search": Refused("there is no beam search: leave it out", (False,)),
    "length_penalty": Refused("there is no beam search: leave it out or write 1", (1,)),
    "logits_processors": Refused(_LEAVE_OUT),
    "watermarking": Refused(_LEAVE_OUT, (False,)),
    "repetition_detection": Refused("leave it out; the three penalties are supported"),
    "thinking_token_budget": Refused("leave it out or write -1; max_tokens bounds all", (-1,)),
    "structural_tag": Refused(_STRUCTURED),
    "guided_json": Refused(_STRUCTURED),
    "guided_regex": Refused(_STRUCTURED),
    "guided_choice": Refused(_STRUCTURED),
    "guided_grammar": Refused(_STRUCTURED),
    "guided_decoding_backend": Refused(_STRUCTURED),
    "guided_whitespace_pattern": Refused(_STRUCTURED),
    "functions": Refused("write tools instead"),
    "function_call": Refused("write tool_choice instead", ("none", "auto")),
    "web_search_options": Refused("nothing is searched: leave it out"),
    "moderation": Refused("nothing is moderated: leave it out"),
    "logprob_token_ids": Refused("none are returned: leave it out"),
    "return_tokens_as_token_ids": Refused("ask for return_token_ids instead", (False,)),
    "return_prompt_text": Refused("the prompt is not returned: leave it out", (False,)),
    "routed_experts_prompt_start": Refused("there are no experts: leave it out", (0,)),
    "suffix": Refused("nothing is inserted: leave it out", ("",)),
    "truncation_side": Refused(
        'a prompt loses its beginning: leave it out or write "left"', ("left",)
    ),
    "prompt_embeds": Refused("write the prompt as text or token ids"),
    "documents": Refused("write them into a message"),
    "chat_template": Refused(
        "the model's own is used, because a client's could take seconds of the thread that reads "
        "prompts: render yours and send the text to /v1/completions"
    ),
    "include_reasoning": Refused("reasoning is always sent: leave it out", (True,)),
    "verbosity": Refused("say it in a message", ("medium",)),
    "modalities": Refused('only text is made: leave it out or write ["text"]', (["text"],)),
    "audio": Refused("only text is made: leave it out"),
    "media_io_kwargs": Refused("only text is read: leave it out"),
    "mm_processor_kwargs": Refused("only text is read: leave it out"),
    "priority": Refused("requests are served in their order: leave it out or write 0", (0,)),
    "kv_transfer_params": Refused("the gateway chooses the pods: leave it out"),
    "ec_transfer_params": Refused("the gateway chooses the pods: leave it out"),
    "vllm_xargs": Refused("there are no extensions: leave it out"),
    "argosy_resume": Refused(
        "the gateway writes it when a stream changes its engine: leave it out"
    ),
}

WITHOUT_EFFECT: Mapping[str, str] = {
    "user": "names the client",
    "safety_identifier": "names the client",
    "metadata": "is for the client's own records",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "session_id": "pods are chosen by load",
    "prompt_cache_key": "equal beginnings are always cached",
    "prompt_cache_options": "equal beginnings are always cached",
    "prompt_cache_retention": "equal beginnings are always cached",
    "request_id": "the header `x-request-id` names a request",
    "prediction": "it would save time and not change the text",
    "spaces_between_special_tokens": "the tokenizer's own decoder says where spaces are",
    "return_token_offsets": "vLLM returns them on other endpoints",
    "return_mm_kwargs": "vLLM returns them on other endpoints",
    "mm_payload": "vLLM returns it on other endpoints",
    "stream_interval": "each token is sent as it comes",
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """ApiError 400 for the first parameter of `body` that would change what this engine cannot."""
    for name, refused in REFUSED.items():
        if name in body and not _is_harmless(body[name], refused.harmless):
            raise bad(name, f"{body[name]!r:.40} is not supported: {refused.instead}")


def _is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    """0 and false are different: `logprobs: 0` asks for one of each token."""
    if value is None or value in ([], {}):
        return True
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless
    )


def bad(param: str, message: str) -> ApiError:
    """Status 400, in words that begin with the parameter's name."""
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")


MOST_IDS = 1 << 31
"""Of a vocabulary, and of top_k."""


def whole(value: Any) -> int | None:
    """A whole number, which may be written as 2.0; None for anything else."""
    if type(value) is int:
        return value
    return int(value) if type(value) is float and value.is_integer() else None


def wholes(values: Any) -> list[int] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(values, list):
        return None
    if all(type(each) is int for each in values):
        return values
    found = [number for each in values if (number := whole(each)) is not None]
    return found if len(found) == len(values) else None


def limit_name(body: Mapping[str, Any]) -> str:
    """The member that bounds the answer's tokens, as the client writes it."""
    newer = body.get("max_completion_tokens") is not None
    return "max_completion_tokens" if newer else "max_tokens"


def integer(body: Mapping[str, Any], name: str, default: Any, *, low: int | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    found = whole(value)
    if found is None:
        raise bad(name, f"must be a whole number, got {value!r:.40}")
    if low is not None and found < low:
        raise bad(name, f"must be at least {low}, got {value!r:.40}")
    return found


def number(
    body: Mapping[str, Any],
    name: str,
    default: float,
    *,
    low: float,
    high: float,
    above: bool = False,
) -> float:
    """`above`: `low` itself is refused."""
    value = body.get(name)
    if value is None:
        return default
    inside = type(value) in (int, float) and low <= value <= high and not (above and value == low)
    if not inside:
        span = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise bad(name, f"must be a number {span}, got {value!r:.40}")
    return float(value)


def flag(body: Mapping[str, Any], name: str, *, default: bool = False, within: str = "") -> bool:
    """`within`: the parameter whose member it is."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(
            f"{within}.{name}" if within else name, f"must be true or false, got {value!r:.40}"
        )
    return value


def ids(
    body: Mapping[str, Any], name: str, vocab_size: int, *, most: int = MOST_IDS
) -> tuple[int, ...]:
    """Token ids of the model, each once; empty if left out."""
    value = body.get(name)
    if value is None:
        return ()
    given = wholes(value)
    if given is None or not all(0 <= each < vocab_size for each in given):
        raise bad(name, f"must be a list of token ids, which are 0 … {vocab_size - 1}")
    found = tuple(dict.fromkeys(given))
    if len(found) > most:
        raise bad(name, f"must be at most {most} different token ids, got {len(found)}")
    return found


def texts(
    body: Mapping[str, Any], name: str, most: int, *, longest: int | None = None
) -> tuple[str, ...]:
    """One text or a list of them, each of `longest` characters at most; empty if left out."""
    value = body.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if (
        not isinstance(value, list)
        or len(value) > most
        or not all(isinstance(each, str) and each for each in value)
    ):
        raise bad(name, f"must be a text or a list of at most {most} non-empty texts")
    if longest is not None and any(len(each) > longest for each in value):
        raise bad(name, f"each must have at most {longest} characters")
    return tuple(value)
