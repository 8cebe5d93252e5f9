"""The latency objective, where its measurements come from, and who decides the replicas and how."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from argosy_law.goals import FirstToken
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import (
    DURATION_PATTERN,
    Attainment,
    ClassName,
    CronText,
    Duration,
    DurationText,
    MetricsUrl,
    Percent,
    PositiveDurationText,
    ScheduleName,
    Target,
    ZoneName,
)
from argosy_operator.api.model import ApiModel, ValidationRule, cel_matches


class Objective(ApiModel):
    """One latency target."""

    target: Annotated[Target, within("slo.*.target")]
    """The latency that a request must not exceed, such as 200ms or 2s."""


class SloClass(ApiModel):
    """Limits and order of the requests that name this class in the header x-argosy-class."""

    list_key: ClassVar[str | None] = "name"

    name: ClassName
    """The name that requests give. Requests without one are of the class default: the targets of
    slo itself, with priority 0."""
    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    priority: Annotated[int, within("slo.classes[].priority")] = 0
    """Of requests that wait, those of a lower number go first. Default 0."""

    def name_is_free(self) -> bool:
        return self.name != "default"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel="self.name != 'default'",
            holds=name_is_free,
            message="the class default is slo.ttft and slo.tpot: choose another name",
        ),
    )


class Slo(ApiModel):
    """A request is good when it meets both targets. The fleet is sized so that enough are good."""

    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    attainment: Attainment = Percent("90%")
    """The share of requests that must meet both targets. Default 90%: the share that ttftP90 and
    tpotP90 in status describe."""
    first_token: FirstToken = "AtOnce"  # noqa: S105 (a moment, not a secret)
    """When clients of prefill and decode pods get the first token. AtOnce: as soon as its prompt is
    computed. WithinTarget: a decode pod holds it until the answer's next token is computed, as long
    as ttft allows. The KV transfer and the wait for a place in the batch then count for ttft and
    not for tpot, which short answers miss because of them. Auto: WithinTarget while the load needs
    at least a tenth fewer GPUs with it, otherwise AtOnce. It begins after one hold of removals and
    ends after twelve; running gateways follow. Without the policy Goodput, in advisory mode and for
    other engines Auto is AtOnce. Default AtOnce: people read the first token."""
    classes: Annotated[tuple[SloClass, ...], Field(max_length=8)] = ()
    """Classes of requests with other targets, which count as met by their own. The fleet is still
    sized for the targets above. Default: only the class default."""


class Prometheus(ApiModel):
    """The Prometheus that scrapes this fleet."""

    url: MetricsUrl | None = None
    """Its address. Default: the address that the operator was installed with. Any other address
    must be in the operator's allow-list (chart value prometheus.allowed)."""


class Metrics(ApiModel):
    """Where measurements come from and how old they may be."""

    prometheus: Prometheus = Prometheus()
    """The Prometheus that scrapes this fleet."""
    scrape_interval: Annotated[PositiveDurationText, within("metrics.scrapeInterval")] = Duration(
        "15s"
    )
    """How often Prometheus scrapes the pods. Write what the configuration of Prometheus says:
    samples older than three intervals are not used. Default 15s: what the chart of Argosy sets."""
    rate_window: Annotated[PositiveDurationText, within("metrics.rateWindow")] | None = None
    """The window over which rates are computed. Default: four times scrapeInterval, so that one
    missed scrape leaves enough samples."""

    ask_gateways: bool = False
    """True lets the operator ask the gateways themselves, in each autoscaling.interval, for the
    requests that arrived since the last scrape: a burst is seen up to a scrapeInterval earlier.
    Gateways that do not answer within a second count as Prometheus has them. False: they are asked
    only while Prometheus has no metrics. Then replicas are added by what they say, and none is
    removed."""

    @property
    def rate_window_s(self) -> float:
        """The window in seconds, with its default."""
        if self.rate_window is None:
            return 4 * self.scrape_interval.seconds
        return self.rate_window.seconds

    def window_holds_two_scrapes(self) -> bool:
        window = self.rate_window
        return window is None or window.seconds >= 2 * self.scrape_interval.seconds

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".rateWindow",
            cel="!has(self.rateWindow) || "
            # Text that is no duration is refused by its own format rule.
            f"!{cel_matches('self.rateWindow', DURATION_PATTERN)} || "
            f"!{cel_matches('self.scrapeInterval', DURATION_PATTERN)} || "
            "(duration(self.rateWindow) >= "
            "duration(self.scrapeInterval) + duration(self.scrapeInterval))",
            holds=window_holds_two_scrapes,
            message="metrics.rateWindow must be at least twice metrics.scrapeInterval (four times "
            "is better), or rates have no two samples: raise it or leave it out",
        ),
    )


class GpuBudget(ApiModel):
    """The most GPUs that policy Goodput may ask for."""

    max: Annotated[int, within("autoscaling.gpuBudget.max")] | None = None
    """Most GPUs over all roles. Default: no limit beyond replicas.max of each role. A rollout uses
    more, by spec.rollout."""
    weight: Annotated[int, within("autoscaling.gpuBudget.weight")] = 100
    """What a request within slo counts for, where fleets share a GPU budget of their namespace or
    of the operator: GPUs go where they bring the most good requests, each times this weight. Only
    the ratio to the weights of other fleets matters. A fleet whose requests take ten times the GPU
    time holds its own with ten times the weight. Default 100."""


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
    max_step_percent: Annotated[int, within("autoscaling.scaleDown.maxStepPercent")] | None = None
    """Most pods removed from a role in one decision, in percent of the pods that it has, rounded
    down. The larger of maxStepPercent and maxStepPods applies. Default: none, so that maxStepPods
    applies to roles of any size."""
    stabilization: Annotated[DurationText, within("autoscaling.scaleDown.stabilization")] = (
        Duration("300s")
    )
    """How long fewer pods must have been enough before one is removed. Twice the cold start if that
    is longer, because a pod that is missed later takes a cold start to come back. Default 300s:
    on recorded traces shorter ones cost attainment, and move pods up and down more often."""


class ScheduledReplicas(ApiModel):
    """How many pods a role may have while a window is open."""

    min: Annotated[int, within("autoscaling.schedules[].roles.*.min")] | None = None
    """Fewest pods, where that is more than replicas.min. Of several open windows the highest min
    counts, even over the max of another one."""
    max: Annotated[int, within("autoscaling.schedules[].roles.*.max")] | None = None
    """Most pods, where that is less than replicas.max. Of several open windows the lowest max
    counts."""

    def min_is_at_most_max(self) -> bool:
        return self.min is None or self.max is None or self.min <= self.max

    def fits(self, least: int, most: int) -> bool:
        """Whether the role's own minimum and maximum leave room for these."""
        return (self.min is None or self.min <= most) and (self.max is None or self.max >= least)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".min",
            cel="!has(self.min) || !has(self.max) || self.min <= self.max",
            holds=min_is_at_most_max,
            message="min of a scheduled role must not be more than its max: lower min or raise max",
        ),
    )


class ScheduledRoles(ApiModel):
    """The roles that a window is about. Those that the mode does not use may be written."""

    prefill: ScheduledReplicas = ScheduledReplicas()
    """Pods that compute prompts (mode disaggregated)."""
    decode: ScheduledReplicas = ScheduledReplicas()
    """Pods that generate answers (mode disaggregated)."""
    colocated: ScheduledReplicas = ScheduledReplicas()
    """Pods that do both (mode colocated)."""


class Schedule(ApiModel):
    """A window of time that comes again, with bounds of its own."""

    list_key: ClassVar[str | None] = "name"

    name: ScheduleName
    """What decisions and Events call the window, such as office-hours."""
    start: CronText
    """When the window opens, as five cron fields: minute, hour, day of the month, month, day of the
    week. Pods of a higher min are started earlier, by a cold start, so that they are ready then."""
    duration: Annotated[PositiveDurationText, within("autoscaling.schedules[].duration")]
    """How long the window stays open, such as 10h."""
    time_zone: ZoneName = "UTC"
    """The time zone of start, such as Europe/Berlin. Default UTC: a cluster's own clock."""
    roles: ScheduledRoles
    """The bounds of the roles while the window is open."""

    def of(self, role: str) -> ScheduledReplicas:
        bounds: ScheduledReplicas = getattr(self.roles, role)
        return bounds


class ScaleToZero(ApiModel):
    """When a fleet without requests gives back all its engine pods."""

    after: Annotated[PositiveDurationText, within("autoscaling.scaleToZero.after")] = Duration(
        "10m"
    )
    """How long no gateway must have had a request. Default 10m: several times a cold start, which
    the next request waits for."""
    wait: Annotated[PositiveDurationText, within("autoscaling.scaleToZero.wait")] = Duration("5m")
    """How long a request waits in the gateway while the fleet starts from zero; after that it is
    answered with 503. Default 5m: more than the default of coldStart, less than the time-out of the
    OpenAI clients."""


class Autoscaling(ApiModel):
    """Who decides the number of replicas, how often and in which steps."""

    policy: Literal["Goodput", "External", "None"] = "Goodput"
    """Goodput: Argosy computes replicas from slo. External: HPA, KEDA or kubectl scale set the
    replicas of the ServingRoles. None: replicas stay at their minimum."""
    advisory: bool = False
    """True shows what policy Goodput would do, in status.autoscaling.advice, and does not do it:
    others set the replicas of the ServingRoles, as under policy External."""
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
    scale_to_zero: ScaleToZero | None = None
    """Engine pods go while no requests arrive. The gateways stay, hold the next request, and
    replicas.min pods of each role start for it. Default: at least replicas.min pods run always."""
    scale_up: ScaleUp = ScaleUp()
    """How fast replicas may be added."""
    scale_down: ScaleDown = ScaleDown()
    """How fast replicas may be removed."""
    gpu_type_fallback: Annotated[PositiveDurationText, within("autoscaling.gpuTypeFallback")] = (
        Duration("10m")
    )
    """How long a pod may find no node before its role goes on with the next of roles.*.gpuTypes.
    The type without room is not chosen again for a day. Default 10m: longer than most clusters take
    to add a node. Without gpuTypes it does nothing."""
    schedules: Annotated[tuple[Schedule, ...], Field(max_length=16)] = ()
    """Windows of time in which roles have a higher minimum or a lower maximum, such as office hours
    or a launch. They hold with and without slo. A GPU budget holds over them."""

    @property
    def is_by_others(self) -> bool:
        """Whether others set the replicas of the ServingRoles."""
        return self.policy == "External" or self.advisory

    def advice_has_a_law(self) -> bool:
        return not self.advisory or self.policy == "Goodput"

    def advice_is_not_done(self) -> bool:
        return not self.advisory or self.scale_to_zero is None

    def zero_is_ours(self) -> bool:
        return self.scale_to_zero is None or self.policy != "External"

    def requests_outwait_the_start(self) -> bool:
        zero = self.scale_to_zero
        return zero is None or zero.wait.seconds >= self.cold_start.seconds

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".advisory",
            cel="!self.advisory || self.policy == 'Goodput'",
            holds=advice_has_a_law,
            message="autoscaling.advisory shows what policy Goodput would do, and leaves the "
            "ServingRoles to others: write policy: Goodput, or leave advisory out",
        ),
        ValidationRule(
            field=".scaleToZero",
            cel="!has(self.scaleToZero) || !self.advisory",
            holds=advice_is_not_done,
            message="with autoscaling.advisory others set the replicas: leave "
            "autoscaling.scaleToZero out, or leave advisory out",
        ),
        ValidationRule(
            field=".scaleToZero",
            cel="!has(self.scaleToZero) || self.policy != 'External'",
            holds=zero_is_ours,
            message="under policy External the other autoscaler writes the ServingRoles, and may "
            "write 0: leave autoscaling.scaleToZero out, or write policy: Goodput",
        ),
        ValidationRule(
            field=".scaleToZero.wait",
            cel="!has(self.scaleToZero) || "
            f"!{cel_matches('self.scaleToZero.wait', DURATION_PATTERN)} || "
            f"!{cel_matches('self.coldStart', DURATION_PATTERN)} || "
            "duration(self.scaleToZero.wait) >= duration(self.coldStart)",
            holds=requests_outwait_the_start,
            message="autoscaling.scaleToZero.wait is shorter than autoscaling.coldStart (default "
            "180s), so requests would be answered 503 before the first pod is ready: raise wait",
        ),
    )
