"""`kubectl argosy drain POD`: an engine pod takes no new requests, and its answers end whole.

The mark is the annotation that the operator writes itself: gateways choose the pod no more.
"""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from argosy_operator.cli.kubectl.options import Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.core.fleet.objects import Object

LOOK_S = 1.0
QUIET_LOOKS = 3
"""Looks in a row without a stream: gateways learn of the mark within one, and what they had sent by
then has arrived by the next."""


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
    from argosy_operator.cli.kubectl.exits import CommandError, Exit
    from argosy_operator.cli.kubectl.session import ask
    from argosy_operator.cli.kubectl.views.lines import seconds_of

    limit_s = seconds_of(timeout)
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


async def _engine_pod(cluster: "Cluster", name: str) -> "Object":
    """The pod, if it is an engine pod that a fleet owns. Raises CommandError that says why not."""
    from argosy_operator.cli.kubectl.exits import CommandError
    from argosy_operator.cli.kubectl.views.drains import fleet_of, left_serving, refusal
    from argosy_operator.core.fleet import names

    found = await cluster.objects.get("Pod", cluster.namespace, name)
    pods, fleet = list["Object"](), None
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


async def _undo(cluster: "Cluster", pod: "Object") -> int:
    from argosy_operator.cli.kubectl.exits import CommandError
    from argosy_operator.cli.kubectl.views.drains import by_operator
    from argosy_operator.core.fleet import names

    if by_operator(pod):
        raise CommandError(
            f"the operator drains {pod['metadata']['name']}, because the fleet needs fewer pods or "
            "rolls out: raise the role's replicas instead"
        )
    await cluster.annotate(pod, {names.DRAIN: None})
    print(f"{pod['metadata']['name']} takes requests again.")
    return 0


async def _mark(cluster: "Cluster", pod: "Object") -> None:
    """Mark it, unless it is marked already: the time of a mark is when its drain began."""
    from argosy_operator.core.fleet import names
    from argosy_operator.core.fleet.objects import rfc3339

    if names.DRAIN not in (pod["metadata"].get("annotations") or {}):
        await cluster.annotate(pod, {names.DRAIN: rfc3339(time.time())})


async def _emptied(cluster: "Cluster", pod: "Object", limit_s: float) -> None:
    """Return when no stream is left on the pod, or it is gone. Raises CommandError at the limit."""
    from argosy_operator.cli.kubectl.exits import CommandError
    from argosy_operator.cli.kubectl.verbs.top import scrapes
    from argosy_operator.cli.kubectl.views.drains import progress
    from argosy_operator.cli.kubectl.views.loads import Load, load
    from argosy_operator.core.fleet.snapshot import role_of

    name, until, quiet, said = pod["metadata"]["name"], time.monotonic() + limit_s, 0, ""
    while quiet < QUIET_LOOKS:
        (seen,) = await scrapes(cluster, [pod])
        work = Load() if seen is None else load(None, seen, 0.0, role_of(pod))
        if seen is None:
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
