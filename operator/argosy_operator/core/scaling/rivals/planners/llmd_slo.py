"""The queueing model of llm-d's workload variant autoscaler: mean TTFT and ITL within the SLO.

Source: llm-d/llm-d-workload-variant-autoscaler at b08b1c7, pkg/analyzer/queueanalyzer.go and
mm1modelstatedependent.go, and pkg/core/allocation.go at 56a651b of llm-d-incubation. A replica is
an M/M/1 queue whose rate depends on the number n in service, n / (prefill(n) + O·decode(n)), with
room for ten batches to wait. An iteration takes alpha + n·(beta·computed + gamma·read) seconds; the
largest rate whose mean latency keeps the limit gives ceil(λ / rate) replicas, every 60 s, under an
HPA with its default behavior.

WVA models a pod that does both phases and learns the constants with a Kalman filter. Here the pools
are apart and the constants are those of the profile: a prefill pod answers one token and keeps the
limit of TTFT, a decode pod has its prompts computed and keeps the limit of ITL.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import SLO, Goals, Profile
from argosy_operator.core.scaling.observe import FleetMetrics, Observations
from argosy_operator.core.scaling.rivals import answer, hpa, keda, seen
from argosy_operator.core.scaling.rivals.planners.engine import BATCHED_TOKENS, SEQUENCES
from argosy_operator.core.scaling.rivals.planners.wva import INTERVAL_S, Published, WvaState
from argosy_operator.core.scaling.signals import validity

QUEUE_TO_BATCH = 10
"""MaxQueueToBatchRatio: how many batches may wait."""
EPSILON = 0.001
"""Rates are looked for from this share of the smallest to this share below the largest."""
ROUNDS = 40
"""Bisections; 2⁻⁴⁰ of the range is far below what changes a number of replicas."""


@dataclass(frozen=True, slots=True)
class State:
    """Means of the queue at one rate."""

    in_service: float
    served_s: float
    """Time in service."""
    waited_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """One pod of one phase, and the latency that is held against its limit."""

    batch: int
    """Most requests in service."""
    first_s: Callable[[float], float]
    """Time until a request decodes, with n in service."""
    token_s: Callable[[float], float]
    """Time of one token."""
    tokens: float
    """Tokens of an answer."""

    def rates(self) -> Sequence[float]:
        """Requests per second with 1, 2, … in service."""
        return [
            n / (self.first_s(n) + self.tokens * self.token_s(n)) for n in range(1, self.batch + 1)
        ]


def prefill_phase(profile: Profile, prompt: float) -> Phase:
    """A pod that computes prompts and answers one token."""
    beta, computed = profile.per_prompt_token_s, (prompt + 1) / 2

    def step_s(n: float) -> float:
        return profile.prefill_base_s + n * beta * computed

    batch = max(int(BATCHED_TOKENS / prompt), 1)
    return Phase(batch, lambda n: step_s(n) + beta * prompt, lambda n: step_s(n) + beta, 1.0)


def decode_phase(profile: Profile, prompt: float, output: float) -> Phase:
    """A pod that finds prompts computed and answers `output` tokens."""
    context = prompt + output / 2
    each_s = profile.per_sequence_s + profile.per_context_token_s * context
    batch = SEQUENCES
    if profile.kv_tokens > 0:
        batch = max(min(batch, int(profile.kv_tokens / context)), 1)
    return Phase(batch, lambda _: 0.0, lambda n: profile.decode_base_s + n * each_s, output)


def solve(rates: Sequence[float], rate: float) -> State:
    """Means of the birth-death chain with births at `rate` and deaths at `rates[n - 1]`.

    Above the batch the rate of deaths stays; at most ten batches wait.
    """
    batch = len(rates)
    weight, total, inside, serving = 1.0, 1.0, 0.0, 0.0
    for n in range(1, (1 + QUEUE_TO_BATCH) * batch + 1):
        weight *= rate / rates[min(n, batch) - 1]
        total += weight
        inside += n * weight
        serving += min(n, batch) * weight
        if total > 1e200:
            weight, total, inside, serving = (v * 1e-200 for v in (weight, total, inside, serving))
    through = rate * (1 - weight / total)
    served_s = serving / total / through
    return State(serving / total, served_s, max(inside / total / through - served_s, 0.0))


def latency_s(phase: Phase, rates: Sequence[float], rate: float, *, first: bool) -> float:
    """Mean TTFT if `first`, else the mean time of a token, in seconds."""
    at = solve(rates, rate)
    begun_s = phase.first_s(at.in_service)
    token_s = (at.served_s - begun_s) / phase.tokens
    return at.waited_s + begun_s + token_s if first else token_s


def largest_rate(phase: Phase, limit_s: float, *, first: bool) -> float | None:
    """Requests per second of one replica whose mean latency is the limit; None if none has it."""
    rates = phase.rates()
    low, high = EPSILON * rates[0], (1 - EPSILON) * rates[-1]
    if latency_s(phase, rates, low, first=first) > limit_s:
        return None
    if latency_s(phase, rates, high, first=first) <= limit_s:
        return high
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if latency_s(phase, rates, middle, first=first) <= limit_s:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class LlmdSlo:
    """Implements `law.Law`. WVA's limits are its user's; here they come from the SLO."""

    ttft: float = 1.0
    """The mean TTFT to keep as a share of the SLO's limit."""
    itl: float = 1.0
    """The mean time per token to keep as a share of the SLO's limit."""
    start: WvaState = field(default_factory=dict, init=False)

    def decide(
        self, state: WvaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[WvaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            if supply.role == "colocated":
                answers.append(answer.apart_only(supply, goals))
                continue
            before = state.get(supply.role)
            held = before.held if before else None
            if before is None or now - before.at >= INTERVAL_S:
                wanted = self._recommend(supply.role, metrics, goals, supply.desired)
                if wanted is None:
                    answers.append(answer.unknown(supply, goals, "the load or the profile"))
                    continue
                before = Published(now, wanted)
            wanted = keda.recommendation(supply.desired, before.replicas, 1.0)
            why = f"{before.replicas} published"
            held, one = hpa.behave(held, supply, goals, wanted, now, why)
            after[supply.role] = Published(before.at, before.replicas, held)
            answers.append(one)
        return after, answer.decision(now, answers)

    def _recommend(
        self, role: RoleName, metrics: FleetMetrics, goals: Goals, current: int
    ) -> int | None:
        rate = seen.requests_per_s(metrics)
        if rate is None or goals.prior is None or goals.slo is None:
            return None
        prompt, output = seen.number(metrics.prompt_tokens), seen.number(metrics.output_tokens)
        if rate == 0:
            return 1
        if not prompt or not output:
            return None
        return self.recommendation(role, rate, prompt, output, goals.prior, goals.slo) or current

    def recommendation(
        self, role: RoleName, rate: float, prompt: float, output: float, profile: Profile, slo: SLO
    ) -> int | None:
        """ceil(λ / largest rate of one replica); None if a lone request misses the limit."""
        if role == "prefill":
            most = largest_rate(prefill_phase(profile, prompt), self.ttft * slo.ttft_s, first=True)
        else:
            phase = decode_phase(profile, prompt, max(output, 1.0))
            most = largest_rate(phase, self.itl * slo.tpot_s, first=False)
        return None if most is None else max(ceil(rate / most - 1e-9), 1)
