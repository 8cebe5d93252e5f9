"""`kubectl argosy explain NAME`: reads one ServingDeployment and prints its last decision."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from argosy_operator.ports.access import Access


def explain(
    name: Annotated[str, typer.Argument(help="Name of the ServingDeployment.")],
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Default: the current context's.")
    ] = None,
    output: Annotated[
        Literal["text", "json"], typer.Option("-o", help="json prints status.autoscaling.")
    ] = "text",
    kubeconfig: Annotated[
        str | None, typer.Option(help="Default: $KUBECONFIG, else the pod's account.")
    ] = None,
) -> int:
    """Explain the last decision that changed a fleet's replicas."""
    from argosy_operator.cli.explanation import explanation
    from argosy_operator.ports.access import Access, AccessError
    from argosy_operator.ports.protocols import ClusterError

    try:
        access = Access(kubeconfig)
        where = namespace or access.namespace()
        fleet = asyncio.run(_read(access, where, name))
        if fleet is None:
            print(f"there is no ServingDeployment {name} in {where}", file=sys.stderr)
            return 1
        print(explanation(fleet, output))
    except (AccessError, ClusterError, ValueError) as error:
        print(f"kubectl argosy explain: {error}", file=sys.stderr)
        return 1
    return 0


async def _read(access: "Access", namespace: str, name: str) -> dict[str, object] | None:
    """The ServingDeployment as the API server returns it; None where there is none."""
    from argosy_operator.ports.cluster import ApiCluster
    from argosy_operator.ports.lease import Term

    async with ApiCluster(access, Term(), lambda _verb, _kind: None) as cluster:
        return await cluster.get("ServingDeployment", namespace, name)
