"""What a spec says to the scaling law: whether it decides, with what goals, within which bounds."""

from collections.abc import Mapping

from argosy_law.estimate.capacity import MOST_AUTO_TOKENS, prior_of
from argosy_law.goals import (
    SLO,
    Goals,
    Profile,
    RoleGoal,
    Serving,
    StepLimits,
    Windows,
)
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.prices import Offer, Offers
from argosy_operator.api.v1alpha1 import RoleName, ServingDeploymentSpec
from argosy_operator.api.v1alpha1.roles import GpuType

STEP_TOKENS, SEQUENCES = 2048, 256
"""The engine's defaults of `engine.maxNumBatchedTokens`, but on a CPU, and `engine.maxNumSeqs`."""


def by_law(spec: ServingDeploymentSpec) -> bool:
    """Whether the scaling law decides for this fleet. With `advisory` its answer is only shown."""
    return spec.autoscaling.policy == "Goodput" and spec.slo is not None


def at_zero(spec: ServingDeploymentSpec, targets: Mapping[RoleName, int]) -> bool:
    """Whether the fleet has given back its pods until it is used again."""
    return spec.goes_to_zero and bool(targets) and not any(targets.values())


def goals_of(spec: ServingDeploymentSpec) -> Goals:
    """What the user wants and allows, as the scaling law reads it."""
    scaling, slo = spec.autoscaling, spec.slo
    return Goals(
        mode=spec.mode,
        roles=tuple(
            RoleGoal(
                name,
                role.replicas.min,
                role.replicas.max,
                None if kind is None else kind.cost_per_hour.amount,
                "" if kind is None else kind.name,
                None if kind is None else profile_of(kind),
            )
            for name, role in spec.active_roles()
            for kind in (spec.type_of(name),)
        ),
        slo=None
        if slo is None
        else SLO(slo.ttft.target.seconds, slo.tpot.target.seconds, slo.attainment.fraction),
        windows=Windows(
            scrape_s=spec.metrics.scrape_interval.seconds,
            rate_s=spec.metrics.rate_window_s,
            interval_s=scaling.interval.seconds,
            up_hold_s=scaling.scale_up.stabilization.seconds,
            down_hold_s=scaling.scale_down.stabilization.seconds,
            cold_start_s=scaling.cold_start.seconds,
        ),
        steps=StepLimits(
            up_percent=scaling.scale_up.max_step_percent,
            up_pods=scaling.scale_up.max_step_pods,
            down_pods=scaling.scale_down.max_step_pods,
            down_percent=scaling.scale_down.max_step_percent,
        ),
        role_flip=spec.flips_roles,
        gpu_budget=scaling.gpu_budget.max,
        zero_after_s=scaling.scale_to_zero.after.seconds
        if scaling.scale_to_zero is not None and spec.goes_to_zero
        else None,
        # Under policy External the law only advises, if at all.
        policy=scaling.policy if scaling.policy != "External" else "Goodput",
        prior=prior_of(spec.model.uri),
        serving=_serving(spec),
    )


def profile_of(kind: GpuType) -> Profile | None:
    """The constants of a pod on a GPU type; None where the spec does not say them."""
    profile = kind.profile
    if profile is None:
        return None
    return Profile(
        prefill_base_s=profile.prefill_base_ms.seconds,
        per_prompt_token_s=profile.per_prompt_token_ms.seconds,
        decode_base_s=profile.decode_base_ms.seconds,
        per_sequence_s=profile.per_sequence_ms.seconds,
        per_context_token_s=profile.per_context_token_ms.seconds,
        kv_tokens=profile.kv_tokens or 0,
    )


def offers_of(spec: ServingDeploymentSpec) -> Offers:
    """What may serve each role, in the order of its list; empty for a fleet without gpuTypes."""
    prior = prior_of(spec.model.uri)
    return {
        name: tuple(
            Offer(
                kind.name,
                role.resources.gpu if kind.gpu is None else kind.gpu,
                kind.cost_per_hour.amount,
                profile_of(kind) or prior,
            )
            for kind in spec.types_of(name)
        )
        for name, role in spec.active_roles()
        if role.gpu_types
    }


def windows_of(spec: ServingDeploymentSpec) -> tuple[Window, ...]:
    """`spec.autoscaling.schedules`, for the roles of the mode."""
    return tuple(
        Window(
            schedule.name,
            schedule.start,
            schedule.duration.seconds,
            schedule.time_zone,
            tuple(
                Bounds(role, bounds.min, bounds.max)
                for role, _ in spec.active_roles()
                for bounds in (schedule.of(role),)
            ),
        )
        for schedule in spec.autoscaling.schedules
    )


def _serving(spec: ServingDeploymentSpec) -> Serving:
    """How the fleet serves. What the spec leaves to the engine is the engine's default."""
    ordered = spec.routing.queue == "deadline" and spec.slo is not None
    tokens = spec.engine.max_num_batched_tokens or ("auto" if _on_cpus(spec) else STEP_TOKENS)
    return Serving(
        order="deadline" if ordered else "fifo",
        step_tokens=MOST_AUTO_TOKENS if tokens == "auto" else tokens,
        auto_steps=tokens == "auto",
        sequences=spec.engine.max_num_seqs or SEQUENCES,
        first_token=spec.slo.first_token if spec.slo is not None else "AtOnce",
        pulls_first=spec.mode == "disaggregated" and spec.engine.type != "argosy",
    )


def _on_cpus(spec: ServingDeploymentSpec) -> bool:
    """Whether the engines compute on CPUs: neither simulated nor with a GPU in any role."""
    roles = [role for _, role in spec.active_roles()]
    gpus = any(role.resources.gpu or role.gpu_types for role in roles)
    return not gpus and not spec.model.uri.startswith("sim://")
