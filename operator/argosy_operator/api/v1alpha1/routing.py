"""How requests reach the pods, who may call them, and how pods leave without losing requests."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import (
    CanaryLevel,
    CanaryShare,
    Duration,
    Percent,
    PositiveDurationText,
    SecretName,
)
from argosy_operator.api.model import ApiModel, PodTemplate, ValidationRule

FEWEST_GATEWAYS = 2
"""routing.autoscaling.min where it is not written."""


class GatewayAutoscaling(ApiModel):
    """Who changes the number of gateway pods while the fleet runs."""

    policy: Literal["CPU", "External"] = "CPU"
    """CPU: Argosy makes a HorizontalPodAutoscaler <fleet>-gateway that keeps the CPU of one gateway
    at 70 % of a core, so that a new one has time to start before the others are full. It needs a
    server of CPU metrics, such as metrics-server, and keeps min gateways without one. External:
    another scaler sets the number through the scale subresource of the Deployment <fleet>-gateway,
    such as an HPA of yours, KEDA or kubectl scale; gateways begin with routing.replicas. Default
    CPU."""
    min: Annotated[int, within("routing.autoscaling.min")] | None = None
    """Fewest gateway pods, with policy CPU. Default 2: one serves while the other is replaced."""
    max: Annotated[int, within("routing.autoscaling.max")] | None = None
    """Most gateway pods; required with policy CPU."""

    @property
    def fewest(self) -> int:
        """Gateway pods with policy CPU, at least."""
        return self.min or FEWEST_GATEWAYS

    def range_has_an_end(self) -> bool:
        return self.policy != "CPU" or self.max is not None

    def others_have_their_own_range(self) -> bool:
        return self.policy != "External" or (self.min is None and self.max is None)

    def range_is_one(self) -> bool:
        return self.max is None or self.max >= self.fewest

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".max",
            cel="self.policy != 'CPU' || has(self.max)",
            holds=range_has_an_end,
            message="routing.autoscaling.max is missing: write the most gateway pods that the "
            "fleet may have, or policy External for a scaler of your own",
        ),
        ValidationRule(
            field=".policy",
            cel="self.policy != 'External' || !(has(self.min) || has(self.max))",
            holds=others_have_their_own_range,
            message="with routing.autoscaling.policy External the other scaler has its own bounds"
            ": leave min and max out, or write policy CPU",
        ),
        ValidationRule(
            field=".max",
            cel=f"!has(self.max) || self.max >= (has(self.min) ? self.min : {FEWEST_GATEWAYS})",
            holds=range_is_one,
            message="routing.autoscaling.max is below min, which is "
            f"{FEWEST_GATEWAYS} where it is not written: raise max, or lower min",
        ),
    )


class Routing(ApiModel):
    """The fleet's gateway."""

    strategy: Literal["leastLoad", "roundRobin", "prefixHash", "kvAware"] = "leastLoad"
    """How the gateway chooses pods. leastLoad: the pod with the least work in flight. roundRobin:
    each pod in turn. prefixHash: prompts that begin alike go to the same pod. kvAware: the pod with
    the soonest first token, given the prompts that it has in its cache."""
    replicas: Annotated[int, within("routing.replicas")] = 2
    """Gateway pods. Another number, such as that of kubectl scale, is put back. With autoscaling
    of policy External: gateway pods of a new fleet, and what RolledOut waits for unless fewer are
    asked for. Default 2: one serves while the other is replaced."""
    autoscaling: GatewayAutoscaling | None = None
    """A range of gateway pods, or a scaler of your own. A change of it restarts no pod. Default:
    their number is replicas."""
    max_queue: Annotated[int, within("routing.maxQueue")] = 1000
    """Most requests that one gateway pod holds. A further one is answered with 429.
    Default 1000: a bound on the gateway's memory that bursts seldom reach."""
    queue: Literal["deadline", "none"] = "deadline"
    """What becomes of a request that no pod can serve within slo.ttft.target. deadline: it waits in
    the gateway, and requests that can still meet the target go first. none: it waits in an engine,
    behind all that came before, as it does in a fleet without slo. Default deadline: at ten times
    what a fleet can serve it answers as many requests in time as before."""
    queue_timeout: Annotated[PositiveDurationText, within("routing.queueTimeout")] = Duration("30s")
    """How long a request waits in the gateway for a pod that can serve it. After that it is
    answered with 503; with queue deadline, and as soon as the wait is seen to be longer, with 429
    and Retry-After. Default 30s: less than the usual time-outs of clients and proxies."""
    shed_ttft_percent: Annotated[int, within("routing.shedTtftPercent")] | None = None
    """Answer at once with 429 and Retry-After when the predicted TTFT exceeds this percentage of
    slo.ttft.target, such as 150. Default: the gateway does not predict."""

    template: PodTemplate | None = None
    """A PodTemplateSpec that is merged over the gateway pods, and over spec.template."""

    @property
    def first_gateways(self) -> int:
        """Gateway pods of a new fleet."""
        scaling = self.autoscaling
        return scaling.fewest if scaling and scaling.policy == "CPU" else self.replicas

    def least_gateways(self, asked: int) -> int:
        """Gateway pods that the spec waits for, where the Deployment has been `asked` for so many.
        Another scaler may ask for fewer than it began with."""
        external = self.autoscaling is not None and self.autoscaling.policy == "External"
        return min(self.replicas, asked) if external else self.first_gateways


class Tls(ApiModel):
    """TLS between the fleet's pods."""

    secret_name: SecretName
    """A Secret of this namespace with tls.crt, tls.key and ca.crt, of the type kubernetes.io/tls.
    All pods of the fleet show its certificate, which must be fit for servers and for clients, and
    take only callers with a certificate of ca.crt. The kubelet mounts it and Argosy never reads it;
    a renewed certificate needs no restart."""


class Security(ApiModel):
    """Who may call the engine pods."""

    verify_peers: bool = True
    """Engine pods take calls only with a service-account token of the fleet's gateways, its decode
    pods or the operator (condition PeersVerified). Pods that were made before an upgrade follow
    with the fleet's next revision. False lets everyone call them who reaches them; a change of it
    replaces the engine pods."""
    tls: Tls | None = None
    """Ports 8000 and 8002 of the engine pods speak only TLS, with certificates on both sides
    (condition TransportSecured). The gateways are replaced first, then the engine pods. Default:
    no TLS."""
    network_policy: bool = True
    """A NetworkPolicy lets only the fleet's gateways connect to port 8000 of its engine pods, and
    only its engine pods to port 8002. Port 8001 (probes, metrics) stays open, and with
    engine.type vllm or sglang port 8000, where their metrics are. It has an effect where the
    cluster's network enforces policies."""


class Canary(ApiModel):
    """A share of the requests goes to the new revision before the old one gives way to it. Needs
    spec.slo: the verdicts of both revisions in the same time are compared."""

    share: CanaryShare = Percent("10%")
    """The share of requests, and of the pods: the new revision gets as many sets as it needs,
    rounded up. From 1% to 50%. Default 10%."""
    for_: Annotated[PositiveDurationText, within("rollout.canary.for")] = Field(
        default=Duration("15m"), alias="for"
    )
    """How long it lasts from when its pods serve. At its end the rollout goes on if the new
    revision is shown to miss at most 5 points more of its requests than the old one; a canary with
    too few requests for that stays. It is lost at any time, as soon as more is shown. Default 15m.
    """
    level: CanaryLevel = Percent("5%")
    """How likely a revision that is as good as the old one may be lost. From 1% to 20%. Default
    5%."""

    @property
    def percent(self) -> int:
        """The share as a number from 1 to 50."""
        return int(self.share.removesuffix("%"))


class Rollout(ApiModel):
    """How pods of a new revision take the place of those that run: after an edit of the model, the
    engine, the mode or the pods. Pods of two revisions never work on one request."""

    strategy: Literal["Paced", "BlueGreen", "Recreate"] = "Paced"
    """Paced: old and new pods change places in steps, within maxSurgeGPUs. A step is a set of pods
    that serves: one colocated pod, or prefill and decode pods in the ratio that the fleet has. The
    last old set leaves when a new one serves. BlueGreen: all new pods start beside the old ones,
    which leave when all of them serve; twice the GPUs. Recreate: all old pods leave before a new
    one starts, and no request is answered until it serves; no more GPUs, also for a single pod.
    Default Paced."""
    max_surge_gpus: Annotated[int, within("rollout.maxSurgeGPUs")] | None = Field(
        default=None, alias="maxSurgeGPUs"
    )
    """GPUs that Paced may use beyond those of the pods that the fleet is to have; a pod without
    GPUs counts as one. With 0 an old set leaves before a new one starts, which takes a fleet of two
    sets or more. Default: the GPUs of one set, so that no step lowers what serves."""
    paused: bool = False
    """True holds a rollout where it is: the pods of both revisions stay, and what the load asks for
    meanwhile is added to the old one. Default False."""
    on_failure: Literal["Rollback", "Hold"] = "Rollback"
    """What happens when a rollout has failed: its canary is lost, a new pod crashes three times, or
    one is not ready in time (spec.progressDeadline). Rollback: the newest other revision of the
    history takes its place (status.refused), until the spec asks for another one. Hold: the rollout
    stays as it is. Default Rollback."""
    canary: Canary | None = None
    """A new revision must win a canary first. Default: none."""

    def canary_has_old_pods(self) -> bool:
        return self.canary is None or self.strategy != "Recreate"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".canary",
            cel="!has(self.canary) || self.strategy != 'Recreate'",
            holds=canary_has_old_pods,
            message="a canary runs beside old pods, and strategy Recreate leaves none: write "
            "strategy: Paced or BlueGreen, or leave canary out",
        ),
    )


class Drain(ApiModel):
    """How pods leave. Pods that have not started, drain already or are not ready leave first; of
    those that serve, pods that hold no KV cache for others, then those with the fewest answers."""

    mode: Literal["finish", "migrate"] = "finish"
    """What the requests of a leaving pod do. finish: they end there. migrate: the gateway moves
    them, streams in the middle of their text included, so that the pod leaves within seconds. A
    stream of a decode pod takes its KV cache along; others cost a prefill elsewhere."""
    timeout: Annotated[PositiveDurationText, within("drain.timeout")] = Duration("300s")
    """How long a leaving pod may finish its answers before it is ended. Default 300s: most answers
    take less. A change applies to pods of the next revision; a Deployment keeps its time-out."""
