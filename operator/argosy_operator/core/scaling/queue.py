"""Policy Queue: replicas towards a target of queued prompt tokens and of sequences per replica.

For fleets without an SLO, or whose engines are not to be modelled. The formula is the
HorizontalPodAutoscaler's: the total over the target, unless it is within a tolerance of what the
present replicas should have (Kubernetes, pkg/controller/podautoscaler/replica_calculator.go).
`decide` calls it in the place of sizes; holds, steps, bounds and gates are those of Goodput.
"""

from dataclasses import dataclass
from math import ceil

from argosy_operator.core.scaling.pace.gates import RoleView
from argosy_operator.core.scaling.signals import lengths
from argosy_operator.core.scaling.size.model import MOST_REPLICAS

TOLERANCE = 0.1
"""A total within 1 ± 0.1 of what the replicas should have changes nothing."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a fleet has to do now."""

    prompt_tokens: float
    """Of prompts that wait in gateways or engines, or are being computed."""
    sequences: float
    """Requests that decode, and those of the prompts."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many replicas a role should have."""

    replicas: int
    why: str
    """What it was computed from, for users."""


def waiting(view: RoleView) -> Waiting:
    """Prompts count for each role: they may wait for room in decode."""
    tokens = max(role.gauges.outstanding_prompt_tokens or 0.0 for role in view.state.roles)
    prompt = lengths.work(view.state.lengths, view.metrics).computed
    return Waiting(tokens, (view.role.gauges.running or 0.0) + tokens / prompt)


def wanted(view: RoleView) -> Wanted:
    """The replicas of this role: prefill by tokens, decode by sequences, colocated by both."""
    now, targets, current = waiting(view), view.inputs.goals.queue, view.supply.desired
    by_tokens = Wanted(
        recommended(now.prompt_tokens, targets.prompt_tokens, current),
        f"{now.prompt_tokens:.0f} prompt tokens wait or are computed, and "
        f"{targets.prompt_tokens} per replica are the target",
    )
    by_sequences = Wanted(
        recommended(now.sequences, targets.sequences, current),
        f"{now.sequences:.0f} requests wait or run, and {targets.sequences} per replica are the "
        "target",
    )
    match view.name:
        case "prefill":
            return by_tokens
        case "decode":
            return by_sequences
        case "colocated":
            return max(by_tokens, by_sequences, key=lambda one: one.replicas)


def recommended(total: float, target: float, current: int) -> int:
    """Replicas for a total, at least 1.

    Three replicas and a target of 24: 80 sequences are 1.11 of 72, so ceil(80/24) = 4. With 79 the
    ratio is 1.097, within the tolerance: 3.
    """
    if abs(total / target - current) <= TOLERANCE * current + 1e-9:
        return max(current, 1)
    return min(max(ceil(total / target - 1e-9), 1), MOST_REPLICAS)


def numbers(view: RoleView) -> dict[str, float]:
    """What was used, by name with unit."""
    now, targets = waiting(view), view.inputs.goals.queue
    found = {
        "queued_prompt_tokens": now.prompt_tokens,
        f"{view.name}_sequences": now.sequences,
        "target_prompt_tokens": float(targets.prompt_tokens),
        "target_sequences": float(targets.sequences),
    }
    return {name: float(f"{number:.6g}") for name, number in found.items()}
