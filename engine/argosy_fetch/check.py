"""Which models are refused, and which files of the others are fetched.

`check_config` finds out which `config.json` the engine takes before the weights come and a GPU is
asked for.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from argosy.model_config import ModelConfigError, read_model
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
        read_model(config)
    except ModelConfigError as error:
        raise FetchError(error.reason, error.message) from error
