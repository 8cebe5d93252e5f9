"""What the commands share: how flags are read, exit statuses, and errors that become sentences."""

import contextlib
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argosy_law.sim.flags import UsageError

MET, MISSED, WRONG, NO_SERVER, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses."""
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ServerError(Exception):
    """A server that cannot be measured. The message says why, and what to do."""


def list_statuses(met: str, missed: str) -> str:
    """Write the exit statuses for `--help`, with what 0 and 1 mean for one command."""
    meanings = {
        MET: met,
        MISSED: missed,
        WRONG: "wrong input",
        NO_SERVER: "the server does not answer",
        INTERRUPTED: "interrupted",
    }
    return "\n".join(
        ["exit status:", *(f"  {status:<4} {meaning}" for status, meaning in meanings.items())]
    )


def fail(program: str, error: Exception) -> int:
    """Print the sentence of an error, and return the exit status."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
    sys.stderr.write(f"argosy {program}: {said}\n")
    return NO_SERVER if isinstance(error, ServerError) else WRONG


def read_as(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a type of argparse, which shows the sentence of a UsageError."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except UsageError as error:
            raise ArgumentTypeError(str(error)) from None

    return convert


def read_positive(text: str) -> float:
    """Read a number above 0. UsageError for anything else."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise UsageError(f"{text}: write a number above 0")


def read_count(text: str) -> int:
    """Read a whole number of at least 1. UsageError for anything else."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"{text}: write a whole number of at least 1")
    return int(text)


def read_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers above 0, each once, the smallest first. UsageError for anything else."""
    return tuple(sorted({read_count(part.strip()) for part in text.split(",")}))


def read_seconds(text: str) -> float:
    """Read a duration such as 200ms or 1.5s. UsageError for one without a unit."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{text}: write a duration with its unit, such as 200ms, 1.5s or 2m")
    return seconds


def read_share(text: str) -> float:
    """Read a share such as 0.9 or 90%. UsageError for one that is not between 0 and 1."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{text}: write a share between 0 and 1, such as 0.9 or 90%")
    return share


def read_out(text: str) -> Path:
    """Read a path that can be written. UsageError without its folder, or for a folder."""
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{text}: write a file in a folder that exists and can be written")
    return path


def read_header(text: str) -> tuple[str, str]:
    """Read `NAME: VALUE`. UsageError for anything else."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"{text}: write a header, such as 'Authorization: Bearer abc'")
    return name.strip(), value.strip()
