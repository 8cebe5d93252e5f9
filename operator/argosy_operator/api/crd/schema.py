"""From pydantic's JSON schema to the structural schema that a CustomResourceDefinition demands.

Structural schemas have no $ref, no null alternatives, no `const` and no titles; each field is typed
in place. Scalars keep their defaults. An object with a default gets `{}` where possible, and the
API server fills its fields. Items of lists get no defaults: what GitOps tools apply and what they
read back would differ for ever, because they compare lists as wholes. The models fill them in. The
CEL rules come with the JSON schema (`api/rule.py`).
"""

from typing import Any

from pydantic import BaseModel

from argosy_operator.api.model import LIST_KEY
from argosy_operator.api.rule import VALIDATIONS

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
