"""What a model's folder says of it: a frozen value, or a reason why the model cannot run.

Reads the `config.json` and `generation_config.json` of a Hugging Face folder. As in vLLM, what the
model's authors recommend are the defaults of requests that do not set their own; a warning in the
log names what this engine does not support.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.model_config import (
    ARCHITECTURES,
    ModelConfigError,
    ModelSpec,
    dtype_of,
    read_model,
)
from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.errors import LoadError

log = logging.getLogger(__name__)

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
_NOT_HONOURED: Mapping[str, tuple[Any, ...]] = {  # with the values that have no effect
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "num_beams": (1,),
    "length_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "max_new_tokens": (),
    "min_new_tokens": (0,),
    "bad_words_ids": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "stop_strings": (),
    "guidance_scale": (1,),
}


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    """The defaults of the file; invalid values are left out and named in a warning."""
    values: dict[str, Any] = {}
    ignored: dict[str, Any] = {}
    for name, (low, high) in _RANGES.items():
        value = generation.get(name)
        kinds = (int,) if name == "top_k" else (int, float)
        if value is not None:
            fits = type(value) in kinds and low <= value <= high
            (values if fits else ignored)[name] = value
    for name, harmless in _NOT_HONOURED.items():
        value = generation.get(name)
        if value not in (None, [], *harmless):
            ignored[name] = value
    if values:
        log.info("generation_config.json sets the defaults of requests: %s", values)
    if ignored:
        log.warning("generation_config.json: this engine ignores %s", ignored)
    if "top_k" in values:
        values["top_k"] = max(0, values["top_k"])
    return SamplingDefaults(**values)


def read_spec(folder: Path) -> ModelSpec:
    """LoadError(ModelNotFound | WeightsInvalid | UnsupportedArchitecture) says what to do."""
    try:
        return read_model(read_config(folder))
    except ModelConfigError as error:
        where = f"{folder}/" if error.reason == "WeightsInvalid" else ""
        raise LoadError(error.reason, f"{where}{error.message}") from error


def trunk_knows(folder: Path) -> bool:
    """Whether `config.json` names an architecture of the trunk's; otherwise `huggingface` runs it.

    LoadError as of `read_spec`.
    """
    names = read_config(folder).get("architectures")
    return not isinstance(names, list) or not names or any(one in ARCHITECTURES for one in names)


def read_dtype(folder: Path) -> str:
    """Return the checkpoint's type, of any architecture."""
    return dtype_of(read_config(folder))


def read_generation(folder: Path) -> tuple[frozenset[int], SamplingDefaults]:
    """Return the ids that end a text, and what requests are sampled with. LoadError as above."""
    config = read_config(folder)
    generation = _read_json(folder / "generation_config.json", required=False)
    eos = generation.get("eos_token_id")  # may stand there as null, and 0 is an id
    try:
        ids = _eos(config.get("eos_token_id") if eos is None else eos)
    except ValueError as error:
        raise LoadError("WeightsInvalid", f"{folder}/config.json: {error!r}") from error
    return ids, sampling_defaults(generation)


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json`. LoadError says what to do."""
    if not folder.is_dir():
        raise LoadError(
            "ModelNotFound",
            f"{folder} is not a folder: mount the model there, or give --model its path",
        )
    return _read_json(folder / "config.json", required=True)


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise LoadError(
                "ModelNotFound", f"{path} does not exist: --model wants a Hugging Face folder"
            ) from None
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError("WeightsInvalid", f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError("WeightsInvalid", f"{path} must hold a JSON object")
    return value


def _eos(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if any(type(one) is not int or one < 0 for one in ids):
        raise ValueError(f"eos_token_id must be a token id or a list of them, and is {value!r:.40}")
    return frozenset(ids)
