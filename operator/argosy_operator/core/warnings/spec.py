"""What the API server takes, and what will not do what was meant."""

from collections.abc import Iterator

from argosy_law.estimate.profiles import PRESETS, SCHEME, prior_of
from argosy_operator.api.v1alpha1 import ServingDeployment, ServingDeploymentSpec
from argosy_operator.core.snapshot.objects import Place
from argosy_operator.core.snapshot.template import refusals
from argosy_operator.core.warnings.floors import floors
from argosy_operator.core.warnings.warning import FleetWarning


def warnings(fleet: ServingDeployment) -> Iterator[FleetWarning]:
    """Yield warnings about a valid fleet."""
    spec = fleet.spec
    model = spec.model.uri
    if model.startswith(SCHEME) and prior_of(model) is None:
        yield FleetWarning(
            ("spec", "model", "uri"),
            f"there is no simulated engine of this name: use one of {', '.join(sorted(PRESETS))}",
        )
    for one in refusals(spec):
        yield FleetWarning(one.place, one.sentence, is_error=True)
    yield from _below_floors(spec)
    written = "policy" in spec.autoscaling.model_fields_set
    if written and spec.autoscaling.policy == "Goodput" and spec.slo is None:
        yield FleetWarning(
            ("spec", "autoscaling", "policy"),
            "there is no spec.slo to follow: replicas stay at spec.roles.<role>.replicas.min",
        )
    for role, settings in spec.active_roles():
        if settings.replicas.min == settings.replicas.max and spec.slo is not None:
            yield FleetWarning(
                ("spec", "roles", role, "replicas"),
                f"min and max are both {settings.replicas.min}: the SLO cannot change the number",
            )


def _below_floors(spec: ServingDeploymentSpec) -> Iterator[FleetWarning]:
    """Yield targets, of the SLO and of its classes, that no number of pods meets."""
    if spec.slo is None:
        return
    targets: list[tuple[Place, object]] = [(("spec", "slo"), spec.slo)]
    targets += [(("spec", "slo", "classes", i), one) for i, one in enumerate(spec.slo.classes)]
    for limit, floor in floors(spec):
        for place, of in targets:
            if getattr(of, limit).target.seconds < floor.seconds:
                yield FleetWarning(
                    (*place, limit, "target"),
                    f"is below the engine's floor: {floor.what}, so that no number of pods meets "
                    "it",
                )
