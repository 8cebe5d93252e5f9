"""The base of all classes of the API: camelCase outside, snake_case inside, rules checked."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from argosy_operator.api.rule import VALIDATIONS, ValidationRule, check

LIST_KEY = "x-list-key"
"""Where `ApiModel.list_key` is in the JSON schema until `crd/schema.py` reads it."""


class ApiModel(BaseModel):
    """A piece of an object; immutable, refused as a whole when one of its rules does not hold."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",  # the API server prunes; an older operator meets newer fields
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[ValidationRule, ...]] = ()
    """What must hold between the fields of the class."""
    list_key: ClassVar[str | None] = None
    """The field that identifies an item in a list of these, so that two managers may each own
    some of the items. None: the list belongs to one manager."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check(self, self.rules)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        reference = handler(schema)
        resolved = handler.resolve_ref_schema(reference)
        if cls.rules:
            resolved[VALIDATIONS] = [rule.validation() for rule in cls.rules]
        if cls.list_key:
            resolved[LIST_KEY] = cls.list_key
        return reference


class Metadata(ApiModel):
    """The part of Kubernetes' ObjectMeta that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    """Counts changes of the spec."""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    """Set while finalizers keep a deleted object."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


def dump(model: BaseModel) -> dict[str, Any]:
    """The object's JSON form: camelCase, defaults written out, absent fields left out."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
