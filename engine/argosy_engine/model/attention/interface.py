"""The paged pool behind the attention functions of transformers (`AttentionInterface`).

A model of transformers calls `paged_attention` once a layer with the packed tokens of a step. The
pool and the step stand in a context variable, since not every model hands its arguments down.
Nothing here imports transformers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from argosy_engine.errors import LoadError
from argosy_engine.model.attention.paged import PagedBatch, PagedPool

__all__ = ["PagedStep", "paged_attention", "step_of"]

_HARMLESS = {"dropout", "position_ids", "use_cache", "output_attentions", "cache_position"}
"""Arguments that change nothing here: nothing is trained, and positions are turned already."""


@dataclass(slots=True)
class PagedStep:
    """What the layers of one step share."""

    pool: PagedPool
    batch: PagedBatch

    attended: list[int] = field(default_factory=list)
    """The layers that have called, in order."""


_step: ContextVar[PagedStep] = ContextVar("paged step")


@contextmanager
def step_of(pool: PagedPool, batch: PagedBatch) -> Iterator[PagedStep]:
    """The step that `paged_attention` works on inside the block."""
    step = PagedStep(pool, batch)
    token = _step.set(step)
    try:
        yield step
    finally:
        _step.reset(token)


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[1, N, heads, head_dim] for `query` [1, heads, N, head_dim], whose K and V are written.

    LoadError(UnsupportedArchitecture) for attention that the pool does not compute, by its name.
    """
    step = _step.get()
    shape, layer = step.pool.shape, int(module.layer_idx)
    _refuse(module, attention_mask, is_causal, others)
    expected = (1, shape.kv_heads, query.shape[2], shape.head_dim)
    if key.shape != expected or value.shape != expected:
        raise _unsupported(
            module, f"K {tuple(key.shape)} and V {tuple(value.shape)} in place of {expected}"
        )
    window = int(sliding_window or 0)
    _refuse_another_window(module.config, layer, window, module)
    step.pool.write(layer, step.batch, torch.cat([key, value], 1)[0].transpose(0, 1))
    out = step.pool.attend(layer, step.batch, query[0].transpose(0, 1), window, scaling)
    step.attended.append(layer)
    return out.unsqueeze(0), None


def _refuse(
    module: Any, mask: torch.Tensor | None, is_causal: bool | None, others: dict[str, Any]
) -> None:
    wrong = [
        f"{name}={value if isinstance(value, int | float | str) else type(value).__name__}"
        for name, value in others.items()
        if value is not None and value is not False and name not in _HARMLESS
    ]
    if mask is not None:
        wrong.append("a mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        wrong.append("is_causal=False")
    if wrong:
        raise _unsupported(module, ", ".join(wrong))


def _refuse_another_window(config: Any, layer: int, window: int, module: Any) -> None:
    """A window that stands in the mask alone would be lost: the pool makes its own mask."""
    kinds, named = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds and kinds[layer] != ("sliding_attention" if window else "full_attention"):
        raise _unsupported(module, f"{kinds[layer]} and sliding_window={window}")
    if not kinds and int(named or 0) != window:
        raise _unsupported(module, f"sliding_window={window} where config.json has {named}")


def _unsupported(module: Any, what: str) -> LoadError:
    return LoadError(
        "UnsupportedArchitecture",
        f"{type(module).__name__} asks for attention with {what}, which the paged KV cache does "
        "not compute: set engine.type: vllm, or choose another model",
    )
