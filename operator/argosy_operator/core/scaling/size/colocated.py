"""Colocated: one pool that prefills and decodes, from load to the share within both limits."""

from dataclasses import dataclass, replace
from math import inf

from argosy_operator.core.scaling.size.decode import DecodeModel, decode_model
from argosy_operator.core.scaling.size.prefill import PrefillModel, prefill_model
from argosy_operator.core.scaling.size.work import Replica, Work


@dataclass(frozen=True, slots=True)
class ColocatedModel:
    """One pool that prefills in chunks beside its decodes: both models, slowed by each other."""

    prefill: PrefillModel
    decode: DecodeModel
    per_prompt_s: float
    """Prefill seconds of a mean prompt without the step's base, which decode pays already."""

    @property
    def reachable(self) -> float:
        """Share of requests that meet both limits without any other load."""
        return min(self.prefill.reachable, self.decode.reachable)

    def relaxed(self, goal: float) -> "ColocatedModel":
        """The same pool with limits that single requests meet with room."""
        return replace(self, prefill=self.prefill.relaxed(goal), decode=self.decode.relaxed(goal))

    def _parts(self, replicas: float, rate: float) -> tuple[DecodeModel, float]:
        """Decode slowed by prefill's share φ of the time; and by what share it slows prefill."""
        share = min(rate * self.per_prompt_s / replicas, 0.999)
        stretched = replace(
            self.decode,
            base_s=self.decode.base_s / (1 - share),
            sequence_s=self.decode.sequence_s / (1 - share),
        )
        batch = stretched.batch(replicas, rate)
        if batch == inf:
            return stretched, 1.0
        # While there is no prompt a step costs base + u·n; only u·n slows a chunk in the same step.
        step = self.decode.base_s + self.decode.sequence_s * batch
        return stretched, min(self.decode.sequence_s * batch / step, 0.999) if step else 0.0

    def load(self, rate: float) -> float:
        """Offered load in replicas."""
        return self.decode.load(rate) + rate * self.per_prompt_s

    def attainment(self, replicas: int, rate: float) -> float:
        """Share of requests within both limits at `rate` requests per second."""
        stretched, slowed = self._parts(replicas, rate)
        tpot = stretched.attainment(replicas, rate)
        if tpot <= 0:
            return 0.0
        inflated = replace(
            self.prefill,
            services=tuple((s / (1 - slowed), share) for s, share in self.prefill.services),
            mean_s=self.prefill.mean_s / (1 - slowed),
        )
        ttft = inflated.attainment(replicas, rate)
        return tpot * ttft

    def in_flight_floor(self, running: float) -> int:
        """Smallest pool in which `running` sequences still meet the limit and fit."""
        return self.decode.in_flight_floor(running)


def colocated_model(
    replica: Replica, work: Work, ttft_limit_s: float, tpot_limit_s: float
) -> ColocatedModel:
    """The model of a colocated pool. Limits are seconds."""
    return ColocatedModel(
        prefill=prefill_model(replica, work, ttft_limit_s),
        decode=decode_model(replica, work, tpot_limit_s),
        per_prompt_s=replica.per_prompt_token_s * work.prompt,
    )
