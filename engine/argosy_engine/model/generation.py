"""`generation_config.json`: the sampling parameters that the model's authors recommend.

Read when the model is loaded. As in vLLM, its values are the defaults of requests that do not set
their own. A warning in the log names what this engine does not support.
"""

import logging
from collections.abc import Mapping
from typing import Any

from argosy_engine.core.sampling import SamplingDefaults

__all__ = ["sampling_defaults"]

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
