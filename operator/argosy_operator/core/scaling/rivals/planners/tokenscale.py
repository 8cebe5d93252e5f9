"""TokenScale: the rate of arriving tokens over the token velocity of one replica.

Source: "TokenScale", arXiv 2512.03416v1; there is no public code. The velocity of a prefill replica
is the tokens it computes per second, that of a decode replica the tokens, prompt and answer, that
leave its memory per second at the largest batch within the limit of TPOT; both come from a profile.
Replicas are the rate of tokens over the velocity. The velocity of the network is never the smaller
one here. Buckets of lengths are one, of mean length, and its convertible decoders, which compute
prompts in a burst, are left out: `prefill` and `decode` are headroom in their place.
"""

from dataclasses import dataclass, field
from math import ceil

from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import FleetMetrics, Observations
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.rivals.planners.engine import BATCHED_TOKENS, Engine
from argosy_operator.core.scaling.signals import validity

RECENT_BINS = 2
"""Scrape intervals whose arrivals are the rate of now."""


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Implements `law.Law`. It remembers nothing."""

    prefill: float = 1.0
    """Factor on the rate of prompt tokens."""
    decode: float = 1.0
    """Factor on the rate of tokens of decode."""
    start: None = field(default=None, init=False)

    def decide(
        self, state: None, observations: Observations, goals: Goals, now: float
    ) -> tuple[None, Decision]:
        metrics = validity.validated(observations.metrics)
        rate = recent(metrics, goals.windows.scrape_s)
        prompt, output = seen.number(metrics.prompt_tokens), seen.number(metrics.output_tokens)
        if rate == 0.0:
            prompt, output = prompt or 1.0, output or 1.0
        if rate is None or not prompt or not output or goals.prior is None or goals.slo is None:
            blind = (answer.unknown(s, goals, "load or profile") for s in observations.supply)
            return state, answer.decision(now, blind)
        engine, targets = Engine(goals.prior), []
        for supply in observations.supply:
            if supply.role == "colocated":
                targets.append(answer.apart_only(supply, goals))
                continue
            if supply.role == "prefill":
                tokens, velocity = self.prefill * rate * prompt, prefill_velocity(engine)
            else:
                tokens = self.decode * rate * (prompt + output)
                velocity = decode_velocity(engine, prompt, output, goals.slo.tpot_s)
            wanted = max(ceil(tokens / velocity - 1e-9), 1)
            why = f"{wanted} wanted for {tokens:.4g} tokens/s at a velocity of {velocity:.4g}"
            targets.append(answer.target(supply, goals, why, wanted))
        return state, answer.decision(now, targets)


def recent(metrics: FleetMetrics, scrape_s: float) -> float | None:
    """Requests per second of the newest scrape intervals; None if arrivals are not known."""
    rate = seen.requests_per_s(metrics)
    newest = metrics.bins[-RECENT_BINS:]
    if rate is None or not newest:
        return rate
    return sum(b.count for b in newest) / (len(newest) * scrape_s)


def prefill_velocity(engine: Engine) -> float:
    """Prompt tokens that one prefill replica computes per second, in full steps."""
    return BATCHED_TOKENS / engine.prefill_s(BATCHED_TOKENS)


def decode_velocity(engine: Engine, prompt: float, output: float, limit_s: float) -> float:
    """Tokens, prompt and answer, that one decode replica releases per second.

    A batch of n sequences ends n/(O·τ) of them per second, each of which releases I + O tokens.
    """
    context = prompt + output / 2
    batch = engine.best_batch(context, limit_s)
    step_s = engine.step_s(batch, batch * context)
    return batch / (output * step_s) * (prompt + output)
