"""Traces of requests: read from a CSV file, checked line by line, and multiplied.

A file has the header `arrival_s,prompt_tokens,output_tokens` and, if its prompts share prefixes,
`cached_prefix_tokens`. `cli` reads it, `world.fleet` plays it.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Protocol

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
CACHED = "cached_prefix_tokens"
LONGEST_GAP_S = 6 * 3600.0
"""A longer silence between two requests is a hole in the recording, not traffic."""
LARGEST_DELAY_S = 45.0
"""Copies of a request are delayed by up to this."""


class _Rows(Protocol):
    """What `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class TraceError(Exception):
    """A trace that cannot be played. The message names the line and what to write instead."""


@dataclass(slots=True)
class Trace:
    """Requests in the order of their arrival; equal indices belong together."""

    arrival: list[float]
    """Seconds since the trace's start."""
    prompt: list[int]
    """Tokens."""
    output: list[int]
    """Tokens of the answer, at least 1."""
    cached: list[int] = field(default_factory=list)
    """Tokens of the prompt that a prefix cache would have; empty: none of any prompt."""

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def end(self) -> float:
        """When the last request arrives."""
        return self.arrival[-1]

    def computed_tokens(self) -> list[int]:
        """Tokens of each prompt that prefill computes: at least the last one."""
        if not self.cached:
            return self.prompt
        return [max(p - c, 1) for p, c in zip(self.prompt, self.cached, strict=True)]

    def without_cache(self) -> "Trace":
        """The same requests, each prompt computed whole."""
        return Trace(self.arrival, self.prompt, self.output)


def read(name: str, lines: Iterable[str], *, most_tokens: int) -> Trace:
    """The trace in these lines. `most_tokens`: prompt and answer that a decode pod has room for.

    Raises TraceError, whose message starts with `name` and the line.
    """
    rows = csv.reader(lines)
    try:
        return _trace(name, rows, most_tokens)
    except (csv.Error, UnicodeDecodeError) as error:
        # A line that cannot be decoded is not counted yet.
        line = rows.line_num + isinstance(error, UnicodeDecodeError)
        raise TraceError(
            f"{name}, line {line}: no text of comma-separated values: {error}"
        ) from None


def _trace(name: str, rows: _Rows, most_tokens: int) -> Trace:
    header = next(rows, None)
    if header is None:
        raise TraceError(f"{name} is empty: write the header {','.join(COLUMNS)} and the requests")
    columns = tuple(cell.strip() for cell in header)
    if columns not in (COLUMNS, (*COLUMNS, CACHED)):
        raise TraceError(
            f"{name}, line 1: the header is {','.join(columns)!r}; write "
            f"{','.join(COLUMNS)!r}, and {CACHED!r} as a fourth column if there is a prefix cache"
        )
    trace = Trace([], [], [])
    before = 0.0
    for row in rows:
        if not row:
            continue
        at = f"{name}, line {rows.line_num}"
        before = _append(trace, row, len(columns), before, most_tokens, at)
    if not trace.arrival:
        raise TraceError(f"{name} has a header and no requests: write one request a line")
    return trace


def _append(
    trace: Trace, row: list[str], columns: int, before: float, most_tokens: int, at: str
) -> float:
    """Add one row, and return its arrival."""
    if len(row) != columns:
        raise TraceError(f"{at}: {len(row)} values where the header has {columns} columns")
    arrival = _arrival(row[0], before, at)
    prompt = _tokens(row[1], COLUMNS[1], 1, at)
    output = _tokens(row[2], COLUMNS[2], 1, at)
    if prompt + output > most_tokens:
        raise TraceError(
            f"{at}: {prompt} + {output} tokens do not fit into a decode pod's KV cache of "
            f"{most_tokens}: leave the request out, or choose another --profile"
        )
    if columns > len(COLUMNS):
        cached = _tokens(row[3], CACHED, 0, at)
        if cached > prompt:
            raise TraceError(f"{at}: {CACHED} is {cached}, more than the prompt's {prompt} tokens")
        trace.cached.append(cached)
    trace.arrival.append(arrival)
    trace.prompt.append(prompt)
    trace.output.append(output)
    return arrival


def _arrival(text: str, before: float, at: str) -> float:
    try:
        arrival = float(text)
    except ValueError:
        raise TraceError(f"{at}: arrival_s is {text!r}; write seconds, such as 12.5") from None
    if not isfinite(arrival) or arrival < 0:
        raise TraceError(f"{at}: arrival_s is {text}; write seconds from the start of the trace")
    if arrival < before:
        raise TraceError(
            f"{at}: arrival_s is {text}, before the {before:g} of the line above: sort by arrival_s"
        )
    if arrival - before > LONGEST_GAP_S:
        raise TraceError(
            f"{at}: no request for {arrival - before:g} s; a gap of more than {LONGEST_GAP_S:g} s "
            "is taken for missing data: cut the trace there, and count arrival_s from its start"
        )
    return arrival


def _tokens(text: str, column: str, least: int, at: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise TraceError(f"{at}: {column} is {text!r}; write a whole number of tokens") from None
    if tokens < least:
        raise TraceError(f"{at}: {column} is {tokens}; the least is {least}")
    return tokens


def scaled(trace: Trace, scale: float, seed: int) -> Trace:
    """`scale` copies of each request, each with a delay of its own of 0 to 45 s.

    A part of a copy, such as the half of 0.5 or 2.5, is that share of the requests, by chance.
    A scale of 1 is the trace as it is, without delays.
    """
    if scale == 1:
        return trace
    rng = Random(f"copies {seed}")  # noqa: S311 (a simulation, not a secret)
    whole, part = int(scale), scale - int(scale)
    rows = []
    for index, arrival in enumerate(trace.arrival):
        for _ in range(whole + (part > 0 and rng.random() < part)):
            rows.append((arrival + rng.uniform(0.0, LARGEST_DELAY_S), index))
    if not rows:
        raise TraceError(f"--scale {scale:g} leaves no request: give a larger one")
    rows.sort()
    chosen = [index for _, index in rows]
    return Trace(
        [arrival for arrival, _ in rows],
        [trace.prompt[index] for index in chosen],
        [trace.output[index] for index in chosen],
        [trace.cached[index] for index in chosen] if trace.cached else [],
    )
