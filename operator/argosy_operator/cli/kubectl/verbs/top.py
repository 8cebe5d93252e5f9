"""`kubectl argosy top NAME`: what each pod of a fleet does, by its own metrics.

They come through the API server's proxy of pods (`get pods/proxy`), so no Prometheus is needed.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from argosy_operator.cli.kubectl.options import Context, Kubeconfig, Namespace, Output, Role

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.cli.kubectl.views.loads import Load, Scrape
    from argosy_operator.core.fleet.objects import Object


def top(
    name: Annotated[str, typer.Argument(help="Name of the ServingDeployment.")],
    role: Role = None,
    interval: Annotated[
        float, typer.Option(min=0.2, max=60, help="Seconds over which rates are measured.")
    ] = 2.0,
    namespace: Namespace = None,
    output: Output = "table",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show each pod's requests, KV use, tokens per second, TTFT and TPOT (90th percentiles)."""
    from argosy_operator.cli.kubectl.printed import data
    from argosy_operator.cli.kubectl.session import ask
    from argosy_operator.cli.kubectl.views.loads import as_data, top_table

    async def show(cluster: "Cluster") -> str:
        fleet = await cluster.fleet(name)
        pods = await cluster.pods(fleet, role)
        if not pods:
            return f"{name} has no pods" + (f" of role {role}" if role else "") + "."
        rows = await loads(cluster, pods, interval)
        return data(as_data(rows), output) if output in ("json", "yaml") else top_table(rows)

    print(ask(show, namespace, context, kubeconfig))
    return 0


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

    async def one(pod: "Object") -> "Scrape | None":
        text = await cluster.metrics(pod, metrics_port(pod))
        try:
            return None if text is None else scrape(text)
        except ValueError:
            return None

    return await asyncio.gather(*(one(pod) for pod in pods))
