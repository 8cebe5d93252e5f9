"""How requests reach the pods, who may call them, and how pods leave without losing requests."""

from typing import Annotated, Literal

from pydantic import Field

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Duration, PositiveDurationText, SecretName
from argosy_operator.api.fixed import Fixed
from argosy_operator.api.model import ApiModel

FIXED = Fixed(
    "routing.gateway cannot change on a live fleet, because its clients must go to another address:"
    " make a second fleet with the other gateway, move the clients, then delete this one"
)


class Routing(ApiModel):
    """The fleet's gateway."""

    gateway: Annotated[Literal["argosy", "epp"], FIXED] = "argosy"
    """What stands between clients and engine pods. argosy: gateway pods of the fleet, behind a
    Service with its name. epp: a gateway of the cluster, such as Envoy; Argosy makes an
    InferencePool with the fleet's name, and an endpoint picker, and of this section nothing else
    counts. It cannot change while the fleet exists."""
    strategy: Literal["leastLoad", "roundRobin", "prefixHash", "kvAware"] = "leastLoad"
    """How the gateway chooses pods. leastLoad: the pod with the least work in flight. roundRobin:
    each pod in turn. prefixHash: prompts that begin alike go to the same pod. kvAware: the pod with
    the soonest first token, given the prompts that it has in its cache."""
    replicas: Annotated[int, within("routing.replicas")] = 2
    """Gateway pods. Default 2: one serves while the other is replaced."""
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


VictimRule = Literal["withoutLeases", "fewestInFlight", "newest", "oldest"]


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
    only its engine pods to port 8002. Port 8001 (probes, metrics) stays open. It has an effect
    where the cluster's network enforces policies."""


class Drain(ApiModel):
    """How pods leave."""

    mode: Literal["finish", "migrate"] = "finish"
    """What the requests of a leaving pod do. finish: they end there. migrate: the gateway moves
    them, streams in the middle of their text included, so that the pod leaves within seconds; each
    costs a prefill elsewhere."""
    victim_order: Annotated[tuple[VictimRule, ...], Field(max_length=4)] = (
        "withoutLeases",
        "fewestInFlight",
        "newest",
    )
    """Which of the serving pods leave first. Of two pods that a rule finds equal, the next one
    decides. withoutLeases: pods that hold no KV cache for others. fewestInFlight: the least answers
    and KV caches. newest, oldest: by age. Pods that have not started, drain already or are not
    ready always leave before. Default: withoutLeases, fewestInFlight, newest."""

    timeout: Annotated[PositiveDurationText, within("drain.timeout")] = Duration("300s")
    """How long a leaving pod may finish its answers before it is ended. Default 300s: most answers
    take less. A change applies to pods of the next revision; a Deployment keeps its time-out."""
