"""Which models are refused, and which files of the others are fetched.

`check_config` finds out which `config.json` the engine takes before the weights come and a GPU is
asked for. The engine reads the same file when a pod starts (`argosy_engine/model/spec.py`), and
neither program imports the other. tests/contract/test_fetch.py compares their answers, so the
checks here are in the engine's order and refuse in its words.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from argosy_fetch.source import MARKER, FetchError, RemoteFile

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
"""Which file has which tensor, where the weights are several files."""
SINGLE = "model.safetensors"
_WANTED = re.compile(
    r"[\w.-]+\.(safetensors|json|jinja)|[\w.-]*tokenizer[\w.-]*\.model|merges\.txt"
)
_PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle)")
_MISTRALS = re.compile(r"consolidated[\w.-]*\.safetensors(\.index\.json)?")
"""The same weights once more, as Mistral's own programs and vLLM's `--load-format mistral` read
them."""
_NAMED = 4
_LARGEST = {CONFIG: 4 << 20, INDEX: 64 << 20}
"""Bytes of what is read as a whole. The index of a model of 671 billion parameters has 9 MB."""


def wanted(files: Iterable[RemoteFile], *, any_weights: bool) -> tuple[RemoteFile, ...]:
    """Return weights, settings and tokenizer at the top of the model's folder. Pickles never are:
    to load one is to run it. FetchError if the model cannot be served from what is left.

    `any_weights`: the fleet has an engine image of its own, which may read other files than ours.
    """
    found = sorted(files, key=lambda file: file.name)
    chosen = [file for file in found if _WANTED.fullmatch(file.name) and file.name != MARKER]
    if not any(file.name.endswith(".safetensors") for file in chosen):
        pickles = [file.name for file in found if _PICKLES.fullmatch(file.name)]
        if pickles:
            raise FetchError("OnlyPickles", f"the only weights are pickles: {_list(pickles)}")
        raise FetchError(
            "WeightsInvalid", f"there are no *.safetensors files, only {_names(found)}"
        )
    if not any_weights:
        chosen = [file for file in chosen if not _MISTRALS.fullmatch(file.name)]
    names = {file.name for file in chosen}
    if not any_weights and not names & {SINGLE, INDEX}:
        raise FetchError(
            "WeightsInvalid", f"there is neither {SINGLE} nor {INDEX}, only {_names(found)}"
        )
    if CONFIG not in names:
        raise FetchError("WeightsInvalid", f"there is no {CONFIG} beside the weights")
    _refuse_twins(chosen)
    for file in chosen:
        if file.size > _LARGEST.get(file.name, file.size):
            raise FetchError(
                "WeightsInvalid",
                f"{file.name} has {file.size} bytes: at most {_LARGEST[file.name]} are read",
            )
    return tuple(chosen)


def _refuse_twins(files: Iterable[RemoteFile]) -> None:
    """Refuse two files of one name: they would be written over each other. Where the claim's file
    system knows no case, `A.json` and `a.json` are such files."""
    seen: dict[str, str] = {}
    for file in files:
        if (other := seen.get(file.name.casefold())) is not None:
            raise FetchError(
                "WeightsInvalid", f"{other} and {file.name} are two files with one name"
            )
        seen[file.name.casefold()] = file.name


def check_index(path: Path, names: Collection[str]) -> None:
    """FetchError for an index of weights in files that are not among `names`, those of the source.

    As the engine does, it leaves folders away, and an index beside weights in one file.
    """
    if SINGLE in names:
        return
    try:
        tensors = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = {Path(shard).name for shard in tensors.values()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FetchError("WeightsInvalid", f"{path.name} cannot be read: {error!r}") from error
    if missing := sorted(shards.difference(names)):
        raise FetchError(
            "WeightsInvalid",
            f"{path.name} names {len(missing)} of {len(shards)} files that are not beside it: "
            f"{_list(missing)}",
        )


def check_weights(path: Path) -> None:
    """FetchError for a safetensors file whose header does not fit its length: part of it is
    missing, whatever the source said of its size."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, 100 << 20):
                raise ValueError(f"its header would be {length} bytes long")
            header = json.loads(file.read(length))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"its tensors end at {8 + length + max(ends, default=0)} of {size}")
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        raise FetchError(
            "WeightsInvalid", f"{path.name} is not a whole safetensors file: {error}"
        ) from error


def _names(files: Sequence[RemoteFile]) -> str:
    return _list([file.name for file in files]) or "nothing"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""What our engine computes by itself."""

_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOST_LAYERS = 10_000
"""Far more than any model has. One list entry for each layer of 10¹² would end the process."""

_Config = Mapping[str, Any]


def check_config(path: Path, *, any_architecture: bool) -> None:
    """Raise FetchError for a `config.json` of a model that our engine does not run.

    `any_architecture`: the fleet has an engine image of its own, which may run others. Ids that end
    a text are not looked at: generation_config.json may replace them, and it comes later.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it must hold a JSON object")
    except (ValueError, RecursionError) as error:
        raise FetchError("WeightsInvalid", f"{CONFIG} cannot be read: {error}") from error
    if any_architecture:
        return
    try:
        _check(config)
    except KeyError as error:
        raise FetchError(
            "WeightsInvalid", f"{CONFIG} lacks {error}: copy the model's own file"
        ) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FetchError("WeightsInvalid", f"{CONFIG}: {error!r}") from error


def _check(config: _Config) -> None:
    architecture = _architecture(config)
    heads = _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    _check_rope(config)
    _count(config, "max_position_embeddings")
    _refuse_variants(config)
    _count(config, "num_hidden_layers")
    _count(config, "intermediate_size")
    _count(config, "num_key_value_heads", heads)
    size = _count(config, "head_dim", hidden // heads)
    if size % 2:  # rope turns pairs
        raise ValueError(f"head_dim must be even, and is {size}")
    _count(config, "vocab_size")
    _above_0("rms_norm_eps", config["rms_norm_eps"])
    _check_windows(config, architecture)


def _architecture(config: _Config) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    raise FetchError(
        "UnsupportedArchitecture",
        f"the model says architectures={names}; the engine runs {', '.join(ARCHITECTURES)}: set "
        "engine.type: vllm, or choose one of these",
    )


def _count(config: _Config, name: str, default: int | None = None) -> int:
    """A whole number from 1 on; the default where the file lacks it or has null."""
    value = config[name] if default is None else config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on, and is {value!r:.40}")
    return value


def _above_0(name: str, value: Any) -> None:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, and is {number:g}")


def _check_rope(config: _Config) -> None:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    _above_0("rope_theta", scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    match kind:
        case "default":
            pass
        case "linear":
            _above_0("factor of the rope", scaling["factor"])
        case "llama3":
            _above_0("factor of the rope", scaling["factor"])
            float(scaling["low_freq_factor"])
            float(scaling["high_freq_factor"])
            _count(scaling, "original_max_position_embeddings")
        case "yarn":
            _check_yarn(config, scaling)
        case _:
            raise FetchError(
                "UnsupportedArchitecture",
                f"rope type {kind!r}: the engine computes default, linear, llama3 and yarn; "
                "choose a checkpoint with one of these, or set engine.type: vllm",
            )


def _check_yarn(config: _Config, scaling: _Config) -> None:
    named = _count(config, "max_position_embeddings")
    _count(scaling, "original_max_position_embeddings", named)
    if scaling.get("factor") is not None:
        _above_0("factor of the rope", scaling["factor"])
    length, weights = scaling.get("attention_factor"), ("mscale", "mscale_all_dim")
    if length is None and all(scaling.get(name) for name in weights):
        for name in weights:
            float(scaling[name])
    float(scaling.get("beta_slow") or 1)
    float(scaling.get("beta_fast") or 32)
    float(1 if length is None else length)


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
    if config.get("quantization_config"):
        wrong.append("quantization_config (only float32, bfloat16, float16 weights)")
    if wrong:
        _refuse(wrong)


def _check_windows(config: _Config, architecture: str) -> None:
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


def _refuse(wrong: list[str]) -> NoReturn:
    raise FetchError(
        "UnsupportedArchitecture",
        f"config.json asks for {', '.join(wrong)}, which the engine does not compute: choose a "
        "checkpoint without it, or set engine.type: vllm",
    )
