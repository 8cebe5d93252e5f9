"""From pydantic's JSON schema to the structural schema that a CustomResourceDefinition demands.

Structural schemas know no $ref, no null alternatives, no `const`, no titles; every field is typed
where it stands. Defaults stay on scalars; an object with a default gets `{}` where it can, and the
API server fills its fields. The CEL of `rules.py` is written onto the class that it is about.
Called by `crd.py`.
"""

from typing import Any

from pydantic import BaseModel

from argosy_operator.api.fields import cel_string
from argosy_operator.api.rules import RULES

Schema = dict[str, Any]

# Lists whose items are known by a key: two managers may each own some of them.
LIST_KEYS = {"EnvVar": "name", "Condition": "type"}
# In the order in which they are printed.
_KEPT = (
    "description",
    "type",
    "format",
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
_INT32_MAX = 2**31 - 1


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of a model; `defaults` is false for status, which nobody defaults."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    definitions = document.get("$defs", {}) | {model.__name__: document}
    return _structural({"$ref": f"#/$defs/{model.__name__}"}, definitions, defaults)


def _structural(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    node, of = _inlined(node, definitions)
    if "enum" in node:
        node = node | _choice([str(word) for word in node["enum"]])
    unknown = set(node) & {"oneOf", "allOf", "not", "const", "prefixItems", "patternProperties"}
    if unknown or "anyOf" in node:
        raise TypeError(f"{of or node.get('title')}: a CRD cannot say {unknown or 'anyOf'}")
    out = {key: node[key] for key in _KEPT if key in node}
    if "description" in out:
        out["description"] = " ".join(str(out["description"]).split())
    if node.get("type") == "integer":
        out["format"] = "int32" if node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    validations = _validations(node, of)
    _settle_default(out, defaults, ruled=any(rule.of == of for rule in RULES))
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
        out |= _list(node, definitions, defaults)
    return out | ({"x-kubernetes-validations": validations} if validations else {})


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


def _settle_default(out: Schema, defaults: bool, *, ruled: bool) -> None:
    """Defaults of objects become {}, those of lists and of absent fields go. The API server
    evaluates an object's rules on the default as it is written: there it stands in full."""
    if "default" not in out:
        return
    default = out["default"]
    if not defaults or default is None or out.get("type") == "array":
        del out["default"]
    elif out.get("type") == "object":
        whole = {key: v for key, v in default.items() if v is not None} if ruled else {}
        out["default"] = {key: v for key, v in whole.items() if not isinstance(v, dict | list)}


def _map(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    values = node.get("additionalProperties", True)
    if values is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": _structural(values, definitions, defaults)}


def _list(node: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    key = LIST_KEYS.get(str(node["items"].get("$ref", "")).rpartition("/")[2])
    items = {"items": _structural(node["items"], definitions, defaults)}
    if key is None:
        return items | {"x-kubernetes-list-type": "atomic"}
    return items | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _validations(node: Schema, of: str | None) -> list[dict[str, str]]:
    formats: list[dict[str, str]] = list(node.get("x-kubernetes-validations", []))
    return formats + [rule.validation() for rule in RULES if rule.of == of]


def _choice(words: list[str]) -> Schema:
    """One of some words, as CEL: the API server's own check of an enum keeps all rules from being
    evaluated, and does not say what to write."""
    rule = f"self in [{', '.join(map(cel_string, words))}]"
    says = f"write {', '.join(words[:-1])} or {words[-1]}"
    validations = [{"rule": rule, "message": says}]
    return {"type": "string", "maxLength": 64, "x-kubernetes-validations": validations}
