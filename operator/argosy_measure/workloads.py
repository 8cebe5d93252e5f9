"""Workloads: how long prompts and answers are, drawn or recorded, with Poisson arrivals.

Three are those of DistServe's evaluation, with the SLO of each: chatbot (lengths of ShareGPT), code
completion (HumanEval), summarization (LongBench). Source: https://arxiv.org/abs/2401.09670, section
6, and the artifact's `ae-scripts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, inf, isfinite
from pathlib import Path
from random import Random

from argosy_law.sim import traces
from argosy_law.sim.traces import Trace, TraceError

LONGEST = 2048
"""Tokens of prompt and answer together in DistServe's workloads: the context of OPT."""
SPREAD = 0.45
"""Where none is given: that of the chatbot."""


class WorkloadError(Exception):
    """A workload that cannot be used; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How long prompts and answers are."""

    prompt: float
    output: float
    """Mean tokens."""
    spread: float = SPREAD
    """Standard deviation of the logarithm of both."""
    longest: int = 2**31
    """Most tokens of prompt and answer together; longer ones are cut."""
    slo: tuple[float, float] | None = None
    """Limits of TTFT and TPOT that belong to it, in seconds; None: it has none."""
    recorded: Trace | None = field(default=None, compare=False, repr=False)
    """Requests whose lengths are taken instead, each as often as by chance; None: lognormal."""

    def requests(self, rate: float, count: int, seed: int) -> Trace:
        """Return Poisson arrivals at `rate` requests per second; `rate` inf: all come at once.

        With the same seed, requests at two rates are the same ones, closer to each other.
        """
        rng, at, trace = Random(f"{seed}"), 0.0, Trace([], [], [])  # noqa: S311 (no secret)
        for _ in range(count):
            at += rng.expovariate(rate) if rate < inf else 0.0
            self._append(trace, rng)
            trace.arrival.append(at)
        return trace

    def _append(self, trace: Trace, rng: Random) -> None:
        if self.recorded is not None:
            drawn = rng.randrange(len(self.recorded))
            trace.prompt.append(self.recorded.prompt[drawn])
            trace.output.append(self.recorded.output[drawn])
            if self.recorded.cached:
                trace.cached.append(self.recorded.cached[drawn])
            return
        prompt, output = (
            round(length * exp(self.spread * rng.gauss(0, 1) - self.spread**2 / 2))
            for length in (self.prompt, self.output)
        )
        trace.output.append(min(max(output, 1), self.longest // 2))
        trace.prompt.append(min(max(prompt, 1), self.longest - trace.output[-1]))


WORKLOADS: Mapping[str, Workload] = {
    "chatbot": Workload(755.5, 200.3, 0.45, LONGEST, (0.25, 0.1)),
    "code": Workload(171.3, 98.2, 0.4, LONGEST, (0.125, 0.2)),
    "summarization": Workload(1738.3, 90.7, 0.15, LONGEST, (15.0, 0.15)),
}
"""Of DistServe. The spreads are guesses, since the paper has means only: with 0.7 a tenth of the
chatbot's prompts would miss TTFT alone on vLLM's profile."""


def read(text: str, most_tokens: int) -> Workload:
    """Return the workload of a name, of mean tokens `PROMPT,ANSWER` or `PROMPT,ANSWER,SPREAD`, or
    of the requests in a CSV file, as `argosy simulate` reads them.

    `most_tokens`: of prompt and answer, that a pod has room for. WorkloadError for anything else.
    """
    named = WORKLOADS.get(text)
    if named is not None:
        return replace(named, longest=min(named.longest, most_tokens))
    if Path(text).is_file():
        return _read_recording(text, most_tokens)
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 3 or not all(isfinite(n) for n in numbers):
        raise WorkloadError(
            f"{text}: write {', '.join(WORKLOADS)}, mean tokens of prompts and answers such as "
            "1000,200, or a CSV file of requests"
        )
    prompt, output, spread = (*numbers, SPREAD)[:3]
    if prompt < 1 or output < 1 or not 0 <= spread <= 2:
        raise WorkloadError(
            f"{text}: write at least one token for prompts and for answers, and a spread of 0 to 2"
        )
    if prompt + output > most_tokens / 2:
        raise WorkloadError(
            f"{text}: a pod holds {most_tokens} tokens (kvTokens of its profile), and prompts and "
            f"answers may be twice as long as their mean: write at most {most_tokens // 2} together"
        )
    return Workload(prompt, output, spread, most_tokens)


def _read_recording(path: str, most_tokens: int) -> Workload:
    try:
        with Path(path).open(newline="") as lines:
            trace = traces.read(path, lines, most_tokens=most_tokens)
    except TraceError as error:
        raise WorkloadError(str(error)) from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    prompt, output = (sum(of) / len(of) for of in (trace.prompt, trace.output))
    return Workload(prompt, output, recorded=trace)
