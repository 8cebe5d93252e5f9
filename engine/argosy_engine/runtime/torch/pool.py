"""Which KV pool an engine computes on, and how many blocks it has.

The Triton kernels are tried in a child process before this one uses the GPU. No version is asked
for: a Triton that is missing, cannot compile, compiles for another GPU or computes something else
fails the trial, and torch computes in their place. They fall back together: norms, gates and draws
with top_p have kernels where the pool is a `TritonPool`.

On a GPU the largest step runs once before the pool is made, beside the largest graph. What it takes
besides weights and KV stays free, with a margin; the pool has the rest. On a CPU memory that a step
takes is given back, and the shares below leave room.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Protocol

import torch

from argosy.model_config import DecoderSpec, ModelSpec
from argosy_engine.config import MOST_AUTO_TOKENS, EngineConfig
from argosy_engine.core.request import Chunk, to_table
from argosy_engine.core.runner import NULL_BLOCK
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import StepPlan
from argosy_engine.errors import LoadError
from argosy_engine.model.attention.paged import FP8, PagedPool, PoolShape
from argosy_engine.model.attention.trial import Wish
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.native.choose import end_of_trial
from argosy_engine.runtime.machine import available_bytes, is_limited

_POOL_BYTES = 256 << 20
"""KV pool where no control group limits memory, because other processes need memory too …"""
_POOL_BYTES_LONGEST = 1 << 30
"""… unless one request of the model's full context needs more: then as much, up to this."""
_POOL_SHARE = 0.8
"""Share of the free memory for the KV pool in a limited control group, if no step was measured."""
_MARGIN_BYTES = 1 << 30
"""Free beside what was measured: code and workspaces that libraries load at their first use, KV on
its way to and from peers, the nodes of the smaller graphs. Small devices leave 1 - _POOL_SHARE of
what is free, if that is less."""
_FRAGMENTS = 0.1
"""Free beside that, as a share of the largest step's memory: steps of other sizes leave gaps in
what torch's allocator holds."""


class Gauge(Protocol):
    """Measures the memory of the device."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """The most that `run` takes at a time, beyond what is taken before it."""


class CudaGauge:
    """By torch's allocator, with what it cannot use between allocations."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def peak_bytes(self, run: Callable[[], object]) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        run()
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_reserved(self._device)
        torch.cuda.empty_cache()
        return max(0, peak - before)


def free_bytes(device: torch.device, ranks: int) -> int:
    """For one rank; on a CPU all take from the same memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes() // ranks


def kv_type(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """The type of KV where the computation has `dtype`."""
    return FP8 if config.kv_cache_dtype == "fp8" else dtype


def scratch_shape(config: EngineConfig, spec: DecoderSpec) -> PoolShape:
    """A pool with the null block alone, for `largest_step`."""
    return _shape(config, spec, blocks=1)


def largest_step(config: EngineConfig, context: int) -> StepPlan:
    """The step that takes the most memory, all of its KV in the null block.

    Every place of the batch draws a token at the end of `context` tokens, and the last one has as
    many prompt tokens as the step has room for.
    """
    most = config.step_tokens(on_cpu=False) or MOST_AUTO_TOKENS
    sequences = max(1, min(config.max_num_seqs, most))
    prompt = max(1, min(most - (sequences - 1), context - 1))
    table = to_table([NULL_BLOCK] * (-(-context // config.block_size)))
    tokens = [0] * context
    # Filters and log probabilities copy the logits.
    sampling = SamplingParams(max_tokens=1, top_p=0.95, logprobs=20)
    chunks = tuple(
        Chunk(
            request_id=f"largest-{index}",
            tokens=tokens,
            n_prompt=context if index == sequences - 1 else 1,
            block_table=table,
            start=context - count,
            count=count,
            samples=True,
            decode=index < sequences - 1,
            sampling=sampling,
        )
        for index, count in enumerate([*[1] * (sequences - 1), prompt])
    )
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=config.block_size,
        prefill_tokens=prompt,
        prefill_sequences=1,
        decode_sequences=sequences - 1,
        decode_context_tokens=context * (sequences - 1),
        after_idle=True,
    )


def pool_shape(
    config: EngineConfig,
    spec: DecoderSpec,
    dtype: torch.dtype,
    device: torch.device,
    free: int,
    measured: int | None = None,
) -> PoolShape:
    """LoadError(OutOfMemory) if not one block fits, or not what `--kv-cache-tokens` says.

    `dtype` is that of KV. Of `free` bytes those that the largest step takes stay free: `measured`,
    None if it was not.
    """
    per_token, step_bytes = spec.kv_bytes_per_token(dtype.itemsize), measured or 0
    if config.gpu_memory_utilization:
        budget = int(free * config.gpu_memory_utilization) - step_bytes
    elif measured is not None:
        budget = free - measured - _margin(free, measured)
    elif device.type == "cuda" or is_limited():
        budget = int(free * _POOL_SHARE)
    else:
        longest = (config.max_model_len or spec.max_positions) * per_token
        budget = min(free // 2, max(_POOL_BYTES, min(longest, _POOL_BYTES_LONGEST)))
    wanted = config.kv_cache_tokens or min(
        budget // per_token, config.max_num_seqs * spec.max_positions
    )
    blocks = wanted // config.block_size
    free -= step_bytes
    if blocks < 1 or blocks * config.block_size * per_token > free:
        besides = f" beside the {step_bytes >> 20} MiB of a step" if step_bytes else ""
        smaller = ", --max-num-batched-tokens or --max-num-seqs" if step_bytes else ""
        raise LoadError(
            "OutOfMemory",
            f"a KV pool of {max(0, wanted)} tokens needs {max(0, wanted) * per_token >> 20} MiB, "
            f"{max(0, free) >> 20} MiB are free{besides}: raise the memory limit, or lower "
            f"--kv-cache-tokens{smaller}",
        )
    return _shape(config, spec, blocks=blocks + 1)


def _margin(free: int, step_bytes: int) -> int:
    """Bytes for what the measure of the largest step does not show."""
    return min(_MARGIN_BYTES, int(free * (1 - _POOL_SHARE))) + int(step_bytes * _FRAGMENTS)


def _shape(config: EngineConfig, spec: DecoderSpec, *, blocks: int) -> PoolShape:
    return PoolShape(
        blocks=blocks,
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        block_size=config.block_size,
        head_dim=spec.head_dim,
    )


log = logging.getLogger(__name__)

MakePool = Callable[[PoolShape, torch.dtype, torch.device], PagedPool]
PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.model.attention.trial")
_TIMEOUT_S = 300.0
"""Seven kernels are compiled, the first time."""


def choose_pool(
    config: EngineConfig,
    spec: DecoderSpec,
    dtype: torch.dtype,
    device: torch.device,
    program: tuple[str, ...] = PROGRAM,
) -> MakePool:
    """What makes the pool. A CPU and `--compute torch` have plain torch without a trial.

    Models that transformers computes have it as well. Each rank tries the kernels on its own GPU.
    """
    if device.type != "cuda" or config.compute == "torch" or not isinstance(spec, ModelSpec):
        return PagedPool
    wish = Wish(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        block_size=config.block_size,
        head_dim=spec.head_dim,
        hidden=spec.hidden,
        inner=spec.inner,
        vocab=spec.vocab,
        qk_norm=spec.qk_norm,
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=str(kv_type(config, dtype)).removeprefix("torch."),
        device=str(device),
    )
    end = end_of_trial((*program, json.dumps(asdict(wish))), _TIMEOUT_S)
    if end:
        log.warning(
            "the Triton kernels fail on this GPU (%s): torch computes instead, which is slower; "
            "Triton needs a HOME that it can write to, and in other images than the engine's own a "
            "C compiler, or CC to name one; --compute torch leaves this trial out",
            end,
        )
        return PagedPool
    return partial(TritonPool, heads=spec.heads)
