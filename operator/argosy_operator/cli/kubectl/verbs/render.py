"""`kubectl argosy render FILE…`: the objects that the operator would make, without a cluster."""

import sys
from typing import Annotated, Literal

import typer

from argosy_operator.cli.kubectl.options import Files


def render(
    files: Files,
    output: Annotated[
        Literal["yaml", "json"], typer.Option("-o", "--output", help="yaml or json.")
    ] = "yaml",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Of manifests that name none.")
    ] = "default",
    engine_image: Annotated[
        str | None, typer.Option(help="The operator's default, where the fleet names none.")
    ] = None,
    gateway_image: Annotated[str | None, typer.Option(help="The same for gateways.")] = None,
) -> int:
    """Print the child objects of ServingDeployments as the operator would create them."""
    from argosy_operator.cli.images import DEFAULT_ENGINE, DEFAULT_GATEWAY, DEFAULT_PICKER
    from argosy_operator.cli.kubectl.exits import Exit
    from argosy_operator.cli.kubectl.printed import as_json, as_yaml, items
    from argosy_operator.cli.kubectl.verbs.lint import documents_of
    from argosy_operator.cli.kubectl.views.children import children
    from argosy_operator.cli.kubectl.views.findings import findings
    from argosy_operator.render.images import Images

    read = documents_of(files)
    errors = [one for d in read for one in findings(d) if one.level == "error"]
    if errors:
        for one in errors:
            print(one.text(), file=sys.stderr)
        return Exit.FAILED
    images = Images(
        engine=engine_image or DEFAULT_ENGINE,
        gateway=gateway_image or DEFAULT_GATEWAY,
        picker=DEFAULT_PICKER,
    )
    fleets = [document.value for document in read if document.is_fleet]
    made = [child for fleet in fleets for child in children(fleet, images, namespace)]
    if output == "json":
        print(as_json(items(made)))
    else:
        print("\n".join(f"---\n{as_yaml(child)}" for child in made))
    return Exit.OK
