"""Which models are refused before their weights are fetched, and so before a GPU is asked for."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy_fetch.errors import FetchError
from argosy_fetch.source import RemoteFile

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""What our engine computes by itself. tests/contract compares it with the engine's own list."""

CONFIG = "config.json"
_WANTED = re.compile(
    r"[\w.-]+\.(safetensors|json|jinja)|[\w.-]*tokenizer[\w.-]*\.model|merges\.txt"
)
_PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle)")
_NAMED = 4


def wanted(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Weights, settings and tokenizer at the top of the model's folder. Pickles never are: to load
    one is to run it. FetchError if the model cannot be served from what is left."""
    files = tuple(files)
    chosen = tuple(sorted((f for f in files if _WANTED.fullmatch(f.name)), key=lambda f: f.name))
    names = [file.name for file in chosen]
    if not any(name.endswith(".safetensors") for name in names):
        pickles = sorted(file.name for file in files if _PICKLES.fullmatch(file.name))
        if pickles:
            raise FetchError("OnlyPickles", f"the only weights are pickles: {_list(pickles)}")
        found = sorted(file.name for file in files)
        raise FetchError(
            "WeightsInvalid", f"there are no *.safetensors files, only {_list(found) or 'nothing'}"
        )
    if CONFIG not in names:
        raise FetchError("WeightsInvalid", f"there is no {CONFIG} beside the weights")
    return chosen


def check_config(path: Path, *, any_architecture: bool) -> None:
    """FetchError for a `config.json` of a model that our engine does not run.

    `any_architecture`: the fleet has an engine image of its own, which may run others.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it must hold a JSON object")
    except (ValueError, RecursionError) as error:
        raise FetchError("WeightsInvalid", f"{CONFIG} cannot be read: {error}") from error
    named = config.get("architectures")
    named = [str(name) for name in named] if isinstance(named, list) else []
    if not any_architecture and not set(named) & set(ARCHITECTURES):
        raise FetchError(
            "UnsupportedArchitecture",
            f"the model says architectures={named}; the engine runs {', '.join(ARCHITECTURES)}",
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
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FetchError(
            "WeightsInvalid", f"{path.name} is not a whole safetensors file: {error}"
        ) from error


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
