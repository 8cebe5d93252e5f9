"""How many pods and GPUs a spec may come to, before anything of it runs."""

from dataclasses import dataclass

from argosy_operator.api.v1alpha1 import Role, RoleName, ServingDeploymentSpec
from argosy_operator.core.steps.goals import by_law
from argosy_operator.core.warnings.warning import FleetWarning


@dataclass(frozen=True, slots=True)
class Range:
    """From so many to so many."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"

    def of(self, one: str) -> str:
        """With its noun."""
        return f"{self} {one}" if (self.low, self.high) == (1, 1) else f"{self} {one}s"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a fleet may come to outside of rollouts."""

    pods: dict[RoleName, Range]
    """Engine pods of each role of the mode."""
    gpus: Range
    """GPUs of all of them."""


def forecast(spec: ServingDeploymentSpec) -> Forecast:
    """Pods and GPUs between the fewest and the most that the spec allows."""
    roles = dict(spec.active_roles())
    pods = {name: _pods(spec, name, role) for name, role in roles.items()}
    each = {name: _gpus_of_a_pod(spec, name) for name in roles}
    low = sum(pods[name].low * each[name].low for name in roles)
    high = sum(pods[name].high * each[name].high for name in roles)
    budget = spec.autoscaling.gpu_budget.max
    if budget is not None and by_law(spec):
        # The budget holds over every wish of the law, and leaves each role its minimum.
        least = {name: role.replicas.min for name, role in roles.items()}
        high = min(high, max(budget, sum(least[name] * each[name].high for name in roles)))
        smallest = sum(least[name] * each[name].low for name in roles)
        for name, count in pods.items():
            spare, size = max(budget - smallest, 0), each[name].low
            most = count.high if size == 0 else least[name] + spare // size
            pods[name] = Range(count.low, max(min(count.high, most), count.low))
    return Forecast(pods, Range(low, max(low, high)))


def _pods(spec: ServingDeploymentSpec, name: RoleName, role: Role) -> Range:
    """Fewest and most pods of a role. Where nothing sizes it, only schedules raise the minimum."""
    low, high = role.replicas.min, role.replicas.max
    if not by_law(spec) and not spec.autoscaling.is_by_others:
        raised = [schedule.of(name).min or 0 for schedule in spec.autoscaling.schedules]
        high = min(max([low, *raised]), high)
    return Range(0 if spec.goes_to_zero else low, high)


def _gpus_of_a_pod(spec: ServingDeploymentSpec, name: RoleName) -> Range:
    """GPUs of one pod, on the types that may serve the role."""
    own = spec.role(name).resources.gpu
    sizes = [own if kind.gpu is None else kind.gpu for kind in spec.types_of(name)] or [own]
    return Range(min(sizes), max(sizes))


def predicted(spec: ServingDeploymentSpec) -> FleetWarning:
    """The forecast as a sentence."""
    found = forecast(spec)
    pods = " and ".join(count.of(f"{name} pod") for name, count in found.pods.items())
    if all(count.high == 0 for count in found.pods.values()):
        return FleetWarning(("spec", "roles"), "no engine pods and no GPUs: the fleet is parked")
    gpus = found.gpus.of("GPU") if found.gpus.high else "no GPUs"
    rollout = "; a rollout doubles them for a time"
    return FleetWarning(("spec", "roles"), f"{pods}, {gpus}{rollout}{_gateways(spec)}")


def _gateways(spec: ServingDeploymentSpec) -> str:
    """The gateway pods, as the end of the sentence."""
    scaling, number = spec.routing.autoscaling, spec.routing.replicas
    if scaling is None:
        return f"; {Range(number, number).of('gateway pod')}"
    if scaling.policy == "External":
        return "; as many gateway pods as their own scaler asks for"
    return f"; {Range(scaling.fewest, scaling.max or scaling.fewest).of('gateway pod')}"
