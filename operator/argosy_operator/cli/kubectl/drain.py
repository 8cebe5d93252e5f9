"""`kubectl argosy drain POD`: an engine pod takes no new requests, and its answers end whole.

The mark is the annotation that the operator writes itself: gateways choose the pod no more. What
the pod still computes comes from its own metrics through the API server's proxy (`get pods/proxy`).
"""

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from argosy_operator.cli.kubectl.command import CommandError, Context, Exit, Kubeconfig, Namespace
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, rfc3339
from argosy_operator.core.snapshot.pods import pod_of
from argosy_operator.core.snapshot.snapshot import role_of

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster

LOOK_S = 1.0
QUIET_LOOKS = 3
"""Looks in a row without a stream: gateways learn of the mark within one, and what they had sent by
then has arrived by the next."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_LEASES = ("argosy_kv_leases_active",)


def drain(
    pod: Annotated[str, typer.Argument(help="Name of the engine pod.")],
    timeout: Annotated[
        str, typer.Option(help="How long to wait for its answers to end, such as 90s or 10m.")
    ] = "10m",
    undo: Annotated[bool, typer.Option("--undo", help="Let it take requests again.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it once it is empty; another replaces it.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Drain one engine pod: no new requests, and wait until none is left on it."""
    from argosy_operator.cli.kubectl.session import ask

    limit_s = parse_duration(timeout)
    if undo and delete:
        raise CommandError("--undo and --delete are opposites: write one of them", Exit.USAGE)

    async def act(cluster: "Cluster") -> int:
        found = await _engine_pod(cluster, pod)
        if undo:
            return await _undo(cluster, found)
        await _mark(cluster, found)
        await _emptied(cluster, found, limit_s)
        if delete:
            await cluster.delete(found)
            print(f"{pod} was empty and is deleted; its Deployment starts another.")
        else:
            print(
                f"{pod} is empty. `kubectl delete pod {pod} -n {cluster.namespace}` replaces it; "
                f"`kubectl argosy drain {pod} --undo` lets it take requests again."
            )
        return 0

    return ask(act, namespace, context, kubeconfig)


async def _engine_pod(cluster: "Cluster", name: str) -> Object:
    """The pod, if it is an engine pod that a fleet owns. Raises CommandError that says why not."""
    found = await cluster.objects.get("Pod", cluster.namespace, name)
    pods, fleet = list[Object](), None
    if found is None:
        pods = await cluster.objects.list("Pod", cluster.namespace, names.FLEET)
    elif (of := fleet_of(found)) is not None:
        fleet = await cluster.objects.get("ServingDeployment", cluster.namespace, of)
    if fleet is not None:
        pods = await cluster.pods(fleet)
    why = refusal(name, cluster.namespace, found, pods)
    if found is None or why is not None:
        raise CommandError(why or "")
    if (alone := left_serving(found, pods)) is not None:
        print(alone, file=sys.stderr)
    return found


async def _undo(cluster: "Cluster", pod: Object) -> int:
    if by_operator(pod):
        raise CommandError(
            f"the operator drains {pod['metadata']['name']}, because the fleet needs fewer pods or "
            "rolls out: raise the role's replicas instead"
        )
    await cluster.annotate(pod, {names.DRAIN: None})
    print(f"{pod['metadata']['name']} takes requests again.")
    return 0


async def _mark(cluster: "Cluster", pod: Object) -> None:
    """Mark it, unless it is marked already: the time of a mark is when its drain began."""
    if names.DRAIN not in (pod["metadata"].get("annotations") or {}):
        await cluster.annotate(pod, {names.DRAIN: rfc3339(time.time())})


async def _emptied(cluster: "Cluster", pod: Object, limit_s: float) -> None:
    """Return when no stream is left on the pod, or it is gone. Raises CommandError at the limit."""
    name, until, quiet, said = pod["metadata"]["name"], time.monotonic() + limit_s, 0, ""
    while quiet < QUIET_LOOKS:
        page = await cluster.metrics(pod, metrics_port(pod))
        work = Work() if page is None else read_work(page)
        if page is None:
            now = await cluster.objects.get("Pod", cluster.namespace, name)
            if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"]:
                return
        quiet = quiet + 1 if work.streams == 0 else 0
        if (text := progress(name, work)) != said:
            print(text, file=sys.stderr, flush=True)
            said = text
        if quiet < QUIET_LOOKS and time.monotonic() >= until:
            raise CommandError(
                f"{text}, after {limit_s:.0f} s. It keeps its mark and drains on: give a longer "
                f"--timeout, or let it take requests again with --undo"
            )
        await asyncio.sleep(LOOK_S if quiet < QUIET_LOOKS else 0)


def parse_duration(text: str) -> int:
    """Parse 90s, 10m or 1h30m as whole seconds, 1 at least. Raises CommandError."""
    parts = _PART.findall(text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        raise CommandError(f"{text!r} is no duration: write 30s, 10m or 2h", Exit.USAGE)
    return max(1, round(sum(float(number) * _SECONDS[unit] for number, unit in parts)))


@dataclass(frozen=True, slots=True)
class Work:
    """What a pod still has to do. None: its metrics do not say."""

    running: float | None = None
    waiting: float | None = None
    leases: float | None = None
    """Prompts whose KV it holds for another pod."""

    @property
    def streams(self) -> float | None:
        """What must end before the pod may leave; None if it does not say."""
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting + (self.leases or 0.0)


def read_work(page: str) -> Work:
    """Read the metrics page of an engine: Argosy's own, vLLM's or SGLang's."""
    from prometheus_client.parser import text_string_to_metric_families

    sums = dict[str, float]()
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except ValueError:
        return Work()

    def first(series: Sequence[str]) -> float | None:
        return next((sums[name] for name in series if name in sums), None)

    return Work(first(_RUNNING), first(_WAITING), first(_LEASES))


def metrics_port(pod: Object) -> int:
    """Return the port that the pod's annotation gives to Prometheus, else the admin port."""
    port = (pod["metadata"].get("annotations") or {}).get("prometheus.io/port", "")
    return int(port) if port.isdecimal() else names.ADMIN_PORT


def fleet_of(pod: Object) -> str | None:
    """Return the fleet that the pod's label names."""
    name = (pod["metadata"].get("labels") or {}).get(names.FLEET)
    return None if name is None else str(name)


def refusal(name: str, namespace: str, pod: Object | None, pods: Sequence[Object]) -> str | None:
    """Return why the pod cannot be drained; None if it can. `pods` are those that its fleet owns,
    or, for a pod that is not there, those that have the label of a fleet."""
    if pod is None:
        engines = sorted(p["metadata"]["name"] for p in pods if role_of(p) in names.ENGINE_ROLES)
        there = f"its engine pods are {', '.join(engines)}" if engines else "it has no engine pods"
        return f"there is no pod {name} in namespace {namespace}: {there}"
    if fleet_of(pod) is None:
        return f"{name} is no pod of a fleet: it has no label {names.FLEET}"
    if all(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in pods):
        return (
            f"{name} carries the label of fleet {fleet_of(pod)} and does not belong to it: no "
            "Deployment of the fleet made it"
        )
    if role_of(pod) == names.GATEWAY_ROLE:
        return (
            f"{name} is a {role_of(pod)} pod: it drains by itself when it is deleted "
            f"(`kubectl delete pod {name}`), because its Service sends it nothing more"
        )
    return None


def by_operator(pod: Object) -> bool:
    """Return whether the operator chose the pod to leave: no person may take that mark back."""
    return pod_of(pod).victim


def left_serving(pod: Object, pods: Sequence[Object]) -> str | None:
    """Warn if no other pod of the role serves."""
    role, uid = role_of(pod), pod["metadata"]["uid"]
    others = [p for p in pods if role_of(p) == role and p["metadata"]["uid"] != uid]
    if any(one.ready and not (one.draining or one.terminating) for one in map(pod_of, others)):
        return None
    return (
        f"warning: no other {role} pod of {fleet_of(pod)} serves; requests wait, or are refused, "
        "until one does"
    )


def progress(name: str, work: Work) -> str:
    """Say what the pod still has to do, without a full stop."""
    if work.streams is None:
        return f"{name} does not say what it still computes"
    if work.streams == 0:
        return f"{name} has no requests"
    held = f", and holds the KV of {work.leases:.0f} prompts" if work.leases else ""
    requests = (work.running or 0) + (work.waiting or 0)
    return f"{name} still has {requests:.0f} requests{held}"
