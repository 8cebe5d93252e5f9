"""`kubectl argosy explain NAME`: reads one ServingDeployment and prints its last decision.

With `--plan` it prints what the operator would do next instead (`dry_run.py`).
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from argosy_operator.core.fleet.objects import Object
    from argosy_operator.ports.protocols import Cluster


def explain(
    name: Annotated[str, typer.Argument(help="Name of the ServingDeployment.")],
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Default: the current context's.")
    ] = None,
    output: Annotated[
        Literal["text", "json"],
        typer.Option("-o", help="json prints status.autoscaling, or the plan."),
    ] = "text",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what the operator would do next, step by step.")
    ] = False,
    engine_image: Annotated[
        str | None,
        typer.Option(help="With --plan: the operator's default. Default: as the fleet's pods."),
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(help="Default: $KUBECONFIG, else the pod's account.")
    ] = None,
) -> int:
    """Explain the last decision that changed a fleet's replicas, or the operator's next plan."""
    from argosy_operator.cli.explanation import explanation
    from argosy_operator.ports.access import Access, AccessError
    from argosy_operator.ports.cluster import ApiCluster
    from argosy_operator.ports.lease import Term
    from argosy_operator.ports.protocols import ClusterError

    async def text(access: Access, namespace: str) -> str | None:
        # The term never begins, so the gate of this ApiCluster refuses every write.
        async with ApiCluster(access, Term(), lambda _verb, _kind: None) as cluster:
            fleet = await cluster.get("ServingDeployment", namespace, name)
            if fleet is None:
                return None
            if plan:
                return await _plan(cluster, fleet, engine_image, output)
            return explanation(fleet, output)

    try:
        access = Access(kubeconfig)
        where = namespace or access.namespace()
        found = asyncio.run(text(access, where))
    except (AccessError, ClusterError, ValueError) as error:
        print(f"kubectl argosy explain: {error}", file=sys.stderr)
        return 1
    if found is None:
        print(f"there is no ServingDeployment {name} in {where}", file=sys.stderr)
        return 1
    print(found)
    return 0


async def _plan(cluster: "Cluster", fleet: "Object", engine_image: str | None, output: str) -> str:
    from argosy_operator.cli.dry_run import dry_run, dry_run_output
    from argosy_operator.cli.images import DEFAULT_ENGINE, DEFAULT_GATEWAY, DEFAULT_PICKER
    from argosy_operator.render.images import Images

    default = Images(engine=DEFAULT_ENGINE, gateway=DEFAULT_GATEWAY, picker=DEFAULT_PICKER)
    return dry_run_output(await dry_run(cluster, fleet, default, engine_image), output)
