"""Which pool an engine computes on: with Triton kernels of ours, or in plain torch.

The kernels are tried in a child process before this one touches the GPU. No version is asked for: a
Triton that is missing, finds no compiler, compiles for another GPU or computes something else fails
the trial, and torch computes attention.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch

from argosy_engine.config import EngineConfig
from argosy_engine.model.attention.paged import PagedPool, PoolShape
from argosy_engine.model.attention.trial import Wish
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.native.choose import end_of_trial
from argosy_engine.model.spec import DecoderSpec, ModelSpec

__all__ = ["PROGRAM", "MakePool", "choose_pool"]

log = logging.getLogger(__name__)

MakePool = Callable[[PoolShape, torch.dtype, torch.device], PagedPool]
PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.model.attention.trial")
_TIMEOUT_S = 300.0
"""Four kernels are compiled, the first time."""


def choose_pool(
    config: EngineConfig,
    spec: DecoderSpec,
    dtype: torch.dtype,
    device: torch.device,
    program: tuple[str, ...] = PROGRAM,
) -> MakePool:
    """What makes the pool. A CPU and `--compute torch` have plain torch without a trial.

    Models that transformers computes have it as well, and several ranks, for which `--compute` is
    torch.
    """
    if device.type != "cuda" or config.compute == "torch" or not isinstance(spec, ModelSpec):
        return PagedPool
    wish = Wish(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        block_size=config.block_size,
        head_dim=spec.head_dim,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
    )
    end = end_of_trial((*program, json.dumps(asdict(wish))), _TIMEOUT_S)
    if end:
        log.warning(
            "the Triton kernels fail on this GPU (%s): torch computes attention, which is slower; "
            "Triton needs a C compiler in the image, or CC to name one, and a HOME that is "
            "writable; --compute torch leaves this trial out",
            end,
        )
        return PagedPool
    return partial(TritonPool, heads=spec.heads)
