"""What bounds the scheduler, and which requests it refuses."""

from dataclasses import dataclass
from typing import Literal

from argosy_engine.core.request import NewRequest

OnPullFailure = Literal["recompute", "fail", "colocated"]
"""The option `--kv-on-failure`; `handover/on_failure.py` says what each means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a step and of the queue; may be replaced between steps."""

    max_num_seqs: int
    """Admitted sequences, and sequences in a step."""

    max_num_batched_tokens: int
    """Tokens in a step."""

    auto_tokens: bool = False
    """The scheduler chooses how many tokens a step has, at most `max_num_batched_tokens`."""

    tpot_limit_s: float = 0.0
    """What `auto_tokens` keeps steps with decodes within; 0: only what requests ask for."""

    max_queue: int
    """Requests that wait for admission."""

    vocab_size: int = 1 << 31
    """Token ids of prompts are below; the default accepts any."""

    long_prefill_threshold: int = 0
    """Tokens of one prompt in a step; 0 is no bound of its own."""

    pull_timeout_s: float = 60.0
    """Time within which the KV service must show progress or end a pull."""

    on_pull_failure: OnPullFailure = "recompute"

    cancel_timeout_s: float = 5.0
    """Time for the KV service to confirm that a pull was cancelled; it needs milliseconds, so
    after 5 s it is lost."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not accepted; the HTTP server and the KV server answer with it."""

    code: Literal["context_length_exceeded", "queue_full", "invalid", "duplicate", "draining"]

    message: str
    """For the client: what is wrong and what to do."""


def refuse_shape(
    request: NewRequest, max_model_len: int, vocab_size: int, step_tokens: int | None = None
) -> Refusal | None:
    """Refuse what could not be served even by an idle engine.

    `step_tokens` is what a step computes if prompts are computed whole; None if in chunks.
    """
    length, wanted = len(request.token_ids), request.sampling.max_tokens
    if not length:
        return Refusal("invalid", "the prompt is empty: send at least one token")
    if not 0 <= min(request.token_ids) <= max(request.token_ids) < vocab_size:
        return Refusal("invalid", f"this model's token ids are 0 to {vocab_size - 1}")
    if wanted < 1:
        return Refusal("invalid", f"max_tokens must be at least 1, got {wanted}")
    remote = request.lease_s is not None
    if length > max_model_len - (0 if remote else wanted):
        asked = "" if remote else f" and {wanted} tokens are to be generated"
        return Refusal(
            "context_length_exceeded",
            f"this model's context is {max_model_len} tokens; the prompt has {length}{asked}: "
            "shorten the prompt or lower max_tokens",
        )
    if step_tokens is not None and length > step_tokens:
        return Refusal(
            "context_length_exceeded",
            f"this engine computes prompts whole and at most {step_tokens} tokens in a step; the "
            f"prompt has {length}: shorten it, or start the engine with --batching chunked or a "
            "larger --max-num-batched-tokens",
        )
    return None
