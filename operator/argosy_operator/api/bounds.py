"""How much a user may ask for: least and most of each number and duration of a spec, in a table.

A field that costs the operator time or memory, or a pod its life, has a bound; `costs` says what
would happen without it. The models refuse what lies outside, `schema.py` writes the same into the
CRD, and `docs/generate.py` prints the table as `docs/bounds.md`.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from argosy_operator.api import cel
from argosy_operator.api.fields import DURATION_PATTERN, Duration
from argosy_operator.api.rule import VALIDATIONS, FieldRule


@dataclass(frozen=True, slots=True)
class DurationBounds(FieldRule):
    """A duration from `least` to `most`, both included. As an annotation it refuses others."""

    field: str
    least: str
    most: str
    costs: str

    @property
    def message(self) -> str:
        return f"write a duration from {self.least} to {self.most}: {self.costs}"

    def check(self, value: Duration) -> Duration:
        if not Duration(self.least).seconds <= value.seconds <= Duration(self.most).seconds:
            raise ValueError(self.message)
        return value

    def constraints(self) -> dict[str, Any]:
        rule = (
            f"!{cel.matches('self', DURATION_PATTERN)} || "
            f"(duration(self) >= duration('{self.least}') && "
            f"duration(self) <= duration('{self.most}'))"
        )
        return {VALIDATIONS: [{"rule": rule, "message": self.message}]}


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """A whole number from `least` to `most`, both included."""

    field: str
    least: int
    most: int
    costs: str


_QUEUE = "each waiting request holds memory of the gateway"
_STEP = "more at once is what replicas.max allows anyway"
_TOKENS = "KV blocks and buffers of a step are sized by it"
_PODS = "each pod is listed in every round"

DURATION_BOUNDS: dict[str, DurationBounds] = {
    bound.field: bound
    for bound in (
        DurationBounds("slo.*.target", "1ms", "10m", "no client waits longer"),
        DurationBounds(
            "kvTransfer.timeout", "10ms", "10m", "the prompt's place in the batch waits as long"
        ),
        DurationBounds(
            "autoscaling.interval",
            "1s",
            "1h",
            "each decision is about ten calls to the API server and four queries to Prometheus",
        ),
        DurationBounds("autoscaling.coldStart", "1s", "1h", "demand is forecast so far ahead"),
        DurationBounds(
            "autoscaling.scaleUp.stabilization", "0s", "1h", "every need in it is remembered"
        ),
        DurationBounds(
            "autoscaling.scaleDown.stabilization",
            "0s",
            "1h",
            "every sample in it is read from Prometheus for each decision",
        ),
        DurationBounds(
            "metrics.scrapeInterval",
            "1s",
            "5m",
            "samples older than three intervals are not "
            "used, and every one in the windows is read for each decision",
        ),
        DurationBounds(
            "metrics.rateWindow",
            "2s",
            "30m",
            "every sample in three such windows is read from Prometheus for each decision",
        ),
        DurationBounds("routing.queueTimeout", "10ms", "10m", _QUEUE),
        DurationBounds("drain.timeout", "1s", "24h", "a leaving pod holds its GPUs as long"),
    )
}

NUMBER_BOUNDS: dict[str, NumberBounds] = {
    bound.field: bound
    for bound in (
        NumberBounds("engine.maxModelLen", 16, 1_048_576, _TOKENS),
        NumberBounds("engine.maxNumSeqs", 1, 4096, _TOKENS),
        NumberBounds("engine.maxNumBatchedTokens", 16, 1_048_576, _TOKENS),
        NumberBounds(
            "engine.maxBodyBytes", 65_536, 268_435_456, "a body is held in memory as a whole"
        ),
        NumberBounds("roles.*.replicas.min", 0, 1000, _PODS),
        NumberBounds("roles.*.replicas.max", 0, 1000, _PODS),
        NumberBounds("roles.*.resources.gpu", 0, 64, "no node has more"),
        NumberBounds(
            "kvTransfer.leaseSeconds",
            1,
            3600,
            "prefill holds the blocks of a prompt that is not fetched as long",
        ),
        NumberBounds("autoscaling.gpuBudget.max", 0, 100_000, "no fleet can hold more"),
        NumberBounds("autoscaling.scaleUp.maxStepPercent", 1, 1000, _STEP),
        NumberBounds("autoscaling.scaleUp.maxStepPods", 1, 1000, _STEP),
        NumberBounds("autoscaling.scaleDown.maxStepPods", 1, 1000, _STEP),
        NumberBounds("routing.replicas", 1, 64, _PODS),
        NumberBounds("routing.shedTtftPercent", 1, 10_000, "beyond that nothing is shed"),
        NumberBounds("routing.maxQueue", 1, 1_000_000, _QUEUE),
    )
}


def within(field: str) -> Any:
    """The bounds of a field of the spec, as an annotation of its type."""
    if field in DURATION_BOUNDS:
        return DURATION_BOUNDS[field]
    bounds = NUMBER_BOUNDS[field]
    return Field(ge=bounds.least, le=bounds.most)
