"""Rules that span several fields: CEL for the API server, a Python twin, one sentence for people.

`ApiModel` checks the twins of its class when an object is read; `schema.py` writes the CEL into the
CRD at the same place. A property test evaluates both on generated specs: they must agree. CEL
sees the object after defaulting, so a field with a default is always there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from argosy_operator.api.fields import DURATION_PATTERN, cel_string

if TYPE_CHECKING:
    from argosy_operator.api import v1alpha1 as api

# Flags that the operator renders; a second one in engine.args would win or clash silently.
RENDERED_FLAGS = (
    "--model",
    "--served-name",
    "--role",
    "--load-format",
    "--dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--max-batch-size",  # the engine's other word for it
    "--max-num-batched-tokens",
    "--max-num-tokens",
    "--max-body-bytes",
    "--lease-s",
    "--kv-timeout-s",
    "--drain-timeout-s",
    "--host",
    "--port",
    "--admin-port",
    "--kv-port",
    "--termination-message",
)
RENDERED_ENV = ("POD_NAME", "POD_IP", "POD_NAMESPACE")


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """One rule on the class named `of`; `self` in `cel` is an instance of that class.

    `field` is the path below that class which the API server names beside the message.
    """

    name: str
    of: str
    field: str
    cel: str
    holds: Callable[[Any], bool]
    message: str

    def validation(self) -> dict[str, str]:
        """The rule as an entry of x-kubernetes-validations."""
        return {"rule": self.cel, "message": self.message, "fieldPath": self.field}


class RuleError(ValueError):
    """A rule does not hold; the text is what the API server says, too."""


def check(of: str, part: object) -> None:
    """Raise RuleError with the sentences of all rules on `of` that `part` breaks."""
    broken = [rule.message for rule in RULES if rule.of == of and not rule.holds(part)]
    if broken:
        raise RuleError("; ".join(broken))


def _durations(expression: str, *paths: str) -> str:
    """The expression, true where a path is no duration: its own format rule says so already."""
    guards = [f"!{path}.matches({cel_string(DURATION_PATTERN)})" for path in paths]
    return " || ".join([*guards, f"({expression})"])


def _at_least_twice(slow: str, fast: str) -> str:
    return f"duration({slow}) >= duration({fast}) + duration({fast})"


def _pair_zero_together(spec: "api.ServingDeploymentSpec") -> bool:
    prefill, decode = spec.roles.prefill.replicas, spec.roles.decode.replicas
    return spec.mode != "disaggregated" or (
        (prefill.min == 0) == (decode.min == 0) and (prefill.max == 0) == (decode.max == 0)
    )


def _zero_only_when_parked(spec: "api.ServingDeploymentSpec") -> bool:
    return spec.autoscaling.policy != "Goodput" or all(
        role.replicas.min > 0 or role.replicas.max == 0 for _, role in spec.active_roles()
    )


def _budget_covers_minimum(spec: "api.ServingDeploymentSpec") -> bool:
    budget = spec.autoscaling.gpu_budget.max
    least = sum(role.replicas.min * role.resources.gpu for _, role in spec.active_roles())
    return budget is None or budget >= least


def _no_rendered_flag(engine: "api.Engine") -> bool:
    return not any(
        arg == flag or arg.startswith(flag + "=") for arg in engine.args for flag in RENDERED_FLAGS
    )


def _rate_window_spans_scrapes(metrics: "api.Metrics") -> bool:
    window = metrics.rate_window
    return window is None or window.seconds >= 2 * metrics.scrape_interval.seconds


def _cel_list(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(cel_string(text) for text in texts) + "]"


_P, _D, _C = "self.roles.prefill", "self.roles.decode", "self.roles.colocated"
_LEAST = "{0}.replicas.min * {0}.resources.gpu"
_PARKED = "({0}.replicas.min > 0 || {0}.replicas.max == 0)"

RULES: tuple[ValidationRule, ...] = (
    ValidationRule(
        name="fleet-name",
        of="ServingDeployment",
        field=".metadata.name",
        cel=r"self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
        holds=lambda fleet: _is_fleet_name(fleet.metadata.name),
        message="a fleet's name is at most 40 lower-case letters, digits and hyphens and begins "
        "with a letter, because its pods and Services are named after it",
    ),
    ValidationRule(
        name="min-max",
        of="Replicas",
        field=".min",
        cel="self.min <= self.max",
        holds=lambda replicas: replicas.min <= replicas.max,
        message="replicas.min must not be more than replicas.max (default 8): lower min or raise "
        "max",
    ),
    ValidationRule(
        name="pair-zero-together",
        of="ServingDeploymentSpec",
        field=".roles",
        cel="self.mode != 'disaggregated' || "
        f"(({_P}.replicas.min == 0) == ({_D}.replicas.min == 0) && "
        f"({_P}.replicas.max == 0) == ({_D}.replicas.max == 0))",
        holds=_pair_zero_together,
        message="prefill without decode answers nothing: give both roles replicas, or 0 to both",
    ),
    ValidationRule(
        name="zero-only-when-parked",
        of="ServingDeploymentSpec",
        field=".roles",
        cel="self.autoscaling.policy != 'Goodput' || (self.mode == 'disaggregated' "
        f"? {_PARKED.format(_P)} && {_PARKED.format(_D)} : {_PARKED.format(_C)})",
        holds=_zero_only_when_parked,
        message="policy Goodput cannot start from zero pods: write replicas.min: 1, or park the "
        "fleet with min: 0 and max: 0",
    ),
    ValidationRule(
        name="budget-covers-minimum",
        of="ServingDeploymentSpec",
        field=".autoscaling.gpuBudget.max",
        cel="!has(self.autoscaling.gpuBudget.max) || self.autoscaling.gpuBudget.max >= "
        f"(self.mode == 'disaggregated' ? {_LEAST.format(_P)} + {_LEAST.format(_D)} "
        f": {_LEAST.format(_C)})",
        holds=_budget_covers_minimum,
        message="autoscaling.gpuBudget.max is below what the roles' minimum replicas hold "
        "(sum of replicas.min x resources.gpu): raise the budget or lower replicas.min",
    ),
    ValidationRule(
        name="drain-outlives-lease",
        of="ServingDeploymentSpec",
        field=".drain.timeout",
        cel=_durations(
            "duration(self.drain.timeout).getSeconds() > self.kvTransfer.leaseSeconds",
            "self.drain.timeout",
        ),
        holds=lambda spec: int(spec.drain.timeout.seconds) > spec.kv_transfer.lease_seconds,
        message="drain.timeout must be longer than kvTransfer.leaseSeconds, or a leaving prefill "
        "pod would drop caches that decode still reads: raise drain.timeout",
    ),
    ValidationRule(
        name="shedding-needs-slo",
        of="ServingDeploymentSpec",
        field=".routing.shedTtftPercent",
        cel="!has(self.routing.shedTtftPercent) || has(self.slo)",
        holds=lambda spec: spec.routing.shed_ttft_percent is None or spec.slo is not None,
        message="routing.shedTtftPercent is a percentage of slo.ttft.target: set slo, or leave it "
        "out",
    ),
    ValidationRule(
        name="rate-window-spans-scrapes",
        of="Metrics",
        field=".rateWindow",
        cel="!has(self.rateWindow) || "
        + _durations(
            _at_least_twice("self.rateWindow", "self.scrapeInterval"),
            "self.rateWindow",
            "self.scrapeInterval",
        ),
        holds=_rate_window_spans_scrapes,
        message="metrics.rateWindow must be at least twice metrics.scrapeInterval (four times is "
        "better), or rates have no two samples: raise it or leave it out",
    ),
    ValidationRule(
        name="no-rendered-flag",
        of="Engine",
        field=".args",
        cel=f"!has(self.args) || !self.args.exists(a, {_cel_list(RENDERED_FLAGS)}"
        ".exists(f, a == f || a.startsWith(f + '=')))",
        holds=_no_rendered_flag,
        message="engine.args repeats a flag that Argosy writes itself (model, role, ports, "
        "lengths, time-outs): use the field of the spec instead",
    ),
    ValidationRule(
        name="no-rendered-env",
        of="EnvVar",
        field=".name",
        cel=f"!(self.name in {_cel_list(RENDERED_ENV)})",
        holds=lambda env: env.name not in RENDERED_ENV,
        message="POD_NAME, POD_IP and POD_NAMESPACE are set by Argosy: choose another name",
    ),
)


def _is_fleet_name(name: str) -> bool:
    edges = name[:1].isascii() and name[:1].islower() and not name.endswith("-")
    return edges and len(name) <= 40 and all(c in _NAME_CHARACTERS for c in name)


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
