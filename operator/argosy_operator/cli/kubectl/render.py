"""`kubectl argosy render FILE…`: the objects that the operator would make, without a cluster."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic import ValidationError

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.cli.kubectl.command import CommandError, Exit, Files, as_json, as_yaml, items
from argosy_operator.cli.kubectl.lint import findings, read_fleets
from argosy_operator.cli.run import REGISTRY, default_images
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import Apply, Create
from argosy_operator.core.snapshot.objects import Object, path
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory
from argosy_operator.core.snapshot.template import refusals_of_installed
from argosy_operator.render.common import Images

IMAGES = (
    *("registry", "engine", "gateway", "fetch"),
    *("operator", "prometheus", "pullPolicy", "pullSecrets"),
)
"""The keys of `images`. Those of the second line are of the chart's own pods."""
PARTS = ("registry", "repository", "tag", "digest")
"""The keys of one image."""


def _merge(far: Mapping[str, Any], near: Mapping[str, Any]) -> dict[str, Any]:
    """Return values over others as helm lays them: maps are joined, and null takes a key away."""
    whole = dict(far)
    for key, value in near.items():
        below = whole.get(key)
        if value is None:
            whole.pop(key, None)
        elif isinstance(value, Mapping):
            whole[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            whole[key] = value
    return whole


def images_of(values: Mapping[str, Any]) -> Images:
    """Return what an operator has that the chart installs with these values. Raises ValueError for
    values that the chart does not have."""
    given, asked = _map(values, "images"), _map(values, "podTemplate")
    _known(given, IMAGES, "images")
    _known(asked, PodTemplate.model_fields, "podTemplate")
    try:
        template = PodTemplate.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"podTemplate.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
    for one in refusals_of_installed(template):
        raise ValueError(f"{path(one.place)}: {one.sentence}")
    engine, gateway, fetch = (_image(given, name) for name in ("engine", "gateway", "fetch"))
    return Images(engine, gateway, template, fetch=fetch)


def _map(values: Mapping[str, Any], key: str, where: str | None = None) -> Mapping[str, Any]:
    found = values.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{where or key} is no map of values")
    return found or {}


def _known(values: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    known = tuple(keys)
    for key in values:
        if key not in known:
            raise ValueError(f"the chart has no value {where}.{key}: it has {', '.join(known)}")


def _image(given: Mapping[str, Any], name: str) -> str:
    """Return an image as the chart writes it (`argosy.image` in its templates)."""
    where = f"images.{name}"
    parts = _map(given, name, where)
    _known(parts, PARTS, where)
    registry, repository, tag, digest = (_text(parts, part, where) for part in PARTS)
    registry = registry or _text(given, "registry", "images") or REGISTRY
    tag = tag or ("" if digest else version("argosy"))
    image = f"{registry}/{repository or name}"
    return image + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


def _text(values: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text; the empty one stands for the default, as in the chart."""
    found = values.get(key) or ""
    if not isinstance(found, str):
        raise ValueError(f"{where}.{key} is no text: put it into quotes")
    return found


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
    read = read_fleets(files)
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


def _images(files: list[str]) -> Images:
    """Return the images of an operator that is installed with the values of these files."""
    images, values = default_images(), dict[str, Any]()
    for file in files:
        values = _merge(values, _values(file))
        try:
            images = images_of(values)
        except ValueError as error:
            raise CommandError(f"{file}: {error}") from error
    return images


def _values(file: str) -> dict[str, Any]:
    """Read the values of one file. Raises CommandError for one that cannot be read."""
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


def children(value: Mapping[str, Any], images: Images, namespace: str) -> list[Object]:
    """Plan the objects of one valid manifest, in the order in which the operator makes them.

    Owner references are left out, because the fleet has no uid yet. So is what needs the cluster's
    keys: the ConfigMap of who may call engines.
    """
    meta = {"namespace": namespace, **value["metadata"]}
    given = {key: part for key, part in value.items() if key != "status"}
    fleet = ServingDeployment.model_validate(given | {"metadata": meta})
    from argosy_operator.shell.gather import Observed, compose

    memory = LoopMemory(decide_at=float("inf"))
    snapshot = compose(fleet, images, Observed({}, (), {}), memory, Clock(0.0, 0.0))
    made = (a.obj for a in plan(snapshot).actions if isinstance(a, Apply | Create))
    return [_without_owner(obj) for obj in made]


def unprinted(value: Mapping[str, Any], made: Sequence[Object]) -> str | None:
    """Return why the engines of the manifest are not among its objects, or None."""
    if all(obj["kind"] != "Job" for obj in made):
        return None
    name, uri = value["metadata"]["name"], value["spec"]["model"]["uri"]
    return (
        f"{name}: its engine Deployments are not printed. The operator makes them once the Job has "
        f"fetched {uri}, because the commit that it finds is part of their revision"
    )


def _without_owner(obj: Object) -> Object:
    kept = {key: part for key, part in obj["metadata"].items() if key != "ownerReferences"}
    return {**obj, "metadata": kept}
