"""Who decides the number of replicas, how often and in which steps."""

from typing import Annotated, Literal

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Duration, DurationText, PositiveDurationText
from argosy_operator.api.model import ApiModel


class GpuBudget(ApiModel):
    """The most GPUs that policy Goodput may ask for."""

    max: Annotated[int, within("autoscaling.gpuBudget.max")] | None = None
    """Most GPUs over all roles. Default: no limit beyond replicas.max of each role. During a
    rollout the pods of the old revision hold their GPUs in addition."""


class ScaleUp(ApiModel):
    """How fast replicas may be added."""

    max_step_percent: Annotated[int, within("autoscaling.scaleUp.maxStepPercent")] = 100
    """Most pods added to a role in one decision, in percent of the pods that it has. The larger of
    maxStepPercent and maxStepPods applies. Default 100: a role may double."""
    max_step_pods: Annotated[int, within("autoscaling.scaleUp.maxStepPods")] = 4
    """Most pods added to a role in one decision, in pods. Lets a small role grow by more than its
    percentage."""
    stabilization: Annotated[DurationText, within("autoscaling.scaleUp.stabilization")] = Duration(
        "0s"
    )
    """How long more pods must have been needed before they are added. Default 0s: requests miss
    their targets while the fleet waits."""


class ScaleDown(ApiModel):
    """How fast replicas may be removed."""

    max_step_pods: Annotated[int, within("autoscaling.scaleDown.maxStepPods")] = 1
    """Most pods removed from a role in one decision. Default 1: the effect of each removal is
    measured before the next."""
    stabilization: Annotated[DurationText, within("autoscaling.scaleDown.stabilization")] = (
        Duration("240s")
    )
    """How long fewer pods must have been enough before one is removed. Twice the cold start if that
    is longer, because a pod that is missed later takes a cold start to come back. Default 240s:
    the longer of the two for cold starts below two minutes."""


class Autoscaling(ApiModel):
    """Who decides the number of replicas, how often and in which steps."""

    policy: Literal["Goodput", "External", "None"] = "Goodput"
    """Goodput: Argosy computes replicas from slo. External: HPA, KEDA or kubectl scale set the
    replicas of the ServingRoles. None: replicas stay at their minimum."""
    interval: Annotated[PositiveDurationText, within("autoscaling.interval")] = Duration("15s")
    """Time between two decisions. Default 15s: the default of metrics.scrapeInterval; nothing new
    is known earlier."""
    cold_start: Annotated[PositiveDurationText, within("autoscaling.coldStart")] = Duration("180s")
    """Time from a pod's creation until it is ready, as long as none has been measured. Demand is
    forecast this far ahead. Default 180s: enough to pull an image and to read tens of gigabytes of
    weights."""
    gpu_budget: GpuBudget = GpuBudget()
    """The most GPUs that policy Goodput may ask for."""
    role_flip: bool = False
    """True lets a prefill pod that is to leave become a decode pod that is to come, and back, with
    its weights loaded (mode disaggregated). Both roles must have the same resources. The pods read
    their role from a file, so a change of this field replaces them."""
    scale_up: ScaleUp = ScaleUp()
    """How fast replicas may be added."""
    scale_down: ScaleDown = ScaleDown()
    """How fast replicas may be removed."""
