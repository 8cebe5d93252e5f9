"""Every parameter of a request body that OpenAI's API or vLLM's has, and what this engine does.

One table for both endpoints; `docs/parameters.md` is generated from it. A parameter that would
change the text or the answer's form is honoured or refused by name, never ignored. Names that stand
in no list are ignored, as vLLM does: no API documents them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.server.openai.errors import ApiError

__all__ = ["HONOURED", "REFUSED", "WITHOUT_EFFECT", "Refused", "bad", "refuse_unsupported"]

_LEAVE_OUT = "leave it out"
_UNCONSTRAINED = "answers are not constrained: leave it out, and check the text that comes"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a parameter is refused and what to write instead; `harmless` values are taken."""

    instead: str
    """Shown to the client after the parameter's name."""
    harmless: tuple[Any, ...] = ()
    """Values that change nothing, besides null and empty lists and objects."""


# `parse` has the ranges of the values.
HONOURED: Mapping[str, str] = {
    "model": "the fleet's served name; anything else is 404",
    "prompt": "a text, or a list of token ids; one prompt a request",
    "messages": "role and text content; through the model's own chat template",
    "max_tokens": "default 16 for completions, the rest of the context for chats",
    "max_completion_tokens": "the same, and taken first",
    "min_tokens": "no end of sequence, stop id or stop text before so many",
    "temperature": "0 to 2; 0 is greedy",
    "top_p": "0 to 1",
    "top_k": "0 and -1 are off",
    "repetition_penalty": "0.01 to 100, over prompt and output; 1 is off",
    "seed": "a whole number; the same seed gives the same text",
    "stop": "up to 16 texts; they are not part of the answer",
    "stop_token_ids": "token ids that end the answer and give no text",
    "ignore_eos": "goes on after the end of sequence",
    "skip_special_tokens": "default true; false shows special tokens as text",
    "stream": "server-sent events",
    "stream_options": "`include_usage`; `continuous_usage_stats` is refused",
    "add_special_tokens": "default true for completions, false for chats",
    "add_generation_prompt": "default true; for the chat template",
    "chat_template_kwargs": "names and values for the chat template, such as `enable_thinking`",
}

REFUSED: Mapping[str, Refused] = {
    "n": Refused("one choice a request is made: send the request n times", (1,)),
    "best_of": Refused("one choice a request is made: leave it out or write 1", (1,)),
    "use_beam_search": Refused("there is no beam search: leave it out", (False,)),
    "length_penalty": Refused("there is no beam search: leave it out or write 1", (1,)),
    "presence_penalty": Refused("leave it out or write 0; repetition_penalty is supported", (0,)),
    "frequency_penalty": Refused("leave it out or write 0; repetition_penalty is supported", (0,)),
    "min_p": Refused("leave it out or write 0; top_p and top_k are supported", (0,)),
    "logit_bias": Refused(_LEAVE_OUT),
    "allowed_token_ids": Refused(_LEAVE_OUT),
    "bad_words": Refused(_LEAVE_OUT),
    "logits_processors": Refused(_LEAVE_OUT),
    "watermarking": Refused(_LEAVE_OUT, (False,)),
    "repetition_detection": Refused("leave it out; repetition_penalty is supported"),
    "thinking_token_budget": Refused("leave it out or write -1; max_tokens bounds all", (-1,)),
    "response_format": Refused('write {"type": "text"} or leave it out', ({"type": "text"},)),
    "structured_outputs": Refused(_UNCONSTRAINED),
    "structural_tag": Refused(_UNCONSTRAINED),
    "guided_json": Refused(_UNCONSTRAINED),
    "guided_regex": Refused(_UNCONSTRAINED),
    "guided_choice": Refused(_UNCONSTRAINED),
    "guided_grammar": Refused(_UNCONSTRAINED),
    "guided_decoding_backend": Refused(_UNCONSTRAINED),
    "guided_whitespace_pattern": Refused(_UNCONSTRAINED),
    "tools": Refused("answers call no tools: leave it out, or describe them in a message"),
    "tool_choice": Refused('answers call no tools: leave it out or write "none"', ("none", "auto")),
    "functions": Refused("answers call no functions: leave it out"),
    "function_call": Refused('answers call no functions: write "none"', ("none", "auto")),
    "web_search_options": Refused("nothing is searched: leave it out"),
    "logprobs": Refused("none are returned: leave it out", (False,)),
    "top_logprobs": Refused("none are returned: leave it out", (0,)),
    "prompt_logprobs": Refused("none are returned: leave it out"),
    "logprob_token_ids": Refused("none are returned: leave it out"),
    "return_token_ids": Refused("texts are returned: leave it out", (False,)),
    "return_prompt_text": Refused("the prompt is not returned: leave it out", (False,)),
    "routed_experts_prompt_start": Refused("there are no experts: leave it out", (0,)),
    "echo": Refused("put the prompt before the answer yourself: leave it out", (False,)),
    "suffix": Refused("nothing is inserted: leave it out", ("",)),
    "include_stop_str_in_output": Refused("append the stop text yourself: leave it out", (False,)),
    "truncate_prompt_tokens": Refused("prompts are not cut: shorten it, and leave this out"),
    "truncation_side": Refused("prompts are not cut: leave it out"),
    "prompt_embeds": Refused("write the prompt as text or token ids"),
    "continue_final_message": Refused("write the text so far to /v1/completions", (False,)),
    "documents": Refused("write them into a message"),
    "chat_template": Refused("the model's own is used: send text to /v1/completions instead"),
    "reasoning_effort": Refused("write it into chat_template_kwargs if the template reads it"),
    "include_reasoning": Refused("reasoning is part of the text: leave it out", (True,)),
    "verbosity": Refused("say it in a message", ("medium",)),
    "modalities": Refused('only text is made: leave it out or write ["text"]', (["text"],)),
    "audio": Refused("only text is made: leave it out"),
    "media_io_kwargs": Refused("only text is read: leave it out"),
    "mm_processor_kwargs": Refused("only text is read: leave it out"),
    "priority": Refused("requests are served in their order: leave it out or write 0", (0,)),
    "cache_salt": Refused("the prefix cache is shared by all clients: leave it out"),
    "kv_transfer_params": Refused(
        "the gateway chooses the pods: leave it out; for routers for vLLM see --external-routers"
    ),
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
    "request_id": "the header `x-request-id` names a request",
    "prediction": "it would save time and not change the text",
    "parallel_tool_calls": "answers call no tools",
    "spaces_between_special_tokens": "the tokenizer's own decoder says where spaces are",
    "return_tokens_as_token_ids": "it is about log probabilities, which are refused",
    "return_token_offsets": "vLLM returns them on other endpoints",
    "return_mm_kwargs": "vLLM returns them on other endpoints",
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
