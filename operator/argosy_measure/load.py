"""What is sent, and when: arrivals and lengths, drawn from a seed or read from a file."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from argosy_law.sim import traces
from argosy_law.sim.flags import UsageError
from argosy_measure.client import Request

_VOCABULARY = range(1000, 30_000)
"""Ids of ordinary tokens in all vocabularies of today: special tokens and bytes are below."""
_MOST_TOKENS = 10_000_000
"""The server says what it has room for."""


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of prompts or answers: always the mean, or drawn from a lognormal distribution."""

    mean: int
    spread: float = 0.0
    """Standard deviation, in tokens."""

    def draw(self, random: Random) -> int:
        """Return one length, at least 1."""
        if not self.spread:
            return self.mean
        variance = math.log(1 + (self.spread / self.mean) ** 2)
        drawn = random.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return max(1, round(drawn))

    @classmethod
    def parse(cls, text: str) -> "Length":
        """Read `MEAN` or `MEAN:SPREAD`. UsageError for what is neither."""
        mean, _, spread = text.partition(":")
        try:
            length = cls(int(mean), float(spread or 0))
        except ValueError:
            length = cls(0)
        if length.mean < 1 or not 0 <= length.spread < math.inf:
            raise UsageError(
                f"{text}: write a number of tokens, such as 128, or its mean and standard "
                "deviation, such as 128:40"
            )
        return length


@dataclass(frozen=True, slots=True)
class Shape:
    """What the requests of a load are like."""

    prompt: Length = Length(128)
    answer: Length = Length(64)
    prompts: tuple[Request, ...] = ()
    """Requests of a file, used in turn; empty: prompts are drawn."""
    seed: int = 0

    def draw(self, name: str) -> Iterator[Request]:
        """Draw requests without end, due at 0. An equal name and seed draw the same ones.

        Prompts are random ids of tokens, so that no prefix cache helps.
        """
        random = Random(f"{name} {self.seed}")  # noqa: S311 - a load, no secret
        number = 0
        while True:
            answer = self.answer.draw(random)
            if self.prompts:
                of = self.prompts[number % len(self.prompts)]
                prompt, answer = of.prompt, of.tokens or answer
            else:
                prompt = _draw_prompt(random, self.prompt.draw(random))
            yield Request(prompt, answer, id=str(number))
            number += 1


def _draw_prompt(random: Random, tokens: int) -> tuple[int, ...]:
    return tuple(random.choices(_VOCABULARY, k=tokens))


def draw_open(shape: Shape, rate: float, burstiness: float, name: str) -> Iterator[Request]:
    """Draw requests with times, `rate` of them a second, without end.

    Gaps have a gamma distribution of the shape `burstiness`: 1 makes arrivals Poisson, less makes
    them come in bursts, more makes them even.
    """
    random, at_s = Random(f"arrivals {name} {shape.seed}"), 0.0  # noqa: S311 - likewise
    for request in shape.draw(name):
        at_s += random.gammavariate(burstiness, 1 / (rate * burstiness))
        yield Request(request.prompt, request.tokens, at_s, request.id)


def read_trace(path: Path, seed: int) -> Sequence[Request]:
    """Read arrivals and lengths from a CSV file. TraceError for what cannot be played."""
    with path.open(newline="") as lines:
        trace = traces.read(str(path), lines, most_tokens=_MOST_TOKENS)
    random = Random(f"prompts {seed}")  # noqa: S311 - likewise
    rows = zip(trace.arrival, trace.prompt, trace.output, strict=True)
    return [
        Request(_draw_prompt(random, prompt), output, at_s, str(number))
        for number, (at_s, prompt, output) in enumerate(rows)
    ]


def read_prompts(name: str, lines: Iterable[str]) -> tuple[Request, ...]:
    """Read prompts, one JSON object a line. UsageError for a line that is none.

    `prompt` is a text; `tokens`, if it is there, those of its answer, and otherwise 0.
    """
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, tokens = row["prompt"], int(row.get("tokens", 0))
        except (ValueError, LookupError, TypeError, AttributeError):
            prompt, tokens = None, 0
        if not isinstance(prompt, str) or not prompt or tokens < 0:
            raise UsageError(
                f'{name}, line {number}: write {{"prompt": "a text"}}, and "tokens" with a number '
                "where the answer has a length of its own"
            )
        prompts.append(Request(prompt, tokens))
    if not prompts:
        raise UsageError(f'{name} has no prompts: write one {{"prompt": "a text"}} a line')
    return tuple(prompts)
