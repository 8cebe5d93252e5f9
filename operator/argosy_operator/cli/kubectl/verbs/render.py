"""`kubectl argosy render FILE…`: the objects that the operator would make, without a cluster."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from argosy_operator.cli.kubectl.options import Files

if TYPE_CHECKING:
    from argosy_operator.core.fleet.objects import Object
    from argosy_operator.render.images import Images


def render(
    files: Files,
    output: Annotated[
        Literal["yaml", "json"], typer.Option("-o", "--output", help="yaml or json.")
    ] = "yaml",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Of manifests that name none.")
    ] = "default",
    values: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of the chart, whose images and pods the operator has. May be repeated."
        ),
    ] = None,
    engine_image: Annotated[
        str | None, typer.Option(help="The operator's default, where the fleet names none.")
    ] = None,
    gateway_image: Annotated[str | None, typer.Option(help="The same for gateways.")] = None,
    fetch_image: Annotated[
        str | None, typer.Option(help="The same for the Jobs that fetch models.")
    ] = None,
) -> int:
    """Print the child objects of ServingDeployments as the operator would create them."""
    from argosy_operator.cli.kubectl.exits import Exit
    from argosy_operator.cli.kubectl.printed import as_json, as_yaml, items
    from argosy_operator.cli.kubectl.verbs.lint import documents_of
    from argosy_operator.cli.kubectl.views.children import children, unprinted
    from argosy_operator.cli.kubectl.views.findings import findings

    read = documents_of(files)
    errors = [one for d in read for one in findings(d) if one.level == "error"]
    if errors:
        for one in errors:
            print(one.text(), file=sys.stderr)
        return Exit.FAILED
    named = {"engine": engine_image, "gateway": gateway_image, "fetch": fetch_image}
    given = {of: image for of, image in named.items() if image}
    images = replace(_images(values or []), **given)  # type: ignore[arg-type]
    fleets = [document.value for document in read if document.is_fleet]
    made: list[Object] = []
    for fleet in fleets:
        made += (of := children(fleet, images, namespace))
        if (why := unprinted(fleet, of)) is not None:
            print(why, file=sys.stderr)
    if output == "json":
        print(as_json(items(made)))
    else:
        print("\n".join(f"---\n{as_yaml(child)}" for child in made))
    return Exit.OK


def _images(files: list[str]) -> "Images":
    """The defaults of an operator that is installed with these values. Raises CommandError."""
    from argosy_operator.cli.images import default_images
    from argosy_operator.cli.kubectl.exits import CommandError
    from argosy_operator.cli.kubectl.views.values import with_values

    images = default_images()
    for file in files:
        try:
            images = with_values(images, _values(file))
        except ValueError as error:
            raise CommandError(f"{file}: {error}") from error
    return images


def _values(file: str) -> dict[str, Any]:
    """The values of one file. Raises CommandError for one that cannot be read."""
    from pathlib import Path

    import yaml

    from argosy_operator.cli.kubectl.exits import CommandError

    try:
        found = yaml.safe_load(Path(file).read_text())
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is no YAML: {error}") from error
    if not isinstance(found or {}, dict):
        raise CommandError(
            f"{file} holds no values: write them as the chart's values.yaml has them"
        )
    return found or {}
