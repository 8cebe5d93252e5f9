"""Options that several verbs have. typer makes flags of them; they import nothing of the client."""

from typing import Annotated, Literal

import typer

Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Default: the current context's.")
]
AllNamespaces = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="Fleets of all namespaces.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current.")
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", help="Default: $KUBECONFIG, else the pod's account or ~/.kube/config."
    ),
]
Output = Annotated[
    Literal["table", "wide", "json", "yaml"],
    typer.Option("-o", "--output", help="table, wide, json or yaml."),
]
Files = Annotated[list[str], typer.Argument(help="Manifests in YAML or JSON; - is standard input.")]
