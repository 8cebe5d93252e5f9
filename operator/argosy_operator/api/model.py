"""The base of every piece of the API: camelCase outside, snake_case inside, rules checked."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from argosy_operator.api.rules import check


class ApiModel(BaseModel):
    """A piece of an object; immutable, refused as a whole when one of its rules does not hold."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",  # the API server prunes; an older operator meets newer fields
        use_attribute_docstrings=True,
    )

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        check(type(self).__name__, self)
        return self


def dump(part: BaseModel) -> dict[str, Any]:
    """The object's JSON form: camelCase, defaults written out, absent fields left out."""
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)
