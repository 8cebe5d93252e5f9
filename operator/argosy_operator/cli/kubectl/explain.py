"""`kubectl argosy explain NAME`: one fleet's last decision, and what would change it.

With `--plan` it prints what the operator would do next instead (`cli/dry_run.py`).
"""

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from argosy_operator.cli.kubectl.command import Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster
    from argosy_operator.core.snapshot.objects import Object


def explain(
    name: Annotated[str, typer.Argument(help="Name of the ServingDeployment.")],
    namespace: Namespace = None,
    output: Annotated[
        Literal["text", "json", "yaml"],
        typer.Option("-o", "--output", help="json and yaml print status.autoscaling, or the plan."),
    ] = "text",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what the operator would do next, step by step.")
    ] = False,
    engine_image: Annotated[
        str | None,
        typer.Option(help="With --plan: the operator's default. Default: as the fleet's pods."),
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Explain a fleet's last decision on replicas and what would change it, or the next plan."""
    from argosy_operator.cli.kubectl.command import CommandError
    from argosy_operator.cli.kubectl.session import ask

    async def text(cluster: "Cluster") -> str:
        fleet = await cluster.fleet(name)
        return await _plan(cluster, fleet, engine_image, output) if plan else _last(fleet, output)

    try:
        print(ask(text, namespace, context, kubeconfig))
    except ValueError as error:
        raise CommandError(str(error)) from error
    return 0


def _last(fleet: "Object", output: str) -> str:
    """The last decision, and what would change it."""
    from argosy_operator.cli.explanation import explanation, sentences
    from argosy_operator.cli.kubectl.command import as_yaml

    if output == "yaml":
        return as_yaml(fleet.get("status", {}).get("autoscaling", {}))
    record = fleet.get("status", {}).get("autoscaling", {}).get("lastDecision", {}).get("record")
    changes = sentences(record) if record and output == "text" else []
    return "\n".join([explanation(fleet, output), *changes])


async def _plan(cluster: "Cluster", fleet: "Object", engine_image: str | None, output: str) -> str:
    from argosy_operator.cli.dry_run import dry_run, dry_run_output
    from argosy_operator.cli.kubectl.command import as_yaml
    from argosy_operator.cli.run import default_images

    run = await dry_run(cluster.objects, fleet, default_images(), engine_image)
    if output == "yaml":
        return as_yaml(json.loads(dry_run_output(run, "json")))
    return dry_run_output(run, output)
