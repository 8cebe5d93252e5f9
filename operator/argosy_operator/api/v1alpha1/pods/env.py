"""Environment variables of a pod's container, in plain text or from Secrets and ConfigMaps."""

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from argosy_operator.api import cel
from argosy_operator.api.fields import DataKey, EnvName, LocalName
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import ValidationRule

RENDERED_ENV = ("POD_NAME", "POD_UID", "POD_IP", "POD_NAMESPACE")
"""Environment variables that the operator writes."""


class KeyRef(ApiModel):
    """One key of a Secret or ConfigMap. The kubelet reads it; the operator never does."""

    name: LocalName
    """Name of the object, in the fleet's namespace."""
    key: DataKey
    """The key whose value is taken."""
    optional: bool | None = None
    """True: without the object or the key the variable is not set, and the pod starts. Default:
    the pod waits for it."""


class EnvSource(ApiModel):
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""

    def is_one(self) -> bool:
        return (self.secret_key_ref is None) != (self.config_map_key_ref is None)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".secretKeyRef",
            cel="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            holds=is_one,
            message="a value comes from one place: write secretKeyRef or configMapKeyRef",
        ),
    )


class PodEnv(ApiModel):
    """One environment variable."""

    list_key: ClassVar[str | None] = "name"

    name: EnvName
    """The variable's name."""
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Its value in plain text. Secrets belong into a Secret, and into valueFrom."""
    value_from: EnvSource | None = None
    """Where its value comes from."""

    def is_free(self) -> bool:
        return self.name not in RENDERED_ENV

    def has_one_value(self) -> bool:
        return self.value is None or self.value_from is None

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel=f"!(self.name in {cel.literals(RENDERED_ENV)})",
            holds=is_free,
            message="POD_NAME, POD_UID, POD_IP and POD_NAMESPACE are set by Argosy: choose another "
            "name",
        ),
        ValidationRule(
            field=".value",
            cel="!has(self.value) || !has(self.valueFrom)",
            holds=has_one_value,
            message="a variable has one value: write value or valueFrom",
        ),
    )


class ObjectRef(ApiModel):
    """A Secret or ConfigMap as a whole."""

    name: LocalName
    """Name of the object, in the fleet's namespace."""
    optional: bool | None = None
    """True: the pod starts without it. Default: the pod waits for it."""


class EnvFrom(ApiModel):
    """All keys of a Secret or ConfigMap as variables. Variables of env count before them."""

    prefix: EnvName | None = None
    """What the variables' names begin with, before the key. Default: nothing."""
    secret_ref: ObjectRef | None = None
    """The Secret."""
    config_map_ref: ObjectRef | None = None
    """The ConfigMap."""

    def is_one(self) -> bool:
        return (self.secret_ref is None) != (self.config_map_ref is None)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".secretRef",
            cel="has(self.secretRef) != has(self.configMapRef)",
            holds=is_one,
            message="an item of envFrom is one object: write secretRef or configMapRef",
        ),
    )
