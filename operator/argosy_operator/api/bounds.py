"""How much a user may ask for: the least and the most of each number and duration of a spec.

The models refuse what is outside, the CRD has the same bounds, and `docs/generate.py` prints both
tables as `docs/reference/bounds.md`. `because` is what a larger or smaller value would cost.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from argosy_operator.api.fields import DURATION_PATTERN, Duration
from argosy_operator.api.model import VALIDATIONS, FieldRule, cel_literals, cel_matches


@dataclass(frozen=True, slots=True)
class DurationBounds(FieldRule):
    """A duration from `least` to `most`, both included."""

    field: str
    """Path below spec; `*` is any role, or any objective, those of classes included."""
    least: str
    most: str
    because: str

    @property
    def message(self) -> str:
        return f"write a duration from {self.least} to {self.most}: {self.because}"

    def check(self, value: Duration) -> Duration:
        if not Duration(self.least).seconds <= value.seconds <= Duration(self.most).seconds:
            raise ValueError(self.message)
        return value

    def constraints(self) -> dict[str, Any]:
        rule = (
            f"!{cel_matches('self', DURATION_PATTERN)} || "
            f"(duration(self) >= duration('{self.least}') && "
            f"duration(self) <= duration('{self.most}'))"
        )
        return {VALIDATIONS: [{"rule": rule, "message": self.message}]}


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """A whole number from `least` to `most`, both included."""

    field: str
    """Path below spec; `*` is any role, `[]` any item."""
    least: int
    most: int
    because: str
    word: str = ""
    """What may be written in place of a number; empty: nothing."""


@dataclass(frozen=True, slots=True)
class NumberOrWord(FieldRule):
    """A whole number within bounds, or one word. Kubernetes calls such a field an IntOrString."""

    bounds: NumberBounds

    @property
    def message(self) -> str:
        least, most, word = self.bounds.least, self.bounds.most, self.bounds.word
        return f'write a whole number from {least} to {most}, or "{word}"'

    def check(self, value: int | str) -> int | str:
        if isinstance(value, bool) or not isinstance(value, int):
            within_bounds = value == self.bounds.word
        else:
            within_bounds = self.bounds.least <= value <= self.bounds.most
        if not within_bounds:
            raise ValueError(self.message)
        return value

    def constraints(self) -> dict[str, Any]:
        rule = (
            f"type(self) == int ? self >= {self.bounds.least} && self <= {self.bounds.most} : "
            f"self in {cel_literals([self.bounds.word])}"
        )
        validations = [{"rule": rule, "message": self.message}]
        return {"x-kubernetes-int-or-string": True, "maxLength": 64, VALIDATIONS: validations}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.constraints()


_QUEUE = "each waiting request uses memory of the gateway"
_STEP = "replicas.max does not allow a larger step"
_TOKENS = "it sets the size of the KV blocks and of the buffers of a step"
_PODS = "the operator lists each pod in every round"

DURATION_BOUNDS: dict[str, DurationBounds] = {
    bound.field: bound
    for bound in (
        DurationBounds(
            "progressDeadline",
            "1s",
            "24h",
            "pods that cannot start make the fleet Stalled only after it",
        ),
        DurationBounds("slo.*.target", "1ms", "10m", "clients do not wait longer"),
        DurationBounds(
            "kvTransfer.timeout",
            "10ms",
            "10m",
            "the prompt keeps its KV blocks for this time",
        ),
        DurationBounds(
            "autoscaling.interval",
            "1s",
            "1h",
            "each decision costs about ten calls to the API server",
        ),
        DurationBounds(
            "rollout.canary.for", "1m", "6h", "verdicts of a longer time are not compared"
        ),
        DurationBounds("autoscaling.coldStart", "1s", "1h", "demand is forecast this far ahead"),
        DurationBounds(
            "autoscaling.gpuTypeFallback",
            "5s",
            "24h",
            "requests miss their targets while pods find no node",
        ),
        DurationBounds(
            "autoscaling.scaleToZero.after",
            "5s",
            "168h",
            "each start from zero costs a cold start",
        ),
        DurationBounds("autoscaling.scaleToZero.wait", "1s", "1h", _QUEUE),
        DurationBounds(
            "autoscaling.scaleUp.stabilization",
            "0s",
            "1h",
            "the operator keeps every need of this time in memory",
        ),
        DurationBounds(
            "autoscaling.scaleDown.stabilization",
            "0s",
            "1h",
            "decisions read all samples of this time",
        ),
        DurationBounds(
            "autoscaling.schedules[].duration",
            "1m",
            "168h",
            "a window that is always open is replicas.min",
        ),
        DurationBounds(
            "metrics.scrapeInterval",
            "1s",
            "5m",
            "samples older than three intervals are not used, and decisions read all samples of "
            "their windows",
        ),
        DurationBounds(
            "metrics.rateWindow",
            "2s",
            "30m",
            "decisions read all samples of three such windows",
        ),
        DurationBounds("routing.queueTimeout", "10ms", "10m", _QUEUE),
        DurationBounds(
            "drain.timeout", "1s", "24h", "a leaving pod may hold its GPUs for this time"
        ),
    )
}

NUMBER_BOUNDS: dict[str, NumberBounds] = {
    bound.field: bound
    for bound in (
        NumberBounds("engine.maxModelLen", 16, 1_048_576, _TOKENS),
        NumberBounds("engine.maxNumSeqs", 1, 4096, _TOKENS),
        NumberBounds("engine.maxNumBatchedTokens", 16, 1_048_576, _TOKENS, word="auto"),
        NumberBounds(
            "engine.maxBodyBytes", 65_536, 268_435_456, "the whole body is kept in memory"
        ),
        NumberBounds("roles.*.replicas.min", 0, 1000, _PODS),
        NumberBounds("roles.*.replicas.max", 0, 1000, _PODS),
        NumberBounds("roles.*.resources.gpu", 0, 64, "nodes do not have more"),
        NumberBounds("gpuTypes[].gpu", 1, 64, "nodes do not have more"),
        NumberBounds("gpuTypes[].profile.kvTokens", 1, 1_000_000_000, _TOKENS),
        NumberBounds("roles.*.parallelism.tensor", 1, 64, "nodes do not have more GPUs"),
        NumberBounds(
            "autoscaling.gpuBudget.max",
            0,
            100_000,
            "clusters do not have more",
        ),
        NumberBounds(
            "autoscaling.gpuBudget.weight", 1, 10_000, "one fleet would outweigh all others"
        ),
        NumberBounds("autoscaling.scaleUp.maxStepPercent", 1, 1000, _STEP),
        NumberBounds("autoscaling.scaleUp.maxStepPods", 1, 1000, _STEP),
        NumberBounds("autoscaling.scaleDown.maxStepPods", 1, 1000, _STEP),
        NumberBounds("autoscaling.scaleDown.maxStepPercent", 1, 100, "a role has no more"),
        NumberBounds("autoscaling.schedules[].roles.*.min", 0, 1000, _PODS),
        NumberBounds("autoscaling.schedules[].roles.*.max", 0, 1000, _PODS),
        NumberBounds("slo.classes[].priority", -100, 100, "a fleet has at most eight classes"),
        NumberBounds("routing.replicas", 1, 64, _PODS),
        NumberBounds("rollout.maxSurgeGPUs", 0, 100_000, "clusters do not have more"),
        NumberBounds("routing.autoscaling.min", 1, 64, _PODS),
        NumberBounds("routing.autoscaling.max", 1, 64, _PODS),
        NumberBounds("routing.shedTtftPercent", 1, 10_000, "a larger value sheds no request"),
        NumberBounds("routing.maxQueue", 1, 1_000_000, _QUEUE),
    )
}


def within(field: str) -> Any:
    """The bounds of a field of the spec, as an annotation of its type."""
    if field in DURATION_BOUNDS:
        return DURATION_BOUNDS[field]
    bounds = NUMBER_BOUNDS[field]
    if bounds.word:
        return NumberOrWord(bounds)
    return Field(ge=bounds.least, le=bounds.most)
