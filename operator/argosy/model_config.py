"""What `config.json` of a Hugging Face folder says of a model that our engine computes.

The engine reads it when it starts; the Job that fetches models does before it fetches the weights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

_Config = Mapping[str, Any]

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""All share one trunk: pre-norm, grouped-query attention with rope, gated SiLU."""

_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOST_LAYERS = 10_000
"""Far more than any model has. One list entry for each layer of 10¹² would end the process."""


class ModelConfigError(Exception):
    """Our engine does not run the model. `reason` becomes that of a condition."""

    def __init__(
        self, reason: Literal["UnsupportedArchitecture", "WeightsInvalid"], message: str
    ) -> None:
        super().__init__(message)
        self.reason: Literal["UnsupportedArchitecture", "WeightsInvalid"] = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding: base, and how long wave lengths are stretched."""

    theta: float
    kind: Literal["linear", "llama3", "yarn"] = "linear"
    factor: float = 1.0
    """Positions are divided by it: all of them ("linear"), or those of long wave lengths."""
    original_positions: int = 0
    """llama3, yarn: context length before the scaling, in tokens."""
    slow_turns: float = 1.0
    """llama3, yarn: pairs that turn as often or less in `original_positions` are stretched …"""
    fast_turns: float = 4.0
    """… those that turn as often or more are not, and those between in part."""
    whole_pairs: bool = True
    """yarn: round the numbers of the first and the last pair between outwards."""
    length: float = 1.0
    """yarn: q and k are multiplied by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """What the runner knows of any decoder: counts, sizes in elements, positions in tokens."""

    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    dtype: str
    """As the checkpoint says: float32 | bfloat16 | float16."""

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return self.layers * 2 * self.kv_size * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(DecoderSpec):
    """A decoder that the trunk computes."""

    hidden: int
    inner: int
    heads: int
    norm_eps: float
    rope: Rope
    windows: tuple[int, ...]
    """[layers] The newest tokens that a token sees, itself included; 0: all."""
    qkv_bias: bool
    """The q, k and v projections have a bias (Qwen2)."""
    qk_norm: bool
    """q and k are normalised per head (Qwen3)."""
    tied: bool
    """The head uses the embedding's weights."""
    fp8: bool = False
    """The matrices of the layers are FP8, but for those that the checkpoint leaves out."""
    fp8_block: tuple[int, int] | None = None
    """Rows and columns that share a scale; None: each row or tensor has its own."""

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def trunk_parameters(self) -> int:
        """Weights of the matrices that every token passes (embedding and head apart)."""
        attention = self.hidden * (2 * self.q_size + 2 * self.kv_size)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def trunk_rows(self) -> int:
        """Rows of these matrices."""
        attention = self.hidden + self.q_size + 2 * self.kv_size
        return self.layers * (attention + self.hidden + 2 * self.inner)

    @property
    def parameters(self) -> int:
        """All matrices, as the engine holds them (a tied head counts once)."""
        tables = 1 if self.tied else 2
        return self.trunk_parameters + tables * self.vocab * self.hidden


def read_model(config: _Config) -> ModelSpec:
    """Return what the trunk computes with; ModelConfigError says what is wrong, and what to do."""
    try:
        return _read(config)
    except KeyError as error:
        raise ModelConfigError(
            "WeightsInvalid", f"config.json lacks {error}: copy the model's own file"
        ) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelConfigError("WeightsInvalid", f"config.json: {error!r}") from error


def dtype_of(config: _Config) -> str:
    """Return the type of the weights: float32, bfloat16 or float16."""
    return str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")


def _read(config: _Config) -> ModelSpec:
    architecture = _architecture(config)
    heads = _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    rope = _rope(config)
    positions = _positions(config, rope)
    _refuse_variants(config)
    fp8, block = _fp8(config)
    return ModelSpec(
        architecture=architecture,
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        inner=_count(config, "intermediate_size"),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=_head_dim(config, hidden // heads),
        vocab=_count(config, "vocab_size"),
        max_positions=positions,
        norm_eps=_above_0("rms_norm_eps", config["rms_norm_eps"]),
        rope=rope,
        windows=_windows(config, architecture, positions),
        qkv_bias=architecture == "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=dtype_of(config),
        fp8=fp8,
        fp8_block=block,
    )


def _fp8(config: _Config) -> tuple[bool, tuple[int, int] | None]:
    """Whether weights are FP8, and the blocks of their scales.

    The names are those of Hugging Face's FineGrainedFP8Config and of compressed-tensors. How
    activations would be rounded is not read: the engine rounds each token by itself, or none.
    """
    names = config.get("quantization_config")
    if not names:
        return False, None
    method = names.get("quant_method") or "no method"
    if method == "fp8" and names.get("fmt", "e4m3") == "e4m3":
        return True, _block(names.get("weight_block_size"))
    groups = names["config_groups"].values() if method == "compressed-tensors" else ()
    weights = [group["weights"] for group in groups]
    blocks = {_block(one.get("block_structure")) for one in weights if _is_fp8(one)}
    if len(blocks) != 1 or not all(_is_fp8(one) for one in weights):
        _refuse([f"quantization_config of {method!s:.40} (only FP8 weights are read)"])
    return True, blocks.pop()


def _is_fp8(weights: _Config) -> bool:
    kind = (weights.get("type"), weights.get("num_bits"), weights.get("symmetric", True))
    known = weights.get("strategy") in ("tensor", "channel", "block")
    return kind == ("float", 8, True) and known


def _block(sizes: Any) -> tuple[int, int] | None:
    if sizes is None:
        return None
    rows, columns = (_count({"block": size}, "block") for size in sizes)
    return rows, columns


def _count(config: _Config, name: str, default: int | None = None) -> int:
    """A whole number from 1 on; the default where the file lacks it or has null."""
    value = config[name] if default is None else config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on, and is {value!r:.40}")
    return value


def _head_dim(config: _Config, default: int) -> int:
    size = _count(config, "head_dim", default)
    if size % 2:  # rope turns pairs
        raise ValueError(f"head_dim must be even, and is {size}")
    return size


def _above_0(name: str, value: Any) -> float:
    """What makes no number of every logit."""
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, and is {number:g}")
    return number


def _architecture(config: _Config) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    raise ModelConfigError(
        "UnsupportedArchitecture",
        f"the model says architectures={names}; the engine runs {', '.join(ARCHITECTURES)}: set "
        "engine.type: vllm, or choose one of these",
    )


def _positions(config: _Config, rope: Rope) -> int:
    """Qwen's model cards switch yarn on without changing the length that config.json names."""
    named = _count(config, "max_position_embeddings")
    return max(named, int(rope.original_positions * rope.factor)) if rope.kind == "yarn" else named


def _windows(config: _Config, architecture: str, positions: int) -> tuple[int, ...]:
    """As the classes of Hugging Face read it, with their defaults for what the file lacks."""
    layers, kinds = _count(config, "num_hidden_layers"), config.get("layer_types")
    if layers > _MOST_LAYERS:
        raise ValueError(f"num_hidden_layers must be at most {_MOST_LAYERS}, and is {layers!r:.40}")
    if architecture.startswith("Qwen"):
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else 0
        first = int(config.get("max_window_layers", 28))
        kinds = kinds or [_SLIDING if window and at >= first else _FULL for at in range(layers)]
    else:
        window = config.get("sliding_window", 4096 if architecture.startswith("Mistral") else 0)
        if window and (kinds or architecture.startswith("Llama")):
            _refuse([f"sliding_window={window}" + " with layer_types" * bool(kinds)])
        kinds = [_SLIDING if window else _FULL] * layers
    if len(kinds) != layers or set(kinds) - {_SLIDING, _FULL} or (_SLIDING in kinds and not window):
        _refuse([f"layer_types={kinds} with sliding_window={window} and {layers} layers"])
    reach = int(window or 0)
    if reach < 0:
        raise ValueError(f"sliding_window must be at least 1, and is {reach}")
    return tuple(reach if kind == _SLIDING and reach < positions else 0 for kind in kinds)


def _refuse_variants(config: _Config) -> None:
    """Refuse by name what would silently change the result."""
    wrong: list[str] = []
    partial = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    partial = partial or config.get("partial_rotary_factor") or 1.0
    if float(partial) != 1.0:
        wrong.append(f"partial_rotary_factor={partial}")
    if config.get("hidden_act", "silu") != "silu":
        wrong.append(f"hidden_act={config['hidden_act']}")
    if config.get("mlp_bias"):
        wrong.append("mlp_bias=true")
    if config.get("attention_bias"):
        wrong.append("attention_bias=true")
    if wrong:
        _refuse(wrong)


def _refuse(wrong: list[str]) -> NoReturn:
    raise ModelConfigError(
        "UnsupportedArchitecture",
        f"config.json asks for {', '.join(wrong)}, which the engine does not compute: choose a "
        "checkpoint without it, or set engine.type: vllm",
    )


def _rope(config: _Config) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = _above_0("rope_theta", scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, factor=_above_0("factor of the rope", scaling["factor"]))
    if kind == "llama3":
        return Rope(
            theta=theta,
            kind="llama3",
            factor=_above_0("factor of the rope", scaling["factor"]),
            slow_turns=float(scaling["low_freq_factor"]),
            fast_turns=float(scaling["high_freq_factor"]),
            original_positions=_count(scaling, "original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _yarn(config, scaling, theta)
    raise ModelConfigError(
        "UnsupportedArchitecture",
        f"rope type {kind!r}: the engine computes default, linear, llama3 and yarn; choose a "
        "checkpoint with one of these, or set engine.type: vllm",
    )


def _yarn(config: _Config, scaling: _Config, theta: float) -> Rope:
    factor = scaling.get("factor")
    named = _count(config, "max_position_embeddings")
    original = _count(scaling, "original_max_position_embeddings", named)
    stretch = named / original if factor is None else _above_0("factor of the rope", factor)

    def lengthen(weight: float) -> float:
        return 0.1 * weight * math.log(stretch) + 1.0 if stretch > 1 else 1.0

    length, weights = scaling.get("attention_factor"), ("mscale", "mscale_all_dim")
    if length is None and all(scaling.get(name) for name in weights):
        over, under = (lengthen(float(scaling[name])) for name in weights)
        length = over / under
    return Rope(
        theta=theta,
        kind="yarn",
        factor=stretch,
        original_positions=original,
        slow_turns=float(scaling.get("beta_slow") or 1),
        fast_turns=float(scaling.get("beta_fast") or 32),
        whole_pairs=bool(scaling.get("truncate", True)),
        length=lengthen(1.0) if length is None else float(length),
    )
