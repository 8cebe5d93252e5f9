"""The CustomResourceDefinitions, generated from the models of `api/v1alpha1`. Pure: no files.

pydantic's JSON schema becomes the structural schema that a CRD demands: no $ref, no null
alternatives, no `const` and no titles; each field is typed in place. Scalars keep their defaults.
An object with a default gets `{}` where possible, and the API server fills its fields. Items of
lists get no defaults: what GitOps tools apply and what they read back would differ for ever,
because they compare lists as wholes. The models fill them in. `docs/generate.py` writes the files,
`argosy operator crds` prints them.
"""

from typing import Any

import yaml
from pydantic import BaseModel

from argosy_operator.api.model import LIST_KEY, VALIDATIONS, ApiModel
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

_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, description: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def _wide(name: str, path: str, description: str) -> dict[str, Any]:
    """A column of `-o wide` only."""
    return _column(name, path, description) | {"priority": 1}


FLEET_COLUMNS = [
    _column("Mode", ".status.mode", "Mode in effect"),
    _column("P", ".status.columns.prefill", "Prefill or colocated pods serving/desired"),
    _column("D", ".status.columns.decode", "Decode pods serving/desired"),
    _column("GPUs", ".status.columns.gpus", "GPUs held"),
    _column("SLO", ".status.columns.slo", "Met, AtRisk, Missed, Idle, Unknown or None"),
    _column("Attain", ".status.goodput.attainment", "Share of requests that met both targets"),
    _column("TTFT90", ".status.goodput.ttftP90", "90th percentile of time to first token"),
    _column("TPOT90", ".status.goodput.tpotP90", "90th percentile of time per output token"),
    _column("Reason", ".status.columns.reason", "What matters most now"),
    _AGE,
    _wide("Model", ".spec.model.uri", "The weights"),
    _wide("Revision", ".status.revision", "The revision that the spec asks for"),
    _wide("Policy", ".spec.autoscaling.policy", "Who decides the number of replicas"),
    _wide("URL", ".status.url", "The address of the OpenAI API inside the cluster"),
]
ROLE_COLUMNS = [
    _column("Fleet", ".spec.fleet", "The fleet"),
    _column("Role", ".spec.role", "The role"),
    _column("Wanted", ".spec.replicas", "Pods that the role should have", "integer"),
    _column("Pods", ".status.replicas", "Pods of the role", "integer"),
    _column("Ready", ".status.readyReplicas", "Ready pods of the role", "integer"),
    _column(
        "Bounds",
        '.status.conditions[?(@.type=="ScalingLimited")].reason',
        "AsSpecified, or why the role has another number of pods than it asks for",
    ),
    _AGE,
]
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


Schema = dict[str, Any]

_PRINTED = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
)
"""Keys that are taken over from pydantic's schema, in the order in which they are printed."""
_INT32_MAX = 2**31 - 1


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of a model; `defaults` is false for status, which has none."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    definitions = document.get("$defs", {}) | {model.__name__: document}
    return _structural({"$ref": f"#/$defs/{model.__name__}"}, definitions, defaults)


def _structural(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    node, of = _inlined(node, definitions)
    if "enum" in node:
        # The API server's sentence names the values. Rules are evaluated once the value is one.
        node = node | {"maxLength": 64}
    unknown = set(node) & {"oneOf", "allOf", "not", "const", "prefixItems", "patternProperties"}
    if unknown or "anyOf" in node:
        raise TypeError(f"{of or node.get('title')}: a CRD cannot express {unknown or 'anyOf'}")
    out = {key: node[key] for key in _PRINTED if key in node}
    if "description" in out:
        out["description"] = " ".join(str(out["description"]).split())
    if node.get("type") == "integer":
        out["format"] = "int32" if node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    _simplify_default(out, defaults, ruled=VALIDATIONS in node)
    if "properties" in node:
        out["properties"] = {
            name: _structural(child, definitions, defaults)
            for name, child in node["properties"].items()
        }
        if node.get("required"):
            out["required"] = sorted(node["required"])
    elif node.get("type") == "object":
        out |= _map(node, definitions, defaults)
    if "items" in node:
        out |= _list(node, definitions)
    return out | ({VALIDATIONS: node[VALIDATIONS]} if VALIDATIONS in node else {})


def _inlined(node: Schema, definitions: dict[str, Schema]) -> tuple[Schema, str | None]:
    """The node without $ref and null alternative, and the class that it came from, if any."""
    if "anyOf" in node:
        (only,) = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        rest = {key: v for key, v in node.items() if key != "anyOf"}
        return _inlined(only | {k: v for k, v in rest.items() if v is not None}, definitions)
    if "$ref" not in node:
        return node, None
    name = node["$ref"].rpartition("/")[2]
    own = {key: v for key, v in node.items() if key != "$ref"}
    return definitions[name] | own, name


def _simplify_default(out: Schema, defaults: bool, *, ruled: bool) -> None:
    """Turn the default of an object into {}, and drop those of empty lists and of absent fields.

    An object that has rules keeps its scalars: the API server evaluates the rules on the default
    as written, before it fills in the defaults of the fields."""
    if "default" not in out:
        return
    default = out["default"]
    if not defaults or default is None or default == []:
        del out["default"]
    elif out.get("type") == "object":
        whole = {key: v for key, v in default.items() if v is not None} if ruled else {}
        out["default"] = {key: v for key, v in whole.items() if not isinstance(v, dict | list)}


def _map(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    values = node.get("additionalProperties", True)
    if values is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": _structural(values, definitions, defaults)}


def _list(node: Schema, definitions: dict[str, Schema]) -> Schema:
    key = _inlined(node["items"], definitions)[0].get(LIST_KEY)
    items = {"items": _structural(node["items"], definitions, defaults=False)}
    if key is None:
        return items | {"x-kubernetes-list-type": "atomic"}
    return items | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


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


_HEADER = "# Generated by `python -m docs.generate --write`; edit the models instead.\n"
_OF_VALUES = """\
  {{- with .Values.commonLabels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def as_yaml(crd: dict[str, Any]) -> str:
    """The CRD as YAML, keys in the order in which they are meant to be read."""
    body: str = yaml.dump(crd, Dumper=_NoAliases, sort_keys=False, width=100, allow_unicode=True)
    return _HEADER + body


def chart_template(crd: dict[str, Any]) -> str:
    """Return the same text as a template of the chart, whose values decide if it is installed and
    kept, and label it."""
    plain = as_yaml(crd)
    if "{{" in plain:
        raise ValueError("the CRD has two braces in a row, which helm would take for a template")
    name = f"  name: {crd['metadata']['name']}\n"
    kept = plain.replace(name, name + _OF_VALUES, 1)
    enabled = '{{- include "argosy.fillValues" . -}}\n{{- if .Values.crds.enabled }}\n'
    return enabled + kept + "{{- end }}\n"


class _NoAliases(yaml.SafeDumper):
    """Writes equal parts out each time: readers of a CRD do not expect YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True
