"""vLLM's `/tokenize` and `/detokenize`: a prompt's token ids, and the text of ids."""

import json
from collections.abc import Mapping
from typing import Any

from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.asked.fields import flag, wholes
from argosy_engine.server.openai.asked.prompts import refuse_vast
from argosy_engine.server.openai.asked.tools import Tools, shown_tools
from argosy_engine.server.openai.parameters import bad, refuse_unsupported
from argosy_engine.server.openai.parse import chat_text, check_model

__all__ = ["detokenized", "tokenized"]


def tokenized(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> bytes:
    """The answer: of a `prompt`, or of `messages` through the chat template. ApiError 400, 404."""
    check_model(body, served_name)
    refuse_unsupported(body)
    if body.get("truncate_prompt_tokens") is not None:
        raise bad("truncate_prompt_tokens", "all tokens are returned: leave it out")
    chat = body.get("messages") is not None
    tools = Tools(shown=shown_tools(body))
    text = chat_text(body, tokenizer, tools) if chat else body.get("prompt")
    if not isinstance(text, str):
        raise bad("prompt", "must be a text; or write messages")
    refuse_vast(text, tokenizer, max_model_len, "messages" if chat else "prompt")
    special = flag(body, "add_special_tokens", default=not chat)
    ids = tokenizer.encode(text, add_special_tokens=special)
    answer: dict[str, object] = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    answer["token_strs"] = None
    if flag(body, "return_token_strs"):
        answer["token_strs"] = [tokenizer.decode([token]) for token in ids]
    return json.dumps(answer).encode()


def detokenized(
    body: Mapping[str, Any], tokenizer: Tokenizer, *, served_name: str, max_model_len: int
) -> bytes:
    """The answer: the text of `tokens`. ApiError 400, 404."""
    check_model(body, served_name)
    ids, last = wholes(body.get("tokens")), tokenizer.vocab_size - 1
    if ids is None or not all(0 <= each <= last for each in ids):
        raise bad("tokens", f"must be a list of token ids, which are 0 … {last}")
    if len(ids) > max_model_len:
        raise bad("tokens", f"must be at most {max_model_len}, got {len(ids)}")
    return json.dumps({"prompt": tokenizer.decode(ids)}).encode()
