"""llm-d's workload variant autoscaler (WVA), version 2 of its saturation analyzer, under an HPA.

Source: llm-d/llm-d-workload-variant-autoscaler at b08b1c7, internal/engines/analyzers/
saturation_v2/analyzer.go, internal/engines/pipeline/cost_aware_optimizer.go and
internal/interfaces/saturation_scaling.go. Every 60 s the tokens in use and in the queue are held
against what pods can have, min(share of KV, N·(I + O/2)) with N = min(B·O/(I + O), S). A request in
the scheduler's queue counts with its prompt, less what prefix caches have, and a mean answer; here
that is each whose prompt is not computed. The number goes to an HPA as an external metric; the HPA
has its default behavior here, while WVA's chart asks for windows of 240 s both ways and its sample
for none. What WVA learns of pods with a saturated queue is left out: decode pods of ours report no
queue.

Prefill has no rule there. This one is ours: the demand is the replicas that steps keep busy and
those that work off the queue within 60 s, and it is held against a share of the replicas by the
same two thresholds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from argosy_law.decision import Decision
from argosy_law.goals import Goals, Windows
from argosy_law.observe import FleetMetrics, Observations, RoleName, RoleSupply
from argosy_law.signals import validity
from argosy_law.sim.laws import hpa, keda, law
from argosy_law.state import HoldState

INTERVAL_S = 60.0
"""Time from one optimization to the next; the queue of prefill is worked off within it."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is remembered of one role."""

    at: float
    """When the number was made; seconds."""
    replicas: int
    """wva_desired_replicas."""
    held: HoldState | None = None


WvaState = Mapping[RoleName, Published]


@dataclass(frozen=True, slots=True)
class Load:
    """Demand and capacity in one unit: tokens of decode, replicas of prefill."""

    demand: float
    per_replica: float


@dataclass(frozen=True, slots=True)
class Wva:
    """Implements `law.Law`. WVA's defaults are 0.8, 0.85 and 0.7; these did best on the traces of
    docs/figures/autoscaling.md."""

    kv: float = 0.2
    """kvCacheThreshold: share of a replica's KV tokens that may be in use."""
    prefill: float = 0.97
    """Of our rule for prefill: what one replica carries, in replicas that are busy all the time."""
    up: float = 0.85
    """scaleUpThreshold: share of the capacity above which replicas are added."""
    down: float = 0.7
    """scaleDownBoundary: share of the capacity below which replicas are removed."""
    start: WvaState = field(default_factory=dict, init=False)

    def decide(
        self, state: WvaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[WvaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            before = state.get(supply.role)
            held = before.held if before else None
            if before is None or now - before.at >= INTERVAL_S:
                load = self._load(supply, metrics, goals.windows)
                if load is None:
                    answers.append(law.keep_unknown(supply, goals, "the load of the engines"))
                    continue
                before = Published(now, self.recommendation(supply, load))
            wanted = keda.recommendation(supply.desired, before.replicas, 1.0)
            why = f"{before.replicas} published"
            held, one = hpa.behave(held, supply, goals, wanted, now, why)
            after[supply.role] = Published(before.at, before.replicas, held)
            answers.append(one)
        return after, law.decision(now, answers)

    def recommendation(self, supply: RoleSupply, load: Load) -> int:
        """Replicas for a load: as many more as are missing, or as many fewer as are spare.

        Four replicas of 100 tokens each with 380 in use: 380/0.85 - 400 = 47, one more. With 190:
        400 - 190/0.7 = 129, one less. Starting replicas count as capacity on the way up only.
        """
        supplied = (supply.ready + supply.pending) * load.per_replica
        required = load.demand / self.up - supplied
        spare = supply.ready * load.per_replica - load.demand / self.down
        if required > 0:
            return supply.desired + ceil(required / load.per_replica - 1e-9)
        if spare > 0:
            return max(supply.desired - floor(spare / load.per_replica + 1e-9), 1)
        return supply.desired

    def _load(self, supply: RoleSupply, metrics: FleetMetrics, windows: Windows) -> Load | None:
        if supply.role == "prefill":
            return _prefill_load(metrics, windows, self.prefill)
        role = metrics.role(supply.role)
        sequences, tokens = law.queued(role), law.number(role.kv_capacity_tokens)
        if sequences is None or tokens is None:
            return None
        prompt, output = law.number(metrics.prompt_tokens), law.number(metrics.output_tokens)
        context = law.context(role)
        if sequences and context is None:
            return None
        capacity = self.kv * tokens
        if prompt and output:
            capacity = min(capacity, of_batches(prompt, output))
        return Load(sequences * (context or 0.0) + _queued(metrics, prompt, output), capacity)


def of_batches(prompt: float, output: float) -> float:
    """Tokens that a replica holds in a steady state, from its limits of a step.

    2048 tokens a step, prompts of 1000 and answers of 200: 341 sequences, of which 256 fit a batch,
    so 256 · (1000 + 100) = 281,600.
    """
    steady = min(law.STEP_TOKENS * output / (prompt + output), law.SEQUENCES)
    return steady * (prompt + output / 2)


def _queued(metrics: FleetMetrics, prompt: float | None, output: float | None) -> float:
    """Return the tokens that the requests whose prompts are not computed will hold."""
    tokens = law.queued(metrics.role("prefill"))
    if not tokens or not prompt:
        return 0.0
    return tokens + tokens / (prompt * law.computed_share(metrics)) * (output or 0.0)


def _prefill_load(metrics: FleetMetrics, windows: Windows, per_replica: float) -> Load | None:
    """The rule for prefill that is not WVA's."""
    role = metrics.role("prefill")
    share, tokens = law.busy(role, windows), law.queued(role)
    if share is None or tokens is None:
        return None
    each_s = law.prefill_token_s(role)
    if tokens and each_s is None:
        return None
    queued_s = tokens * (each_s or 0.0)
    return Load(share * role.pods_reporting + queued_s / INTERVAL_S, per_replica)
