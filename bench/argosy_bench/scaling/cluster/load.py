"""The requests that both worlds are given: a stretch of a trace, or ones of our own.

`beside` writes them to a file; `client` sends them, and `argosy simulate` plays the same file.
"""

from collections.abc import Callable, Iterable
from math import cos, pi
from pathlib import Path
from random import Random

from argosy_law.sim import traces
from argosy_law.sim.traces import Trace

LONGEST = 8_000
"""Tokens of a prompt and its answer together; the simulated engines take 8192."""
_LEAST_PER_S, _MOST_PER_S = 3.0, 11.0
"""At the top, prompts keep one and a half prefill replicas busy."""


Keep = Callable[[Trace, int], bool]
"""Whether the request at this index stays."""


def read(path: Path) -> Trace:
    """The requests of a file that a simulated engine takes. TraceError says what is wrong."""
    with path.open(newline="") as lines:
        return _chosen(traces.read(str(path), lines, most_tokens=10**9), fits)


def fits(trace: Trace, index: int) -> bool:
    """Whether a simulated engine takes a request."""
    return trace.prompt[index] + trace.output[index] <= LONGEST


def stretch(trace: Trace, begin_s: float, seconds: float) -> Trace:
    """The requests of this stretch, whose begin is second 0."""
    end = begin_s + seconds
    cut = _chosen(trace, lambda of, index: begin_s <= of.arrival[index] < end)
    cut.arrival[:] = [arrival - begin_s for arrival in cut.arrival]
    return cut


def growing(trace: Trace, seconds: float, seed: int) -> Trace:
    """The trace, of whose first seconds only some requests stay: few at its start, and all from
    then on. Neither world begins with an overload, whose end is chance."""
    rng = Random(f"growing {seed}")  # noqa: S311 (no secret)
    return _chosen(trace, lambda of, index: rng.random() * seconds < of.arrival[index])


def later(trace: Trace, seconds: float) -> Trace:
    """The same requests, so much later."""
    return Trace([arrival + seconds for arrival in trace.arrival], trace.prompt, trace.output)


def made(seconds: float, seed: int) -> Trace:
    """Poisson arrivals at 3 to 11 a second, up and down once, of about 900 and 60 tokens."""
    rng, at, trace = Random(f"load {seed}"), 0.0, Trace([], [], [])  # noqa: S311 (no secret)
    while True:
        at += rng.expovariate(_MOST_PER_S)
        if at >= seconds:
            return trace
        swing = (1 - cos(2 * pi * at / seconds)) / 2
        rate = _LEAST_PER_S + (_MOST_PER_S - _LEAST_PER_S) * swing
        if rng.random() * _MOST_PER_S < rate:
            trace.arrival.append(at)
            trace.prompt.append(min(int(rng.lognormvariate(6.5, 0.7)) + 1, 6_000))
            trace.output.append(min(int(rng.lognormvariate(3.8, 0.8)) + 1, 1_000))


def lines(trace: Trace) -> Iterable[str]:
    """The file's lines."""
    yield ",".join(traces.COLUMNS)
    for arrival, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True):
        yield f"{arrival:.3f},{prompt},{output}"


def _chosen(trace: Trace, keep: Keep) -> Trace:
    rows = [index for index in range(len(trace)) if keep(trace, index)]
    return Trace(
        [trace.arrival[row] for row in rows],
        [trace.prompt[row] for row in rows],
        [trace.output[row] for row in rows],
    )
