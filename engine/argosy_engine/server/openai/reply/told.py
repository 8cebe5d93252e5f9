"""Log probabilities in the forms of both endpoints, and of vLLM's `prompt_logprobs`."""

from collections.abc import Iterable, Mapping
from typing import Any

from argosy_engine.core.sampling import Likely
from argosy_engine.core.tokenizer import Tokenizer

__all__ = ["chat_logprobs", "completion_logprobs", "prompt_logprobs"]

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
