"""Reads safetensors into the trunk's fused weights; also makes random weights of the same shapes.

Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Nothing else
is opened: no pickle, no code from the folder. Tensors are read one by one, and of each the rows or
columns of one rank alone. Whether a matrix is FP8 its tensor says, not config.json: so the layers
that a checkpoint leaves in another type need no list.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from argosy.model_config import ModelSpec
from argosy_engine.errors import LoadError
from argosy_engine.model.fp8 import (
    E4M3,
    Matrix,
    PackMatrix,
    Scaled,
    round_rows,
    stack,
    widen,
    widen_blocks,
    widening,
)
from argosy_engine.model.share import ALL, WHOLE, Group, Joined, Share, Summed
from argosy_engine.model.trunk import Layer, Linear, Product, Weights, pair_order

_SCALES = ("weight_scale", "weight_scale_inv")
"""Names beside `weight`, of compressed-tensors and of DeepSeek: both are what codes are multiplied
with."""


class Get(Protocol):
    """Part of a named tensor of the given whole shape, on the right device, of the right type."""

    def __call__(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL, /
    ) -> Matrix: ...


@dataclass(frozen=True, slots=True)
class _Parts:
    """How the matrices of one rank are made."""

    matrix: Get
    dtype: torch.dtype
    pack: PackMatrix
    share: Share
    group: Group | None

    def get(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> torch.Tensor:
        """What is no product's matrix, or is to be padded: not in FP8."""
        return widen(self.matrix(name, shape, rows, columns), self.dtype)

    def summed(self, weight: Matrix) -> Product:
        """A matrix of which this rank has some columns."""
        part = self.pack(weight, None)
        return part if self.group is None else Summed(part, self.group)

    def head(self, weight: torch.Tensor, vocab: int) -> Product:
        """A head of which this rank has some rows; padded, because all ranks' are gathered."""
        if self.group is None:
            return self.pack(weight, None)
        missing = self.share.head_rows(vocab) - len(weight)
        padded = torch.cat([weight, weight.new_zeros(missing, weight.shape[1])])
        return Joined(self.pack(padded if missing else weight, None), self.group, vocab)


def load_weights(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    pack: PackMatrix | None = None,
    share: Share = WHOLE,
    group: Group | None = None,
) -> Weights:
    """A rank's share of the model `spec`; LoadError(ModelNotFound | WeightsInvalid) names the file
    or the tensor. `pack` None: `Linear`. `group`: the ranks, if there are several."""
    with ExitStack() as stack:
        files = _open_files(folder, stack)

        def get(
            name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
        ) -> Matrix:
            if name not in files:
                raise LoadError(
                    "WeightsInvalid",
                    f"{folder} has no tensor {name}: the download is incomplete, fetch it again",
                )
            stored = files[name].get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise LoadError(
                    "WeightsInvalid",
                    f"{name} has shape {tuple(stored.get_shape())}, config.json implies {shape}: "
                    "config.json and weights are of different models",
                )
            tensor: torch.Tensor = stored[(rows, columns)[: len(shape)]]
            if tensor.dtype is E4M3:
                codes = tensor.to(device=device, copy=True)
                scales = _scales(name, files).to(device)
                return _scale(name, codes, scales, spec, (shape, rows, columns), dtype)
            # A copy: a view of one tensor would keep the whole file in memory.
            return tensor.to(device=device, dtype=dtype, copy=True)

        try:
            # A tied checkpoint may still hold the head; an untied one must.
            return _fuse(spec, _Parts(get, dtype, pack or widening(Linear, dtype), share, group))
        except SafetensorError as error:
            raise LoadError("WeightsInvalid", f"{folder}: {error}") from error


def dummy_weights(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    pack: PackMatrix | None = None,
    share: Share = WHOLE,
    group: Group | None = None,
) -> Weights:
    """Random values, the same at every start, scaled so that activations stay finite. The ranks
    have parts of the matrices that one rank would have."""
    generator = torch.Generator(device=device).manual_seed(0)

    def get(name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL) -> Matrix:
        if len(shape) == 1:
            fill = torch.zeros if name.endswith("bias") else torch.ones
            return fill(shape, dtype=dtype, device=device)[rows]
        tensor = torch.empty(shape, dtype=dtype, device=device)
        tensor.normal_(0.0, shape[1] ** -0.5, generator=generator)
        tensor = tensor if (rows, columns) == (ALL, ALL) else tensor[rows, columns].contiguous()
        return round_rows(tensor) if spec.fp8 and name.endswith("proj.weight") else tensor

    return _fuse(spec, _Parts(get, dtype, pack or widening(Linear, dtype), share, group))


def _scales(name: str, files: dict[str, Any]) -> torch.Tensor:
    """Of the FP8 matrix `name`."""
    names = [name.removesuffix("weight") + kind for kind in _SCALES]
    for one in names:
        if one in files:
            found: torch.Tensor = files[one].get_tensor(one)
            return found
    raise LoadError(
        "WeightsInvalid",
        f"{name} is FP8 and has neither {' nor '.join(names)}: the download is incomplete, or the "
        "checkpoint is of another format; choose another checkpoint, or set engine.type: vllm",
    )


def _scale(
    name: str,
    codes: torch.Tensor,
    scales: torch.Tensor,
    spec: ModelSpec,
    part: tuple[tuple[int, ...], slice, slice],
    dtype: torch.dtype,
) -> Matrix:
    """`codes` with their scales; they are `part` of a matrix: its shape, rows and columns."""
    shape, rows, columns = part
    of_row = scales.numel() == 1 or tuple(scales.shape) in ((shape[0],), (shape[0], 1))
    if len(shape) == 2 and of_row:
        column = scales.float().reshape(-1, 1).expand(shape[0], 1)[rows]
        return Scaled(codes, column.contiguous())
    blocks = spec.fp8_block and tuple(
        -(-size // step) for size, step in zip(shape, spec.fp8_block, strict=True)
    )
    if spec.fp8_block is None or tuple(scales.shape) != blocks:
        raise LoadError(
            "WeightsInvalid",
            f"{name} has scales of shape {tuple(scales.shape)}, which are neither one, nor one for "
            "each row, nor for the blocks that config.json names: choose another checkpoint, or "
            "set engine.type: vllm",
        )
    begin = rows.start or 0, columns.start or 0
    return widen_blocks(codes, scales, spec.fp8_block, begin).to(dtype)


def _open_files(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name → open file that holds it."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        paths = [single]
    elif index.is_file():
        try:
            files_of = json.loads(index.read_text())["weight_map"]
            paths = [folder / Path(name).name for name in sorted(set(files_of.values()))]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise LoadError("WeightsInvalid", f"{index}: {error!r}") from error
    else:
        hint = "fetch the model again"
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            hint = "it holds pickled weights, which are never loaded: convert them to safetensors"
        raise LoadError("ModelNotFound", f"{folder} has no model.safetensors: {hint}")
    files: dict[str, Any] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise LoadError(
                "WeightsInvalid", f"{path} is not a whole safetensors file: {error}"
            ) from error
        files |= dict.fromkeys(file.keys(), file)
    return files


def _fuse(spec: ModelSpec, parts: _Parts) -> Weights:
    get, tokens = parts.get, parts.share.of_head(spec.vocab)
    shape = (spec.vocab, spec.hidden)
    embedding = get("model.embed_tokens.weight", shape)
    head = embedding[tokens] if spec.tied else get("lm_head.weight", shape, tokens)
    return Weights(
        embedding=embedding,
        layers=[_layer(spec, f"model.layers.{index}", parts) for index in range(spec.layers)],
        norm=get("model.norm.weight", (spec.hidden,)),
        head=parts.head(head, spec.vocab),
    )


def _layer(spec: ModelSpec, at: str, parts: _Parts) -> Layer:
    get, matrix, share = parts.get, parts.matrix, parts.share
    order = pair_order(spec.head_dim)
    qk_norm = _qk_norms(spec, at, parts, order) if spec.qk_norm else (None, None)
    inner, mine = (spec.inner, spec.hidden), share.of(spec.inner)
    gate_up = [matrix(f"{at}.mlp.{name}_proj.weight", inner, mine) for name in ("gate", "up")]
    out = matrix(
        f"{at}.self_attn.o_proj.weight", (spec.hidden, spec.q_size), ALL, share.of(spec.q_size)
    )
    down = matrix(f"{at}.mlp.down_proj.weight", (spec.hidden, spec.inner), ALL, mine)
    return Layer(
        attention_norm=get(f"{at}.input_layernorm.weight", (spec.hidden,)),
        qkv=_qkv(spec, f"{at}.self_attn", parts, order),
        q_norm=qk_norm[0],
        k_norm=qk_norm[1],
        out=parts.summed(out),
        mlp_norm=get(f"{at}.post_attention_layernorm.weight", (spec.hidden,)),
        gate_up=parts.pack(stack(gate_up), None),
        down=parts.summed(down),
    )


def _qkv(spec: ModelSpec, at: str, parts: _Parts, order: torch.Tensor) -> Product:
    """q, k and v stacked; rows of each q and k head put side by side as rotated pairs."""

    def pairs(rows: torch.Tensor) -> torch.Tensor:
        by_head = rows.view(-1, spec.head_dim, *rows.shape[1:])
        return by_head[:, order.to(rows.device)].flatten(0, 1)

    def put(matrix: Matrix) -> Matrix:
        return matrix.move_rows(pairs) if isinstance(matrix, Scaled) else pairs(matrix)

    def fuse(kind: str, tail: tuple[int, ...]) -> Matrix:
        matrix, kv = parts.matrix, parts.share.of_kv(spec)
        q = matrix(f"{at}.q_proj.{kind}", (spec.q_size, *tail), parts.share.of(spec.q_size))
        k = matrix(f"{at}.k_proj.{kind}", (spec.kv_size, *tail), kv)
        v = matrix(f"{at}.v_proj.{kind}", (spec.kv_size, *tail), kv)
        return stack([put(q), put(k), v])

    bias = widen(fuse("bias", ()), parts.dtype) if spec.qkv_bias else None
    return parts.pack(fuse("weight", (spec.hidden,)), bias)


def _qk_norms(
    spec: ModelSpec, at: str, parts: _Parts, order: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q = parts.get(f"{at}.self_attn.q_norm.weight", (spec.head_dim,))
    k = parts.get(f"{at}.self_attn.k_norm.weight", (spec.head_dim,))
    return q[order.to(q.device)], k[order.to(k.device)]
