"""Writes a model folder in Hugging Face's layout, completely or not at all.

`smollm2` and `tiny` give numpy arrays and dicts; the folder holds `config.json`,
`generation_config.json`, `tokenizer.json`, `tokenizer_config.json`, `model.safetensors`.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
_SAFETENSORS_NAME = {"float32": "F32", "bfloat16": "BF16"}


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the upper 16 bits, rounded to nearest even, as uint16 (numpy has no bfloat16)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[np.ndarray], dtype: str
) -> None:
    """Write float32 `tensors`, in the order of `shapes`, as `dtype`.

    The format is 8 bytes of header length, a JSON header and the raw little-endian values. The
    library is not used, because its numpy side has no bfloat16 and its torch side needs torch.
    """
    size = {"float32": 4, "bfloat16": 2}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + size * int(np.prod(shape))
        header[name] = {
            "dtype": _SAFETENSORS_NAME[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), values in zip(shapes.items(), tensors, strict=True):
            assert values.shape == shape, (name, values.shape, shape)
            cast = to_bfloat16(values) if dtype == "bfloat16" else values.astype("<f4", copy=False)
            file.write(np.ascontiguousarray(cast).data)


def write_json(path: Path, value: Any) -> None:
    """Indented, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that replaces it when the block ends without an error.

    All users may read it, because engines run as another user than the one who writes it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield part
        part.chmod(0o755)
        for name in FILES:
            (part / name).chmod(0o644)
        if out.exists():
            old = part.with_suffix(".old")
            os.rename(out, old)
            os.rename(part, out)
            shutil.rmtree(old)
        else:
            os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
