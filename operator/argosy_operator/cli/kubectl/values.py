"""Values of the chart as `kubectl argosy render --values` reads them: the images, and the
template of all fleets' pods. Pure.

Helm checks values with the chart's schema. Here a key that is not known is refused, too, because it
would change nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from argosy_operator.api.model import PodTemplate
from argosy_operator.core.snapshot.objects import path
from argosy_operator.core.snapshot.template import refusals_of_installed
from argosy_operator.render.common import Images

IMAGES = ("engine", "gateway", "fetch", "operator", "pullSecrets")
"""The keys of `images`. The last two are of the operator's own pods."""


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


def with_values(default: Images, values: Mapping[str, Any]) -> Images:
    """What an operator has that the chart installs with these values; `default` where they say
    nothing. Raises ValueError for values that the chart does not have.

    Values of a further file are those over the outcome of the first."""
    given, asked = _map(values, "images"), _map(values, "podTemplate")
    _known(given, IMAGES, "images")
    _known(asked, PodTemplate.model_fields, "podTemplate")
    try:
        template = PodTemplate.model_validate(_merge(default.template.model_dump(), asked))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"podTemplate.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
    for one in refusals_of_installed(template):
        raise ValueError(f"{path(one.place)}: {one.sentence}")
    return Images(
        engine=_image(given, "engine") or default.engine,
        gateway=_image(given, "gateway") or default.gateway,
        template=template,
        fetch=_image(given, "fetch") or default.fetch,
    )


def _map(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{key} is no map of values")
    return found or {}


def _known(values: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    known = tuple(keys)
    for key in values:
        if key not in known:
            raise ValueError(f"the chart has no value {where}.{key}: it has {', '.join(known)}")


def _image(given: Mapping[str, Any], name: str) -> str:
    """The image; the empty text stands for the default, as in the chart."""
    image = given.get(name) or ""
    if not isinstance(image, str):
        raise ValueError(f"images.{name} is no text: write an image such as registry/path:tag")
    return image
