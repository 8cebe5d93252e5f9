"""What a spec that the API server takes will not do, in sentences for `kubectl argosy lint`.

A floor is the least that TTFT or TPOT can be, whatever the number of pods: an engine step without
load. It is known from `gpuTypes[].profile` and from the presets of simulated engines. Where nothing
is known there is no floor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from argosy_law.estimate.capacity import PRESETS, SCHEME, prior_of
from argosy_law.goals import Profile
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment, ServingDeploymentSpec
from argosy_operator.core.snapshot.objects import Place
from argosy_operator.core.snapshot.template import refusals
from argosy_operator.core.steps.goals import profile_of


@dataclass(frozen=True, slots=True)
class FleetWarning:
    """What will not be as it may have been meant."""

    place: Place
    """The field."""
    sentence: str
    is_error: bool = False
    """The API server takes the field, and Argosy does not use it. `kubectl argosy lint` calls it an
    error."""


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


Limit = Literal["ttft", "tpot"]
_STEPS: Mapping[Limit, tuple[str, tuple[RoleName, ...]]] = {
    "ttft": ("a prefill step of an empty prompt", ("prefill", "colocated")),
    "tpot": ("a decode step of an empty batch", ("decode", "colocated")),
}
"""The step whose time the floor is, and the roles that compute it."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that one request can take."""

    seconds: float
    what: str
    """What takes so long, such as "a decode step of an empty batch takes 19.9 ms"."""


def floors(spec: ServingDeploymentSpec) -> Iterator[tuple[Limit, Floor]]:
    """Yield the floor of each limit that is known."""
    for limit, (what, roles) in _STEPS.items():
        for name, _ in spec.active_roles():
            if name not in roles:
                continue
            seconds, source = _by_profile(limit, spec, name)
            if seconds is not None:
                yield limit, Floor(seconds, f"{what} takes {seconds * 1000:.1f} ms{source}")


def _by_profile(
    limit: Limit, spec: ServingDeploymentSpec, role: RoleName
) -> tuple[float | None, str]:
    """Seconds of the step on the fastest type that may serve the role, and which that is. None if
    one of the types has no profile: it may be faster."""
    prior = prior_of(spec.model.uri)
    types = spec.types_of(role)
    if not types:
        return (None if prior is None else _base(limit, prior)), ""
    known = [(profile_of(kind) or prior, kind.name) for kind in types]
    times = [(_base(limit, profile), name) for profile, name in known if profile is not None]
    if len(times) < len(known):
        return None, ""
    seconds, name = min(times)
    return seconds, f" on {name}"


def _base(limit: Limit, profile: Profile) -> float:
    return profile.prefill_base_s if limit == "ttft" else profile.decode_base_s
