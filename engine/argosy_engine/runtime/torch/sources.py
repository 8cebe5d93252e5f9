"""Where a model's weights and steps come from: our own trunk, native or in torch, or transformers.

`load_model` has the shapes first, so that a model that cannot fit is refused before its weights
are read, and makes the trunk when it knows how much context the KV pool holds. It is the same in
every rank of tensor parallelism; `runner.load` calls it in rank 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from argosy_engine.config import EngineConfig
from argosy_engine.core.step import StepPlan, flatten
from argosy_engine.errors import LoadError
from argosy_engine.model import huggingface
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.huggingface import TransformersTrunk
from argosy_engine.model.linear import Linear, Pack
from argosy_engine.model.loader import dummy_weights, load_weights
from argosy_engine.model.native_trunk import NativeLinear, NativeTrunk
from argosy_engine.model.share import WHOLE, Share
from argosy_engine.model.spec import DecoderSpec, read_spec
from argosy_engine.model.trunk import Trunk, Weights
from argosy_engine.runtime.torch.compute import Native
from argosy_engine.runtime.torch.pool.choose import choose_pool
from argosy_engine.runtime.torch.pool.size import (
    CudaGauge,
    Gauge,
    free_bytes,
    largest_step,
    pool_shape,
    scratch_shape,
)
from argosy_engine.runtime.torch.ranks.group import RankGroup

__all__ = [
    "AnyTrunk",
    "Loaded",
    "Source",
    "TransformersSource",
    "TrunkSource",
    "device_of",
    "load_model",
]

AnyTrunk = Trunk | NativeTrunk | TransformersTrunk

RunStep = Callable[[AnyTrunk, PagedPool, StepPlan], object]
"""Computes one step."""


class TrunkSource:
    """An architecture that `model.trunk` knows."""

    def __init__(self, folder: Path, share: Share = WHOLE) -> None:
        """LoadError as of `read_spec` and of `Share.of_model`."""
        self.whole = read_spec(folder)
        self._share = share
        self.spec = share.of_model(self.whole)
        self._folder = folder
        self._native: Native | None = None
        self._weights: Weights

    def weight_bytes(self, dtype: torch.dtype, device: torch.device, native: Native | None) -> int:
        """What the weights take. A packed head is a second copy of a tied embedding."""
        spec = self.spec
        embedding = spec.vocab * spec.hidden
        head = self._share.head_rows(spec.vocab) * spec.hidden
        shared = spec.tied and device.type != "cpu"
        elements = spec.trunk_parameters + embedding + (0 if shared else head)
        if native is None or not native.int8:
            return elements * dtype.itemsize
        # A code each, and a scale of four bytes for 64 of them.
        return embedding * dtype.itemsize + (elements - embedding) * 17 // 16

    def load(
        self,
        dtype: torch.dtype,
        device: torch.device,
        native: Native | None,
        group: RankGroup | None,
        *,
        dummy: bool,
    ) -> None:
        """Read the weights; LoadError as of `load_weights`."""
        self._native = native
        pack: Pack = partial(NativeLinear, native.library, int8=native.int8) if native else Linear
        of_rank = (dtype, device, pack, self._share, group)
        if dummy:
            self._weights = dummy_weights(self.whole, *of_rank)
        else:
            self._weights = load_weights(self._folder, self.whole, *of_rank)

    def trunk(self, pool: PagedPool, max_positions: int) -> AnyTrunk:
        """What computes the steps on `pool`."""
        if self._native is None:
            return Trunk(self.spec, self._weights, max_positions=max_positions)
        library = self._native.library
        return NativeTrunk(library, self.spec, self._weights, pool, max_positions=max_positions)


class TransformersSource:
    """Any other causal model."""

    def __init__(self, folder: Path, share: Share = WHOLE) -> None:
        """LoadError as of `huggingface.read`, and if there are several ranks."""
        self._foreign = huggingface.read(folder)
        if share.ranks > 1:
            raise LoadError(
                "BadArgument",
                f"--tensor-parallel-size {share.ranks}: {self._foreign.spec.architecture} is run "
                "by transformers, in one process; leave the option out",
            )
        self._folder = folder
        self._module: Any = None

    @property
    def spec(self) -> DecoderSpec:
        return self._foreign.spec

    def weight_bytes(
        self, dtype: torch.dtype, _device: torch.device, _native: Native | None
    ) -> int:
        """What the weights take."""
        return self._foreign.parameters * dtype.itemsize

    def load(
        self,
        dtype: torch.dtype,
        device: torch.device,
        _native: Native | None,
        _group: RankGroup | None,
        *,
        dummy: bool,
    ) -> None:
        """Read the weights; LoadError as of `huggingface.load`."""
        self._module = huggingface.load(self._folder, self._foreign, dtype, device, dummy=dummy)

    def trunk(self, _pool: PagedPool, _max_positions: int) -> AnyTrunk:
        """What computes the steps; tried before it is returned."""
        return TransformersTrunk(self.spec, self._module)


Source = TrunkSource | TransformersSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One rank's model."""

    trunk: AnyTrunk
    pool: PagedPool

    max_model_len: int
    """Tokens of prompt plus output."""


def device_of(share: Share) -> torch.device:
    """Where a rank computes: each on a GPU of its own, or all on the CPU. LoadError without one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if share.ranks == 1:
        return torch.device("cuda")
    count = torch.cuda.device_count()
    if count < share.ranks:
        raise LoadError(
            "BadArgument",
            f"--tensor-parallel-size {share.ranks}: this process sees {count} GPUs, and each rank "
            "needs one: ask for as many GPUs, or write a smaller size",
        )
    device = torch.device("cuda", share.rank)
    torch.cuda.set_device(device)
    return device


def _compute(trunk: AnyTrunk, pool: PagedPool, plan: StepPlan) -> object:
    """What rank 1 and up do for a step; rank 0 samples, too."""
    return trunk.logits(flatten(plan), pool)


def load_model(
    config: EngineConfig,
    source: Source,
    dtype: torch.dtype,
    device: torch.device,
    native: Native | None,
    group: RankGroup | None = None,
    *,
    gauge: Gauge | None = None,
    run: RunStep = _compute,
) -> Loaded:
    """Weights and KV pool of this rank; LoadError says what to do. All ranks come to one length.

    `gauge` measures the largest step, which `run` computes; a GPU has its own gauge, a CPU none.
    All ranks measure, or none does.
    """
    ranks = config.tensor_parallel_size
    make = choose_pool(config, source.spec, dtype, device)
    need = source.weight_bytes(dtype, device, native)
    _refuse_what_cannot_fit(need, free_bytes(device, ranks), dtype)
    gauge = gauge or (CudaGauge(device) if device.type == "cuda" else None)
    try:
        source.load(dtype, device, native, group, dummy=config.load_format == "dummy")
        if group is not None:
            group.least(0)  # what is free is known when all have their weights
        taken = 0
        if gauge is not None:
            scratch = make(scratch_shape(config, source.spec), dtype, device)
            taken = _step_bytes(config, source, scratch, gauge, run)
        free = free_bytes(device, ranks)
        if group is not None:
            free, taken = group.least(free), -group.least(-taken)
        shape = pool_shape(config, source.spec, dtype, device, free, taken)
        pool = make(shape, dtype, device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise LoadError("OutOfMemory", f"{error}: raise the memory limit") from error
    length = _length(config, source.spec, (pool.shape.blocks - 1) * config.block_size)
    return Loaded(trunk=source.trunk(pool, length + 1), pool=pool, max_model_len=length)


def _step_bytes(
    config: EngineConfig, source: Source, scratch: PagedPool, gauge: Gauge, run: RunStep
) -> int:
    """What the largest step takes beside weights and KV; its KV goes to the null block."""
    longest = min(config.max_model_len or source.spec.max_positions, source.spec.max_positions)
    trunk, plan = source.trunk(scratch, longest + 1), largest_step(config, longest)
    return gauge.peak_bytes(lambda: run(trunk, scratch, plan))


def _length(config: EngineConfig, spec: DecoderSpec, usable: int) -> int:
    length = min(config.max_model_len or spec.max_positions, spec.max_positions, usable)
    if config.max_model_len and config.max_model_len > length:
        raise LoadError(
            "BadArgument",
            f"--max-model-len {config.max_model_len} is too long: the model knows "
            f"{spec.max_positions} positions and the KV pool holds {usable} tokens",
        )
    return length


def _refuse_what_cannot_fit(need: int, free: int, dtype: torch.dtype) -> None:
    if need > free:
        raise LoadError(
            "OutOfMemory",
            f"the weights need {need >> 20} MiB as {dtype}, {free >> 20} MiB are free: raise the "
            "memory limit, or set --dtype bfloat16",
        )
