"""What the law's learner knows after thirty days of ticks, and how long a decision takes.

Rows of step counters go through `estimate.capacity`, as `decide` does it with those of a cluster,
and the law is timed in the loop of a load. `parts` puts both figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, pi, sin, sqrt
from operator import mul
from random import Random
from statistics import quantiles
from time import thread_time
from typing import Any

from argosy_bench.figures import Figure, Figures, Target
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.estimate.profiles import PRESETS
from argosy_operator.core.scaling.goals import SLO, Goals, Profile, Windows
from argosy_operator.core.scaling.observe import Observations, StepDelta
from argosy_operator.sim.laws.law import Law

FIGURES = (
    Figure("learner_error_30_days", target=Target("<=", 0.05), digits=4),
    Figure("learner_worst_constant", digits=4),
    Figure("decide_ms_p99", "ms", digits=2),
)

DAY_S = 86_400.0
DAYS = 30
ROLES: tuple[RoleName, ...] = ("prefill", "decode")
NOISE = 0.01
"""Relative standard deviation of the seconds of a row of `NOISY_S`; longer rows average it."""
NOISY_S = 15.0


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a law is asked and what it is told to remember."""

    windows: Windows
    rounds: int = 1
    """Rounds that one row spans, as if the scrapes between had been missed: as much time passes
    and is forgotten in fewer rows."""


_TIMES = (
    "prefill_base_s", "per_prompt_token_s", "decode_base_s", "per_sequence_s", "per_context_token_s"
)  # fmt: skip
CADENCES = {
    "defaults": Cadence(Windows()),
    "demo": Cadence(Windows(1.0, 4.0, 1.0, 0.0, 15.0), 15),
    "slow rounds": Cadence(Windows(60.0, 240.0, 3600.0, down_hold_s=0.0)),
    "long memory": Cadence(Windows(down_hold_s=DAY_S), 4),
}
TRUE = PRESETS["llama-70b-h100-tp4"]
PRIORS: dict[str, Profile | None] = {
    "0.8": replace(TRUE, **{name: 0.8 * getattr(TRUE, name) for name in _TIMES}),
    "1.2": replace(TRUE, **{name: 1.2 * getattr(TRUE, name) for name in _TIMES}),
    "none": None,
}
"""Known constants that are wrong by the factor; none: the law guesses from the SLO."""
OBJECTIVE = SLO(ttft_s=1.0, tpot_s=0.06)
_PROMPT, _OUTPUT = 1400.0, 200.0


def row(role: RoleName, at: float, row_s: float, dice: Random) -> StepDelta | None:
    """The steps of one replica in the last `row_s` seconds; None: it had none.

    Its load is high by day and low by night, prompts and contexts are longer in the afternoon, and
    each row has requests of its own.
    """
    hour = 2 * pi * at / DAY_S
    rate = 3.0 * (1.1 + sin(hour)) * dice.uniform(0.7, 1.3)
    longer = 1 + 0.3 * sin(hour - 1)
    noise = 1 + NOISE * sqrt(NOISY_S / row_s) * dice.gauss(0, 1)
    if role == "prefill":
        prompts = round(rate * row_s * dice.uniform(0.9, 1.1))
        if prompts == 0:
            return None
        tokens = prompts * _PROMPT * longer * max(dice.gauss(1, prompts**-0.5), 0.1)
        steps = ceil(prompts * dice.uniform(0.6, 1.0))
        seconds = TRUE.prefill_base_s * steps + TRUE.per_prompt_token_s * tokens
        return StepDelta(at, noise * seconds, steps, tokens, prompts)
    batch = 6 * rate
    context = batch * (_PROMPT + _OUTPUT / 2) * longer * dice.uniform(0.8, 1.2)
    step_s = TRUE.step_s(0, 0) + TRUE.per_sequence_s * batch + TRUE.per_context_token_s * context
    count = row_s / step_s
    return StepDelta(
        at, noise * row_s, count, decode_sequences=batch * count, context_tokens=context * count
    )


def learnt(
    role: RoleName, prior: Profile | None, cadence: Cadence, days: float = DAYS
) -> capacity.Estimate:
    """The estimate after so many days of rows."""
    windows, dice = cadence.windows, Random(f"rows of {role}")  # noqa: S311 (no secret)
    estimate, every = capacity.begin(role, prior, OBJECTIVE), cadence.rounds * windows.interval_s
    for tick in range(1, int(days * DAY_S / every) + 1):
        one = row(role, tick * every, every, dice)
        if one is not None:
            estimate = capacity.learn(estimate, (one,), windows)
    return estimate


def errors(estimate: capacity.Estimate, role: RoleName) -> tuple[float, float]:
    """(error of the seconds of a step, error of the worst constant), both relative.

    Of the steps of each hour of a day, the one that the constants tell worst counts.
    """
    true = (TRUE.prefill_base_s, TRUE.per_prompt_token_s, 0.0, 0.0)
    if role == "decode":
        true = (TRUE.decode_base_s, 0.0, TRUE.per_sequence_s, TRUE.per_context_token_s)
    constants = max(abs(a / b - 1) for a, b in zip(estimate.theta, true, strict=True) if b)
    dice, worst = Random("steps"), 0.0  # noqa: S311 (no secret)
    for hour in range(24):
        one = row(role, hour * 3600.0, 60.0, dice)
        if one is not None:
            x = (one.steps, one.prefill_tokens, one.decode_sequences, one.context_tokens)
            told, took = (sum(map(mul, theta, x)) for theta in (estimate.theta, true))
            worst = max(worst, abs(told / took - 1))
    return worst, constants


def measure_error(figures: Figures, days: float = DAYS) -> Iterator[str]:
    """Learn at each cadence from each prior, and put the worst error; a line for each cadence."""
    of_steps, of_constants = 0.0, 0.0
    for name, cadence in CADENCES.items():
        found = [
            errors(learnt(role, prior, cadence, days), role)
            for role in ROLES
            for prior in PRIORS.values()
        ]
        steps, constants = (max(errors) for errors in zip(*found, strict=True))
        of_steps, of_constants = max(of_steps, steps), max(of_constants, constants)
        yield f"learner, {name}: steps within {steps:.2%}, constants within {constants:.2%}"
    figures.put("learner_error_30_days", of_steps)
    figures.put("learner_worst_constant", of_constants)


@dataclass(slots=True)
class Timed:
    """A law that notes how long its decisions take, in CPU time of this thread."""

    law: Law[Any]
    took_s: list[float] = field(default_factory=list)

    @property
    def start(self) -> Any:
        return self.law.start

    def decide(
        self, state: Any, observations: Observations, goals: Goals, now: float
    ) -> tuple[Any, Decision]:
        begun = thread_time()
        answer = self.law.decide(state, observations, goals, now)
        self.took_s.append(thread_time() - begun)
        return answer

    def p99_ms(self) -> float:
        """Of all decisions so far, of which there must be two."""
        return 1000 * quantiles(self.took_s, n=100, method="inclusive")[98]
