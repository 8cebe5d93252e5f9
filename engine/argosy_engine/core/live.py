"""Limits that may change while the engine serves: `GET` and `PUT /limits` of the admin port.

`change` reads what was sent, `Scheduler.apply` takes it between two steps. `auto_limits` is what
`max_num_batched_tokens: auto` means for one step. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from argosy_engine.core.batching import BATCHING, BatchingPolicy
from argosy_engine.core.capacity import POLICIES, CapacityPolicy
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import Sequence
from argosy_engine.core.step_time import Terms, prompt_tokens

_OTHER_NAMES = {"max_batch_size": "max_num_seqs", "max_num_tokens": "max_num_batched_tokens"}
"""TensorRT-LLM's names → vLLM's."""
_NAMES = (
    "max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, capacity_policy, "
    "batching, tpot_limit_ms"
)
_MOST = 1 << 20
"""Of sequences and of tokens in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """What `/limits` shows and takes."""

    max_num_seqs: int
    max_num_batched_tokens: int | None
    """None: auto."""

    capacity_policy: str
    """A name of `POLICIES`."""

    batching: str
    """A name of `BATCHING`."""

    long_prefill_token_threshold: int = 0
    """Tokens of one prompt in a step; 0: as many as the step has left."""

    tpot_limit_s: float = 0.0
    """What `auto` keeps steps within; 0: only what requests ask for."""


def change(limits: LiveLimits, sent: object) -> LiveLimits:
    """The limits with what a client sent; ValueError says what to write instead."""
    if not isinstance(sent, Mapping) or not sent:
        raise ValueError(f"send a JSON object with at least one of {_NAMES}")
    for name, value in sent.items():
        limits = _change_one(limits, _OTHER_NAMES.get(name, str(name)), value)
    return limits


def _change_one(limits: LiveLimits, name: str, value: object) -> LiveLimits:
    match name:
        case "max_num_seqs":
            return replace(limits, max_num_seqs=_count(name, value))
        case "max_num_batched_tokens" if value == "auto":
            return replace(limits, max_num_batched_tokens=None)
        case "max_num_batched_tokens":
            return replace(limits, max_num_batched_tokens=_count(name, value, ' or "auto"'))
        case "long_prefill_token_threshold":
            return replace(limits, long_prefill_token_threshold=_count(name, value, least=0))
        case "capacity_policy":
            return replace(limits, capacity_policy=_one_of(name, value, POLICIES))
        case "batching":
            return replace(limits, batching=_one_of(name, value, BATCHING))
        case "tpot_limit_ms":
            return replace(limits, tpot_limit_s=_limit_s(name, value))
        case _:
            raise ValueError(f"{_quote(name)} is no limit that can change: write one of {_NAMES}")


def live_of(limits: Limits, policy: CapacityPolicy, batching: BatchingPolicy) -> LiveLimits:
    """What holds now. A policy without a name, of a test, has an empty one."""
    return LiveLimits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=None if limits.auto_tokens else limits.max_num_batched_tokens,
        capacity_policy=next((n for n, kind in POLICIES.items() if type(policy) is kind), ""),
        batching=next((n for n, function in BATCHING.items() if function is batching), ""),
        long_prefill_token_threshold=limits.long_prefill_threshold,
        tpot_limit_s=limits.tpot_limit_s,
    )


def limits_under(live: LiveLimits, limits: Limits, most_tokens: int) -> Limits:
    """`limits` with what `live` says; with auto a step has at most `most_tokens`."""
    tokens = live.max_num_batched_tokens
    return replace(
        limits,
        max_num_seqs=live.max_num_seqs,
        max_num_batched_tokens=most_tokens if tokens is None else tokens,
        auto_tokens=tokens is None,
        long_prefill_threshold=live.long_prefill_token_threshold,
        tpot_limit_s=live.tpot_limit_s,
    )


def auto_limits(
    limits: Limits, running: list[Sequence], terms: Terms | None, block_size: int
) -> Limits:
    """The limits of the next step: its decodes, and the prompt tokens that it affords beside them.

    The strictest TPOT limit counts, of the engine's and of those that the decodes asked for.
    """
    decodes, limit_s = 0, limits.tpot_limit_s or inf
    for sequence in running:
        if sequence.decoding:
            decodes += 1
            limit_s = min(limit_s, sequence.request.tpot_limit_s or inf)
    tokens = prompt_tokens(
        terms,
        decodes=decodes,
        limit_s=limit_s if limit_s < inf else 0.0,
        least=block_size,
        most=limits.max_num_batched_tokens,
    )
    return replace(limits, max_num_batched_tokens=decodes + tokens)


def show(limits: LiveLimits, now: Limits) -> dict[str, Any]:
    """The JSON object of `/limits`. `now` are the limits of the next step."""
    tokens = limits.max_num_batched_tokens
    return {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": "auto" if tokens is None else tokens,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "capacity_policy": limits.capacity_policy,
        "batching": limits.batching,
        "tpot_limit_ms": limits.tpot_limit_s * 1000 or None,
        "step_tokens": now.max_num_batched_tokens,
    }


def _count(name: str, value: object, other: str = "", *, least: int = 1) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST:
        return value
    raise ValueError(
        f"{name}: write a whole number from {least} to {_MOST}{other}, not {_quote(value)}"
    )


def _one_of(name: str, value: object, known: Mapping[str, object]) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{name}: write one of {', '.join(known)}, not {_quote(value)}")


def _limit_s(name: str, value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return value / 1000
    raise ValueError(
        f"{name}: write a number of milliseconds above 0, or null, not {_quote(value)}"
    )


def _quote(value: object) -> str:
    return repr(value)[:40]
