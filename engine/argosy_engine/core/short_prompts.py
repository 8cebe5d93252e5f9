"""Whether a decode engine computes a short prompt itself, by what both ways cost. Pure.

A prompt is short by what is missing of it here: of a conversation that goes on, often only the last
question. `Scheduler` asks when it admits a request, and reports its steps and its handovers.

    here       one step with the missing tokens, and the delay of each running sequence
    handover   from asking a prefill engine to the last byte of the KV, of prompts of about this
               length: a quarter of the newest were quicker

Costs are seconds of waiting, of all requests together. Queues of prefill engines that come and go
do not count, so that a decode engine does not take over what they are busy with. Whatever the costs
are, all prompts that are computed here together fit into one step that keeps the TPOT limit. So the
running sequences keep it even if no step is without a prompt.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from math import inf
from statistics import median, quantiles

from argosy_engine.core.request import Sequence
from argosy_engine.core.step_time import STEP_SHARE

_MEMORY = 32
"""Steps, and handovers of prompts of about one length, that an estimate is made of."""
_ENOUGH = 4
"""Of them, from which on it counts as known."""
_TRIAL_TOKENS = 64
"""Prompts up to this length are tried here, whatever is known: they add little to a step."""
_TRIAL_EVERY = 32
"""One of so many prompts goes the other way, so that both ways stay known."""
_BEYOND = 2
"""A prompt may be so many times longer than the longest that was measured."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, in seconds."""

    step_s: float
    """A step of the running sequences without prompts."""
    token_s: float
    """What one prompt token adds to a step."""
    handover_s: float
    """A handover, without the queues of busy times."""


def costs_less_here(tokens: int, streams: int, costs: Costs) -> bool:
    """Whether to compute so many tokens beside so many running sequences costs less waiting than
    a handover."""
    here_s = costs.step_s + (1 + streams) * tokens * costs.token_s
    return here_s <= costs.handover_s


def keeps_tpot(tokens: int, limit_s: float, costs: Costs) -> bool:
    """Whether a step with so many prompt tokens is short enough for a TPOT limit."""
    return costs.step_s + tokens * costs.token_s <= STEP_SHARE * limit_s


class ShortPrompts:
    """What one engine has measured, and its decisions."""

    def __init__(self) -> None:
        self._step_s: float | None = None
        self._mixed: deque[tuple[int, float]] = deque(maxlen=_MEMORY)
        """Prompt tokens of the newest steps with decodes, and by what each was longer, in seconds.
        """
        self._handovers: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MEMORY))
        """Binary digits of the number of missing tokens → seconds."""
        self._here = self._away = 0

    def observe_step(self, *, prompt_tokens: int, sequences: int, seconds: float) -> None:
        """A step computed so many prompt tokens beside so many decodes."""
        if not sequences:
            return
        if not prompt_tokens:
            before = seconds if self._step_s is None else self._step_s
            self._step_s = before + (seconds - before) / _MEMORY
        elif self._step_s is not None:
            self._mixed.append((prompt_tokens, seconds - self._step_s))

    def observe_handover(self, tokens: int, seconds: float) -> None:
        """From asking for a prompt, of which so many tokens were missing, to the last byte."""
        self._handovers[tokens.bit_length()].append(seconds)

    def costs(self, tokens: int) -> Costs | None:
        """For a prompt of which so many tokens are missing; None while steps are not known.

        A handover that is not known costs nothing.
        """
        if self._step_s is None or len(self._mixed) < _ENOUGH:
            return None
        # The median is not moved by a step that stalled.
        token_s = max(0.0, median(seconds / count for count, seconds in self._mixed))
        digits = tokens.bit_length()
        alike = [*self._handovers.get(digits - 1, ()), *self._handovers.get(digits, ())]
        handover_s = quantiles(alike, n=4)[0] if len(alike) >= _ENOUGH else 0.0
        return Costs(self._step_s, token_s, handover_s)

    def computes_beside(self, running: list[Sequence], head: Sequence, missing: int) -> bool:
        """Whether the prompt of `head`, of which so many tokens are missing, is computed here."""
        prompts = [s.remaining for s in running if not s.decoding]
        return self.computes(
            missing,
            others=sum(prompts),
            streams=len(running) - len(prompts),
            limit_s=min(s.request.tpot_limit_s for s in (head, *running)),
        )

    def computes(self, tokens: int, *, others: int, streams: int, limit_s: float) -> bool:
        """Whether a prompt of which so many tokens are missing is computed here.

        `others` are prompt tokens that are computed here already, `streams` running sequences,
        `limit_s` the strictest TPOT limit of all; with 0, of callers that tell none, nothing is.
        """
        if not limit_s:
            return False
        costs = self.costs(tokens)
        if not self._has_room(tokens, others, limit_s, costs):
            return False
        known = tokens <= _BEYOND * max((count for count, _ in self._mixed), default=0)
        if known and costs is not None and costs_less_here(tokens, streams, costs):
            self._here += 1
            return self._here % _TRIAL_EVERY != 0
        self._away += tokens <= _TRIAL_TOKENS
        return tokens <= _TRIAL_TOKENS and self._away % _TRIAL_EVERY == 0

    def _has_room(self, tokens: int, others: int, limit_s: float, costs: Costs | None) -> bool:
        if costs is not None:
            return keeps_tpot(others + tokens, limit_s, costs)
        step_s = inf if self._step_s is None else self._step_s
        return not others and step_s <= STEP_SHARE * limit_s
