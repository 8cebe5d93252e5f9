"""Files that say how fast one pod computes: `argosy profile` writes them, `argosy plan` reads them.

`gpuTypes` is the field of that name of a ServingDeployment, to be pasted there. `pods` has what a
plan needs beside it, an entry for each GPU type; every value of it has a default.

    gpuTypes:
    - name: h100-tp4
      gpu: 4
      costPerHour: "4.10"
      profile:
        prefillBaseMs: "3.92"
        perPromptTokenMs: "0.1066"
        decodeBaseMs: "28.8"
        perSequenceMs: "0.2825"
        perContextTokenMs: "0.000094"
        kvTokens: 480000
    pods:
    - gpuType: h100-tp4
      maxNumSeqs: 256
      maxNumBatchedTokens: 2048
      kvBytesPerToken: 327680
      transferBytesPerSecond: 50000000000
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, cast

import yaml

from argosy_law.estimate.capacity import PRESETS, SCHEME, Machine
from argosy_law.goals import Profile
from argosy_law.sim.world.machine import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Replica

KV_BYTES_PER_TOKEN = 131_072
"""Of Llama-3-8B in 16 bits: 32 layers · 2 · 8 heads · 128 · 2 bytes."""
TRANSFER_BYTES_PER_S = 12_500_000_000
"""100 Gb/s: the least that nodes with several GPUs usually have between them."""
CONSTANTS = {
    "prefillBaseMs": "prefill_base_s",
    "perPromptTokenMs": "per_prompt_token_s",
    "decodeBaseMs": "decode_base_s",
    "perSequenceMs": "per_sequence_s",
    "perContextTokenMs": "per_context_token_s",
}
"""Field of `spec.gpuTypes[].profile` → field of `Profile`, which is in seconds."""
SQUARED = "perPromptTokenSquaredMs"
"""Milliseconds for each squared token of a prompt; the API has no field for it."""


class ProfileError(Exception):
    """A profile that cannot be used; the message names the file and says what to write."""


@dataclass(frozen=True, slots=True)
class PodProfile:
    """One pod: how fast it computes, on how many GPUs, and what these cost."""

    name: str
    """Of the GPU type: `spec.gpuTypes[].name`. Two parallelisms of one GPU are two types."""
    replica: Replica
    price: float | None = None
    """Of one GPU per hour, in any currency; None: unknown."""
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)
    """How far the fit is from what was measured, as a share of it, such as of `prefill` and
    `decode`. Empty: it was not measured."""

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        return self.replica.machine.gpus


def read(source: str) -> list[PodProfile]:
    """Return the pods in a file, or the one of a preset. ProfileError for what is neither."""
    preset = source.removeprefix(SCHEME)
    if preset in PRESETS:
        return [PodProfile(preset, Replica.preset(preset))]
    try:
        document = yaml.safe_load(Path(source).read_text())
    except FileNotFoundError:
        raise ProfileError(
            f"{source}: there is no such file; write one with argosy profile, or name one of "
            f"{', '.join(PRESETS)}"
        ) from None
    except OSError as error:
        raise ProfileError(f"{source}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{source} is no YAML: {' '.join(str(error).split())}") from None
    return parse(source, document)


def parse(source: str, document: object) -> list[PodProfile]:
    """Return the pods of a document. ProfileError begins with `source` and names the field."""
    types = _entries(source, document, "gpuTypes")
    if not types:
        raise ProfileError(f"{source}: gpuTypes is missing: write one GPU type with its profile")
    names = [_name(source, f"gpuTypes[{at}].name", entry) for at, entry in enumerate(types)]
    beside = {
        _name(source, f"pods[{at}].gpuType", entry): (f"pods[{at}]", entry)
        for at, entry in enumerate(_entries(source, document, "pods"))
    }
    for name in names:
        if names.count(name) > 1:
            raise ProfileError(f"{source}: two gpuTypes are called {name}: give each its own name")
    for name, (where, _) in beside.items():
        if name not in names:
            raise ProfileError(
                f"{source}: {where}.gpuType is {name!r}; write one of {', '.join(names)}"
            )
    return [
        _pod(source, f"gpuTypes[{at}]", entry, beside.get(name, ("pods", {})))
        for at, (name, entry) in enumerate(zip(names, types, strict=True))
    ]


def write(pods: list[PodProfile]) -> str:
    """Return the file of these pods. `read` of it gives them back, to nine decimals of a
    millisecond."""
    types, beside = [], []
    for pod in pods:
        profile, machine = pod.replica.profile, pod.replica.machine
        constants: dict[str, object] = {
            name: _milliseconds(getattr(profile, constant)) for name, constant in CONSTANTS.items()
        }
        price = {} if pod.price is None else {"costPerHour": _decimals(pod.price, 4)}
        constants["kvTokens"] = int(profile.kv_tokens)
        types.append({"name": pod.name, "gpu": machine.gpus, **price, "profile": constants})
        row: dict[str, object] = {
            "gpuType": pod.name,
            "maxNumSeqs": pod.replica.max_num_seqs,
            "maxNumBatchedTokens": pod.replica.max_num_batched_tokens,
            "kvBytesPerToken": machine.kv_bytes_per_token,
            "transferBytesPerSecond": int(machine.transfer_bytes_per_s),
        }
        if profile.per_prompt_token_squared_s > 0:
            row[SQUARED] = _milliseconds(profile.per_prompt_token_squared_s)
        if pod.errors:
            row["fitErrors"] = {name: round(share, 4) for name, share in pod.errors.items()}
        beside.append(row)
    head = (
        "# gpuTypes is for the spec of a ServingDeployment; argosy plan reads all of this file.\n"
    )
    return head + yaml.safe_dump({"gpuTypes": types, "pods": beside}, sort_keys=False)


def _milliseconds(seconds: float) -> str:
    return _decimals(seconds * 1000, 9)


def _decimals(number: float, most: int) -> str:
    """Write a number with at most so many decimals."""
    return f"{number:.{most}f}".rstrip("0").rstrip(".")


def _entries(source: str, document: object, name: str) -> list[Mapping[str, Any]]:
    found = document.get(name, []) if isinstance(document, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise ProfileError(
            f"{source}: write gpuTypes as a list, and beside it pods, as argosy profile does"
        )
    return found


def _name(source: str, where: str, entry: Mapping[str, Any]) -> str:
    found = entry.get(where.rsplit(".", 1)[1])
    if not isinstance(found, str) or not found:
        raise ProfileError(f"{source}: {where} is missing: write a name, such as h100")
    return found


def _pod(
    source: str, where: str, entry: Mapping[str, Any], beside: tuple[str, Mapping[str, Any]]
) -> PodProfile:
    """Return the pod of a GPU type and of what stands beside it."""
    constants, (row_at, row) = entry.get("profile"), beside
    if not isinstance(constants, Mapping):
        raise ProfileError(
            f"{source}: {where}.profile is missing: write {', '.join(CONSTANTS)} and kvTokens"
        )
    _refuse_unknown(source, f"{where}.profile", constants, {*CONSTANTS, "kvTokens"})
    _refuse_unknown(source, row_at, row, {
        "gpuType", "maxNumSeqs", "maxNumBatchedTokens", "kvBytesPerToken",
        "transferBytesPerSecond", SQUARED, "fitErrors",
    })  # fmt: skip

    def number(of: Mapping[str, Any], at: str, name: str, default: float | None) -> float:
        return _number(source, f"{at}.{name}", of.get(name), default)

    def whole(of: Mapping[str, Any], at: str, name: str, default: int | None) -> int:
        found = number(of, at, name, default)
        if found != int(found) or found < 1:
            raise ProfileError(f"{source}: {at}.{name} is {found:g}; write a whole number above 0")
        return int(found)

    seconds = {
        constant: _seconds(number(constants, f"{where}.profile", name, None))
        for name, constant in CONSTANTS.items()
    }
    for name in ("perPromptTokenMs", "decodeBaseMs"):
        if seconds[CONSTANTS[name]] == 0:
            raise ProfileError(f"{source}: {where}.profile.{name} is 0; write how long it takes")
    profile = Profile(
        **seconds,
        per_prompt_token_squared_s=_seconds(number(row, row_at, SQUARED, 0.0)),
        kv_tokens=whole(constants, f"{where}.profile", "kvTokens", None),
    )
    machine = Machine(
        whole(entry, where, "gpu", 1),
        whole(row, row_at, "kvBytesPerToken", KV_BYTES_PER_TOKEN),
        float(whole(row, row_at, "transferBytesPerSecond", TRANSFER_BYTES_PER_S)),
    )
    replica = Replica(
        profile,
        machine,
        whole(row, row_at, "maxNumSeqs", MAX_NUM_SEQS),
        whole(row, row_at, "maxNumBatchedTokens", MAX_NUM_BATCHED_TOKENS),
    )
    price = number(entry, where, "costPerHour", 0.0) or None
    errors = row.get("fitErrors", {})
    if not isinstance(errors, Mapping):
        raise ProfileError(f"{source}: {row_at}.fitErrors: write a share for each name")
    at = f"{row_at}.fitErrors"
    return PodProfile(
        entry["name"], replica, price, {n: number(errors, at, n, None) for n in errors}
    )


def _seconds(milliseconds: float) -> float:
    """Return seconds, without the last digits that a division leaves: 0.0899 is 8.99e-05."""
    return round(milliseconds / 1000, 15)


def _refuse_unknown(source: str, where: str, entry: Mapping[str, Any], known: set[str]) -> None:
    for name in entry:
        if name not in known:
            raise ProfileError(
                f"{source}: {where}.{name} is no field; write one of {', '.join(sorted(known))}"
            )


def _number(source: str, where: str, found: object, default: float | None) -> float:
    """Return a number that is not negative, which the API writes in quotes."""
    if found is None and default is not None:
        return default
    if found is None:
        raise ProfileError(f"{source}: {where} is missing: write a number")
    try:
        value = float(cast(str, found)) if not isinstance(found, bool) else -1.0
    except (TypeError, ValueError):
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ProfileError(f"{source}: {where} is {found!r}; write a number of at least 0")
    return value
