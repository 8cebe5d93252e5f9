"""Where a model's weights and steps come from: our own trunk, native or in torch, or transformers.

`load_model` has the shapes first, so that a model that cannot fit is refused before its weights
are read, and makes the trunk when it knows how much context the KV pool holds. It is the same in
every rank of tensor parallelism; `runner.load` calls it in rank 0.

`open_library` says which library computes the steps, if any, as `--compute` asks, and with how many
threads.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from argosy.model_config import DecoderSpec
from argosy_engine.config import EngineConfig
from argosy_engine.core.step import StepPlan, flatten
from argosy_engine.errors import LoadError
from argosy_engine.model import huggingface
from argosy_engine.model.attention.between import Fused, Plain
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.fp8 import holding, why_not, widening
from argosy_engine.model.huggingface import TransformersTrunk
from argosy_engine.model.loader import dummy_weights, load_weights
from argosy_engine.model.native.choose import choose
from argosy_engine.model.native.compile import library_path
from argosy_engine.model.native.library import Library
from argosy_engine.model.native_trunk import NativeLinear, NativeTrunk
from argosy_engine.model.share import WHOLE, Share
from argosy_engine.model.spec import read_spec
from argosy_engine.model.trunk import Linear, Pack, Trunk, Weights
from argosy_engine.runtime.machine import allowed_threads, shares_cores
from argosy_engine.runtime.torch.pool import (
    CudaGauge,
    Gauge,
    choose_pool,
    free_bytes,
    kv_type,
    largest_step,
    pool_shape,
    scratch_shape,
)
from argosy_engine.runtime.torch.ranks.group import RankGroup

log = logging.getLogger(__name__)

_SPINS_ALONE = 20_000
_SPINS_SHARED = 2000
"""As for OpenMP (`runtime.machine`): a thread that waits spins about 0.3 ms, or 30 µs where another
process may want its core."""

_NONE_WORKS = "this installation has no native library that works on this CPU; install the package"
_NO_LIBRARY = {
    "native": f"--compute native: {_NONE_WORKS} where a C compiler is, or say --compute torch",
    "int8": f"--quantization int8: {_NONE_WORKS} where a C compiler is, or leave it out",
}


_BLOCKS = "products in FP8 have scales for rows, not for blocks"


@dataclass(frozen=True, slots=True)
class Native:
    """A loaded library."""

    name: str
    """Its instruction set, as in `native.compile.FLAGS`."""

    library: Library

    int8: bool = False
    """Matrices are 8-bit integers."""

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether a step in bfloat16 is faster than in float32, or as fast, at every row count."""
        return self.name in ("amx", "avx512_bf16")


def open_library(
    config: EngineConfig, device: torch.device, architecture: str = "", *, known: bool = True
) -> Native | None:
    """None: torch computes. LoadError where `--compute native` or int8 cannot be had.

    `known`: the native step knows the architecture; transformers runs the others in torch.
    """
    int8 = config.quantization == "int8"
    asked = config.compute == "native"
    option = "--compute native" if asked else "--quantization int8"
    if (asked or int8) and not known:
        raise LoadError(
            "BadArgument", f"{option}: {architecture} is run by transformers; leave the option out"
        )
    if not known:
        log.info("%s is run by transformers, in torch", architecture)
        return None
    if (asked or int8) and device.type != "cpu":
        raise LoadError("BadArgument", f"{option}: a GPU computes here; leave it out")
    if config.beyond_native and (asked or int8):
        raise LoadError(
            "BadArgument",
            f"{option}: the native step does not do {config.beyond_native}; leave one of them out",
        )
    if config.compute == "torch" and int8:
        raise LoadError(
            "BadArgument",
            "--quantization int8: torch has no products of 8-bit integers here; say --compute "
            "native, or leave it out",
        )
    if config.compute == "torch" or config.tensor_parallel_size > 1 or device.type != "cpu":
        return None
    if config.beyond_native:
        log.info("torch computes the steps: the native step does not do %s", config.beyond_native)
        return None
    name = choose()
    if name is None and not asked and not int8:
        log.info("no native library works here: torch computes the steps")
        return None
    if name is None:
        raise LoadError("BadArgument", _NO_LIBRARY["native" if asked else "int8"])
    spins = _SPINS_SHARED if shares_cores() else _SPINS_ALONE
    threads = config.threads or allowed_threads()
    library = Library(library_path(name), threads=threads, spins=spins)
    how = "in tiles" if name == "amx" else "in pairs" if library.pairs else "as float32"
    log.info("native library %s; it multiplies bfloat16 weights %s", name, how)
    return Native(name, library, int8)


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
        if self._holds_fp8(dtype, device):
            held = spec.trunk_parameters  # a code each, and a scale of four bytes for a row
            return (elements - held) * dtype.itemsize + held + 4 * spec.trunk_rows
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
        plain: Pack = partial(NativeLinear, native.library, int8=native.int8) if native else Linear
        pack = widening(plain, dtype)
        if self.spec.fp8:
            need = self.weight_bytes(dtype, device, native) >> 20
            if self._holds_fp8(dtype, device):
                pack = holding(dtype)
                log.info("FP8 weights stay FP8: the weights take %d MiB", need)
            else:
                why = _BLOCKS if self.spec.fp8_block else why_not(device, dtype)
                log.info(
                    "FP8 weights are widened to %s: the weights take %d MiB (%s)", dtype, need, why
                )
        of_rank = (dtype, device, pack, self._share, group)
        if dummy:
            self._weights = dummy_weights(self.whole, *of_rank)
        else:
            self._weights = load_weights(self._folder, self.whole, *of_rank)

    def _holds_fp8(self, dtype: torch.dtype, device: torch.device) -> bool:
        rows = self.spec.fp8 and self.spec.fp8_block is None
        return rows and not why_not(device, dtype)

    def trunk(self, pool: PagedPool, max_positions: int) -> AnyTrunk:
        """What computes the steps on `pool`."""
        if self._native is None:
            between = Fused() if isinstance(pool, TritonPool) else Plain()
            return Trunk(self.spec, self._weights, max_positions=max_positions, between=between)
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


def compute(trunk: AnyTrunk, pool: PagedPool, plan: StepPlan) -> object:
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
    run: RunStep = compute,
) -> Loaded:
    """Weights and KV pool of this rank; LoadError says what to do. All ranks come to one length.

    `gauge` measures the largest step, which `run` computes; a GPU has its own gauge, a CPU none.
    All ranks measure, or none does.
    """
    ranks = config.tensor_parallel_size
    of_kv = kv_type(config, dtype)
    make = choose_pool(config, source.spec, dtype, device)
    if group is not None and not group.least(int(make is not PagedPool)):
        make = PagedPool  # kernels that fail on one rank's GPU are used by none
    need = source.weight_bytes(dtype, device, native)
    _refuse_what_cannot_fit(need, free_bytes(device, ranks), dtype)
    gauge = gauge or (CudaGauge(device) if device.type == "cuda" else None)
    try:
        source.load(dtype, device, native, group, dummy=config.load_format == "dummy")
        if group is not None:
            group.least(0)  # what is free is known when all have their weights
        taken: int | None = None
        if gauge is not None:
            scratch = make(scratch_shape(config, source.spec), of_kv, device)
            taken = _step_bytes(config, source, scratch, gauge, run)
        free = free_bytes(device, ranks)
        if group is not None:
            free = group.least(free)
            # All ranks ask the group alike, whether or not they measured.
            most = -group.least(-(taken or 0))
            taken = None if taken is None else most
        shape = pool_shape(config, source.spec, of_kv, device, free, taken)
        pool = make(shape, of_kv, device)
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
