"""Reads safetensors into the trunk's fused weights; also makes random weights of the same shapes.

Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Nothing else
is opened: no pickle, no code from the folder.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from argosy_engine.errors import LoadError
from argosy_engine.model.linear import Linear, Pack, Product
from argosy_engine.model.rope import pair_order
from argosy_engine.model.spec import ModelSpec
from argosy_engine.model.trunk import Layer, Weights

__all__ = ["dummy_weights", "load_weights"]

Get = Callable[[str, tuple[int, ...]], torch.Tensor]
"""A named tensor of the given shape, on the right device and of the right type."""


def load_weights(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    pack: Pack = Linear,
) -> Weights:
    """LoadError(ModelNotFound | WeightsInvalid) names the file or the tensor."""
    with ExitStack() as stack:
        files = _open_files(folder, stack)

        def get(name: str, shape: tuple[int, ...]) -> torch.Tensor:
            if name not in files:
                raise LoadError(
                    "WeightsInvalid",
                    f"{folder} has no tensor {name}: the download is incomplete, fetch it again",
                )
            tensor: torch.Tensor = files[name].get_tensor(name)
            if tuple(tensor.shape) != shape:
                raise LoadError(
                    "WeightsInvalid",
                    f"{name} has shape {tuple(tensor.shape)}, config.json implies {shape}: "
                    "config.json and weights are of different models",
                )
            # A copy: a view of one tensor would keep the whole file in memory.
            return tensor.to(device=device, dtype=dtype, copy=True)

        try:
            # A tied checkpoint may still hold the head; an untied one must.
            return _fuse(spec, get, pack)
        except SafetensorError as error:
            raise LoadError("WeightsInvalid", f"{folder}: {error}") from error


def dummy_weights(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, pack: Pack = Linear
) -> Weights:
    """Random values, the same at every start, scaled so that activations stay finite."""
    generator = torch.Generator(device=device).manual_seed(0)

    def get(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            fill = torch.zeros if name.endswith("bias") else torch.ones
            return fill(shape, dtype=dtype, device=device)
        tensor = torch.empty(shape, dtype=dtype, device=device)
        return tensor.normal_(0.0, shape[1] ** -0.5, generator=generator)

    return _fuse(spec, get, pack)


def _open_files(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name → open file that holds it."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        paths = [single]
    elif index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise LoadError("WeightsInvalid", f"{index}: {error!r}") from error
        paths = [folder / Path(name).name for name in names]
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


def _fuse(spec: ModelSpec, get: Get, pack: Pack) -> Weights:
    embedding = get("model.embed_tokens.weight", (spec.vocab, spec.hidden))
    head = embedding if spec.tied else get("lm_head.weight", (spec.vocab, spec.hidden))
    return Weights(
        embedding=embedding,
        layers=[_layer(spec, f"model.layers.{index}", get, pack) for index in range(spec.layers)],
        norm=get("model.norm.weight", (spec.hidden,)),
        head=pack(head),
    )


def _layer(spec: ModelSpec, at: str, get: Get, pack: Pack) -> Layer:
    order = pair_order(spec.head_dim)
    qk_norm = _qk_norms(spec, at, get, order) if spec.qk_norm else (None, None)
    inner = (spec.inner, spec.hidden)
    gate_up = [get(f"{at}.mlp.{name}_proj.weight", inner) for name in ("gate", "up")]
    return Layer(
        attention_norm=get(f"{at}.input_layernorm.weight", (spec.hidden,)),
        qkv=_qkv(spec, f"{at}.self_attn", get, order, pack),
        q_norm=qk_norm[0],
        k_norm=qk_norm[1],
        out=pack(get(f"{at}.self_attn.o_proj.weight", (spec.hidden, spec.q_size))),
        mlp_norm=get(f"{at}.post_attention_layernorm.weight", (spec.hidden,)),
        gate_up=pack(torch.cat(gate_up)),
        down=pack(get(f"{at}.mlp.down_proj.weight", (spec.hidden, spec.inner))),
    )


def _qkv(spec: ModelSpec, at: str, get: Get, order: torch.Tensor, pack: Pack) -> Product:
    """q, k and v stacked; rows of each q and k head put side by side as rotated pairs."""

    def pairs(rows: torch.Tensor) -> torch.Tensor:
        by_head = rows.view(-1, spec.head_dim, *rows.shape[1:])
        return by_head[:, order.to(rows.device)].flatten(0, 1)

    def stack(kind: str, tail: tuple[int, ...]) -> torch.Tensor:
        q = get(f"{at}.q_proj.{kind}", (spec.q_size, *tail))
        k = get(f"{at}.k_proj.{kind}", (spec.kv_size, *tail))
        v = get(f"{at}.v_proj.{kind}", (spec.kv_size, *tail))
        return torch.cat([pairs(q), pairs(k), v])

    bias = stack("bias", ()) if spec.qkv_bias else None
    return pack(stack("weight", (spec.hidden,)), bias)


def _qk_norms(
    spec: ModelSpec, at: str, get: Get, order: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q = get(f"{at}.self_attn.q_norm.weight", (spec.head_dim,))
    k = get(f"{at}.self_attn.k_norm.weight", (spec.head_dim,))
    return q[order.to(q.device)], k[order.to(k.device)]
