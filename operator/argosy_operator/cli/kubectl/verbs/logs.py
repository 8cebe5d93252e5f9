"""`kubectl argosy logs NAME`: the logs of a fleet's pods, each line behind its pod's name."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy_operator.cli.kubectl.options import Context, Kubeconfig, Namespace, Role

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.core.fleet.objects import Object

LOOK_S = 2.0
"""With -f: how often to look for new pods, and for logs that began again."""


def logs(
    name: Annotated[str, typer.Argument(help="Name of the ServingDeployment.")],
    role: Role = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on, also with pods that are new.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(help="Only lines that are newer, such as 30s, 10m or 2h.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Lines from the end of each log. Default: all.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("-p", "--previous", help="Of the containers that ran before.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Print the logs of a fleet's pods, of all or of one role."""
    from argosy_operator.cli.kubectl.exits import CommandError, Exit
    from argosy_operator.cli.kubectl.session import ask
    from argosy_operator.cli.kubectl.views.lines import seconds_of

    if follow and previous:
        raise CommandError("a container that has ended writes no more: leave out -f", Exit.USAGE)
    options: dict[str, Any] = {"follow": follow or None, "previous": previous or None}
    if since is not None:
        options["since_seconds"] = seconds_of(since)
    if tail is not None:
        options["tail_lines"] = tail

    async def show(cluster: "Cluster") -> int:
        fleet = await cluster.fleet(name)
        pods = await cluster.pods(fleet, role)
        if follow:
            await _follow(cluster, fleet, role, options)
        elif not pods:
            raise CommandError(f"{name} has no pods" + (f" of role {role}" if role else ""))
        for pod in pods:
            await _print(cluster, pod, options)
        return 0

    return ask(show, namespace, context, kubeconfig)


async def _follow(
    cluster: "Cluster", fleet: "Object", role: str | None, options: dict[str, Any]
) -> None:
    """Follow every pod of the fleet until interrupted; new ones are followed from their start."""
    running = dict[str, asyncio.Task[None]]()
    given = options
    while True:
        for pod in await cluster.pods(fleet, role):
            uid = pod["metadata"]["uid"]
            if uid not in running:
                running[uid] = asyncio.create_task(_print(cluster, pod, given, follows=True))
            elif running[uid].done():
                running[uid].result()  # raises what ended it, such as a missing right
        given = {"follow": True}
        await asyncio.sleep(LOOK_S)


async def _print(
    cluster: "Cluster", pod: "Object", options: dict[str, Any], *, follows: bool = False
) -> None:
    from argosy_operator.cli.kubectl.views.lines import container_of, prefixed
    from argosy_operator.core.fleet.actions import ErrorKind
    from argosy_operator.ports.protocols import ClusterError

    while True:
        try:
            async for line in cluster.logs(pod, container_of(pod), **options):
                print(prefixed(pod, line), flush=follows)
            return
        except ClusterError as error:
            # 400: the container waits to start; 404: the pod is gone.
            if error.kind not in (ErrorKind.INVALID, ErrorKind.NOT_FOUND):
                raise
            if not follows:
                print(prefixed(pod, f"({error.message})"))
                return
            if error.kind is ErrorKind.NOT_FOUND:
                return
        await asyncio.sleep(LOOK_S)
