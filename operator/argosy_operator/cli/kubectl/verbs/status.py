"""`kubectl argosy status [NAME]`: fleets, what serves, what clients get and what is not fine."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from argosy_operator.cli.kubectl.options import (
    AllNamespaces,
    Context,
    Kubeconfig,
    Namespace,
    Output,
)

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.core.fleet.objects import Object

LOOK_S = 2.0
"""Between two frames of --watch: the operator writes status no more often."""
CLEAR = "\x1b[H\x1b[2J"


def status(
    name: Annotated[
        str | None, typer.Argument(help="One fleet in detail. Default: all of the namespace.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = "table",
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Print again when something changes.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show fleets: pods that serve, replicas wanted, SLO attainment, what is not fine."""
    from argosy_operator.cli.kubectl.session import ask

    one_or_all(name, everywhere=all_namespaces)

    async def show(cluster: "Cluster") -> None:
        before = ""
        while True:
            fleets = await found(cluster, name, everywhere=all_namespaces)
            text = _text(fleets, output, one=name is not None, everywhere=all_namespaces)
            if text != before:
                print((CLEAR if watch and sys.stdout.isatty() else "") + text, flush=True)
                before = text
            if not watch:
                return
            await asyncio.sleep(LOOK_S)

    ask(show, namespace, context, kubeconfig)
    return 0


def one_or_all(name: str | None, *, everywhere: bool) -> None:
    """Raises CommandError for a name together with -A."""
    from argosy_operator.cli.kubectl.exits import CommandError, Exit

    if name is not None and everywhere:
        raise CommandError("name one fleet or all namespaces, not both: leave out -A", Exit.USAGE)


async def found(cluster: "Cluster", name: str | None, *, everywhere: bool) -> "list[Object]":
    """The fleet of that name, else those of the namespace, or of all."""
    if name is not None:
        return [await cluster.fleet(name)]
    return await cluster.fleets(everywhere=everywhere)


def none_found(*, everywhere: bool) -> str:
    """The sentence for a place without fleets."""
    where = "." if everywhere else " in this namespace; -A shows those of all."
    return f"There are no ServingDeployments{where}"


def _text(fleets: "list[Object]", output: str, *, one: bool, everywhere: bool) -> str:
    from argosy_operator.cli.kubectl.printed import data, items
    from argosy_operator.cli.kubectl.views.fleets import fleet_text, fleets_table

    if output in ("json", "yaml"):
        return data(fleets[0] if one else items(fleets), output)
    if not fleets:
        return none_found(everywhere=everywhere)
    if one and output == "table":
        return fleet_text(fleets[0], time.time())
    return fleets_table(fleets, time.time(), wide=output == "wide", everywhere=everywhere)
