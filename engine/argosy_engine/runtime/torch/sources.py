"""Where a model's weights and steps come from: our own trunk, native or in torch, or transformers.

`runner.load` reads the shapes first, so that a model that cannot fit is refused before its weights
are read, and makes the trunk when it knows how much context the KV pool holds.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from argosy_engine.attention.paged import PagedPool
from argosy_engine.model import huggingface
from argosy_engine.model.huggingface import TransformersTrunk
from argosy_engine.model.linear import Linear, Pack
from argosy_engine.model.loader import dummy_weights, load_weights
from argosy_engine.model.native import NativeLinear, NativeTrunk
from argosy_engine.model.spec import DecoderSpec, read_spec
from argosy_engine.model.trunk import Trunk, Weights
from argosy_engine.runtime.torch.compute import Native

__all__ = ["AnyTrunk", "TransformersSource", "TrunkSource"]

AnyTrunk = Trunk | NativeTrunk | TransformersTrunk


class TrunkSource:
    """An architecture that `model.trunk` knows."""

    def __init__(self, folder: Path) -> None:
        """LoadError as of `read_spec`."""
        self.spec = read_spec(folder)
        self._folder = folder
        self._native: Native | None = None
        self._weights: Weights

    def weight_bytes(self, dtype: torch.dtype, device: torch.device, native: Native | None) -> int:
        """What the weights take. A packed head is a second copy of a tied embedding."""
        embedding = self.spec.vocab * self.spec.hidden
        packed = self.spec.tied and device.type == "cpu"
        elements = self.spec.parameters + (embedding if packed else 0)
        if native is None or not native.int8:
            return elements * dtype.itemsize
        # A code each, and a scale of four bytes for 64 of them.
        return embedding * dtype.itemsize + (elements - embedding) * 17 // 16

    def load(
        self, dtype: torch.dtype, device: torch.device, native: Native | None, *, dummy: bool
    ) -> None:
        """Read the weights; LoadError as of `load_weights`."""
        self._native = native
        pack: Pack = partial(NativeLinear, native.library, int8=native.int8) if native else Linear
        if dummy:
            self._weights = dummy_weights(self.spec, dtype, device, pack)
        else:
            self._weights = load_weights(self._folder, self.spec, dtype, device, pack)

    def trunk(self, pool: PagedPool, max_positions: int) -> AnyTrunk:
        """What computes the steps on `pool`."""
        if self._native is None:
            return Trunk(self.spec, self._weights, max_positions=max_positions)
        library = self._native.library
        return NativeTrunk(library, self.spec, self._weights, pool, max_positions=max_positions)


class TransformersSource:
    """Any other causal model."""

    def __init__(self, folder: Path) -> None:
        """LoadError as of `huggingface.read`."""
        self._foreign = huggingface.read(folder)
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
        self, dtype: torch.dtype, device: torch.device, _native: Native | None, *, dummy: bool
    ) -> None:
        """Read the weights; LoadError as of `huggingface.load`."""
        self._module = huggingface.load(self._folder, self._foreign, dtype, device, dummy=dummy)

    def trunk(self, _pool: PagedPool, _max_positions: int) -> AnyTrunk:
        """What computes the steps; tried before it is returned."""
        return TransformersTrunk(self.spec, self._module)
