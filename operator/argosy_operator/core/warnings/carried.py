"""How many requests per second the most pods of a spec carry within its SLO, by known profiles.

The models are those by which the law sizes a fleet. Lengths of requests are not known before there
is a request, so a usual one is taken and named.
"""

from collections.abc import Iterator
from math import prod

from argosy_law.estimate import capacity
from argosy_law.estimate.profiles import prior_of
from argosy_law.goals import SLO, Goals, Profile
from argosy_law.size.model import Limits, Model, model_of
from argosy_law.size.work import Work, alike
from argosy_operator.api.v1alpha1 import RoleName, ServingDeploymentSpec
from argosy_operator.core.steps.goals import by_law, goals_of, profile_of
from argosy_operator.core.warnings.forecast import forecast
from argosy_operator.core.warnings.warning import FleetWarning

PROMPT, ANSWER = 1000, 250
"""Tokens of a usual request: near the means of Azure's conversations of 2023, 1155 and 211."""
LEAST, MOST = 1e-3, 1e6
"""Requests per second between which the rate is looked for."""
HALVINGS = 12
"""Of the logarithm of that interval: ln(10⁹)/2¹² = 0.005, and two digits are told."""


def carried(spec: ServingDeploymentSpec) -> Iterator[FleetWarning]:
    """What the fleet at its largest carries, as a sentence; nothing where that is not known."""
    goals = goals_of(spec)
    profiles = [_profile(spec, name) for name, _ in spec.active_roles()]
    if goals.slo is None or not by_law(spec) or goals.policy != "Goodput":
        return
    pods = forecast(spec).pods
    known = [profile for profile in profiles if profile is not None]
    if len(known) < len(profiles) or any(count.high == 0 for count in pods.values()):
        return
    models = _models(goals, goals.slo, known)
    rate = _rate(models, [count.high for count in pods.values()], goals.slo.attainment)
    of = f"of {PROMPT} prompt and {ANSWER} answer tokens within it"
    text = f"no number of pods keeps requests {of}"
    if rate is not None:
        text = f"the most pods carry about {_two_digits(rate)} requests/s {of}"
    yield FleetWarning(("spec", "slo"), text)


def _two_digits(rate: float) -> str:
    """Rounded to two digits and written out: 0.012, 3.4, 250, 2600."""
    rounded = float(f"{rate:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:.2g}"


def _profile(spec: ServingDeploymentSpec, name: RoleName) -> Profile | None:
    """None where it is not known, or where the role may run on one of several types."""
    if len(spec.types_of(name)) > 1:
        return None
    kind = spec.type_of(name)
    own = None if kind is None else profile_of(kind)
    return own or prior_of(spec.model.uri)


def _models(goals: Goals, slo: SLO, profiles: list[Profile]) -> list[Model]:
    work = Work(PROMPT, PROMPT**2, ANSWER, prompts=alike(PROMPT), answers=alike(ANSWER))
    limits = Limits(slo.ttft_s, slo.tpot_s, slo.attainment, order=goals.serving.order)
    found = []
    for goal, profile in zip(goals.roles, profiles, strict=True):
        estimate = capacity.begin(goal.role, profile, slo)
        replica = capacity.replica(estimate, profile.kv_tokens, goals.serving)
        found.append(model_of(goal.role, replica, work, limits))
    return found


def _rate(models: list[Model], replicas: list[int], goal: float) -> float | None:
    """Requests per second at which the replicas just meet the goal; None: at no rate."""

    def met(rate: float) -> bool:
        pools = zip(models, replicas, strict=True)
        return prod(model.attainment(n, rate) for model, n in pools) >= goal

    if not met(LEAST):
        return None
    low, high = LEAST, MOST
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
