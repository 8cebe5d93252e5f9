"""The base of all classes of the API: camelCase outside, snake_case inside, and its rules.

Each rule is checked in Python and by the API server, with the same sentence. A `FieldRule` is about
the text of one field and is written as an annotation of its type. A `ValidationRule` compares
several fields; it is listed in `rules` of their class, and `ApiModel` checks it. Both put CEL, the
language in which a CRD tells the API server what to refuse, into the JSON schema, from which the
CRD is generated. A property test evaluates Python and CEL on generated objects: they must agree.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


def cel_literal(text: str) -> str:
    """A CEL string literal; backslashes and quotes of the text are kept."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cel_literals(texts: Iterable[str]) -> str:
    """A CEL list of string literals."""
    return "[" + ", ".join(cel_literal(text) for text in texts) + "]"


def cel_matches(path: str, pattern: str) -> str:
    """True when the text at `path` matches the regular expression (RE2 syntax)."""
    return f"{path}.matches({cel_literal(pattern)})"


VALIDATIONS = "x-kubernetes-validations"
"""The key under which a CRD's schema keeps its CEL rules."""


class FieldRule(ABC):
    """A rule on one field. As an annotation it refuses the value and adds its CEL to the schema."""

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Return the value, or raise ValueError with the sentence that says what to write."""

    @abstractmethod
    def constraints(self) -> dict[str, Any]:
        """What the rule adds to the field's JSON schema: CEL under VALIDATIONS, and lengths."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        field, added = dict(handler(schema)), self.constraints()
        rules = [*field.get(VALIDATIONS, []), *added.get(VALIDATIONS, [])]
        return field | added | {VALIDATIONS: rules}


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A rule on several fields of one class; it is an entry of the class's `rules`."""

    field: str
    """Path below the class that the API server prints beside the message, such as ".min"."""
    cel: str
    """The rule for the API server; `self` is an instance of the class. CEL sees the object after
    defaulting, so a field that has a default is always there, unless it is in an item of a list."""
    holds: Callable[[Any], bool]
    """The same rule in Python: a method of the class."""
    message: str
    """What users read when the rule does not hold: what is wrong and what to write instead."""

    def validation(self) -> dict[str, Any]:
        """The rule as an entry of x-kubernetes-validations."""
        return {"rule": self.cel, "message": self.message, "fieldPath": self.field}


class RuleError(ValueError):
    """A rule does not hold. The text is the one that the API server prints, too."""


def check(value: object, rules: Iterable[ValidationRule]) -> None:
    """Raise RuleError with the messages of all rules that `value` breaks."""
    broken = [rule.message for rule in rules if not rule.holds(value)]
    if broken:
        raise RuleError("; ".join(broken))


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


class PodTemplate(ApiModel):
    """A PodTemplateSpec that is merged over Argosy's pods. Kubernetes knows its fields, and this
    API does not repeat them."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    """Labels and annotations of the pods."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Fields of the pods, as in a Deployment. Argosy's own container is named engine, gateway or
    fetch; other containers are added."""
