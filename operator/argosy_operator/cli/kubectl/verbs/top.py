"""`kubectl argosy top [NAME]`: what each pod of one fleet or of all does, by its own metrics.

They come through the API server's proxy of pods (`get pods/proxy`), so no Prometheus is needed.
"""

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
    Role,
)

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.cli.kubectl.views.loads import Load, Scrape
    from argosy_operator.core.fleet.objects import Object

AT_ONCE = 50
"""Pods that are asked at one time: all of them go through one API server."""


def top(
    name: Annotated[
        str | None, typer.Argument(help="One fleet. Default: all of the namespace.")
    ] = None,
    role: Role = None,
    interval: Annotated[
        float, typer.Option(min=0.2, max=60, help="Seconds over which rates are measured.")
    ] = 2.0,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = "table",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show each pod's requests, KV use, tokens per second, TTFT and TPOT (90th percentiles)."""
    from argosy_operator.cli.kubectl.session import ask
    from argosy_operator.cli.kubectl.verbs.status import found, none_found, one_or_all

    one_or_all(name, everywhere=all_namespaces)

    async def show(cluster: "Cluster") -> None:
        fleets = await found(cluster, name, everywhere=all_namespaces)
        pods = await cluster.pods_of(fleets, role)
        rows = await loads(cluster, pods, interval) if pods else []
        place = () if name else ("namespace", "fleet") if all_namespaces else ("fleet",)
        if rows or output in ("json", "yaml"):
            print(_text(rows, fleets, output, place))
        if not fleets:
            print(none_found(everywhere=all_namespaces), file=sys.stderr)
        elif empty := _without(fleets, pods):
            of_role = f" of role {role}" if role else ""
            print(f"No pods{of_role}: {', '.join(empty)}.", file=sys.stderr)

    ask(show, namespace, context, kubeconfig)
    return 0


def _text(
    rows: "list[tuple[Object, Load]]", fleets: "list[Object]", output: str, place: tuple[str, ...]
) -> str:
    from argosy_operator.cli.kubectl.printed import data
    from argosy_operator.cli.kubectl.views.loads import as_data, top_table

    models = {
        (fleet["metadata"]["namespace"], fleet["metadata"]["name"]): str(
            ((fleet.get("spec") or {}).get("model") or {}).get("uri", "")
        )
        for fleet in fleets
    }
    if output in ("json", "yaml"):
        return data(as_data(rows, models), output)
    return top_table(rows, models if output == "wide" else None, place)


def _without(fleets: "list[Object]", pods: "list[Object]") -> list[str]:
    """Names of the fleets that none of the pods is of; with its namespace where fleets are of
    several."""
    from argosy_operator.cli.kubectl.views.loads import fleet_key

    have = {fleet_key(pod) for pod in pods}
    keys = [(str(f["metadata"]["namespace"]), str(f["metadata"]["name"])) for f in fleets]
    several = len({namespace for namespace, _ in keys}) > 1
    return ["/".join(key) if several else key[1] for key in keys if key not in have]


async def loads(
    cluster: "Cluster", pods: "list[Object]", interval: float
) -> "list[tuple[Object, Load]]":
    """Each pod with its work; two scrapes, `interval` seconds apart."""
    from argosy_operator.cli.kubectl.views.loads import load
    from argosy_operator.core.fleet.snapshot import role_of

    before, began = await scrapes(cluster, pods), time.monotonic()
    await asyncio.sleep(interval)
    after = await scrapes(cluster, pods)
    span_s = time.monotonic() - began
    return [
        (pod, load(one, other, span_s, role_of(pod)))
        for pod, one, other in zip(pods, before, after, strict=True)
    ]


async def scrapes(cluster: "Cluster", pods: "list[Object]") -> "list[Scrape | None]":
    """The metrics of each pod; None for one that does not answer, or not with metrics."""
    from argosy_operator.cli.kubectl.views.loads import metrics_port, scrape

    turn = asyncio.Semaphore(AT_ONCE)

    async def one(pod: "Object") -> "Scrape | None":
        async with turn:
            text = await cluster.metrics(pod, metrics_port(pod))
        try:
            return None if text is None else scrape(text)
        except ValueError:
            return None

    return await asyncio.gather(*(one(pod) for pod in pods))
