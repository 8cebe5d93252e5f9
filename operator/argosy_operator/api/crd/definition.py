"""Both CustomResourceDefinitions as objects, from the models."""

from typing import Any

from argosy_operator.api.crd.columns import FLEET_COLUMNS, ROLE_COLUMNS, SCALE
from argosy_operator.api.crd.schema import Schema, structural
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import VALIDATIONS
from argosy_operator.api.v1alpha1 import (
    GROUP,
    VERSION,
    ServingDeployment,
    ServingDeploymentSpec,
    ServingDeploymentStatus,
    ServingRole,
    ServingRoleSpec,
    ServingRoleStatus,
)


def _object(model: type[ApiModel], spec: Schema, status: Schema) -> Schema:
    rules = [rule.validation() for rule in model.rules]
    return {
        "description": " ".join((model.__doc__ or "").split()),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "The group and version."},
            "kind": {"type": "string", "description": "The kind."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec,
            "status": status,
        },
        "required": ["spec"],
    } | ({VALIDATIONS: rules} if rules else {})


def _crd(
    kind: str, short: str, schema: Schema, columns: list[dict[str, Any]], subresources: Schema
) -> dict[str, Any]:
    plural = kind.lower() + "s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["argosy"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def serving_deployments() -> dict[str, Any]:
    """The CRD of ServingDeployment."""
    schema = _object(
        ServingDeployment,
        structural(ServingDeploymentSpec, defaults=True),
        structural(ServingDeploymentStatus, defaults=False),
    )
    return _crd("ServingDeployment", "sd", schema, FLEET_COLUMNS, {"status": {}})


def serving_roles() -> dict[str, Any]:
    """The CRD of ServingRole, with its scale subresource."""
    schema = _object(
        ServingRole,
        structural(ServingRoleSpec, defaults=True),
        structural(ServingRoleStatus, defaults=False),
    )
    return _crd("ServingRole", "sr", schema, ROLE_COLUMNS, {"status": {}, "scale": SCALE})


def definitions() -> list[dict[str, Any]]:
    """Both CRDs."""
    return [serving_deployments(), serving_roles()]
