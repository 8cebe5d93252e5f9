"""Reads the generated CRD as the API server does: defaults, bounds, then CEL.

Only what our schemas use. The cluster tests put the same objects before the real API server; this
reading is for thousands of generated objects.
"""

import copy
from functools import cache
from json import dumps, loads
from typing import Any

import celpy

Json = Any
# Made when this is imported: it raises the recursion limit, which hypothesis refuses during a test.
ENVIRONMENT = celpy.Environment()


def schema_of(crd: Json) -> Json:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def defaulted(schema: Json, value: Json) -> Json:
    """The value with the schema's defaults where fields are absent."""
    if isinstance(value, dict) and "properties" in schema:
        result = dict(value)
        for name, child in schema["properties"].items():
            if name not in result and "default" in child:
                result[name] = copy.deepcopy(child["default"])
            if name in result:
                result[name] = defaulted(child, result[name])
        return result
    if isinstance(value, list):
        return [defaulted(schema["items"], item) for item in value]
    return value


def refusals(schema: Json, value: Json, path: str = "") -> list[tuple[str, str]]:
    """Return (path, sentence) of all that the schema refuses in a new, defaulted object."""
    rules = [
        # Of a new object there is no old one to spare.
        rule | {"rule": rule["rule"].partition(" || (oldSelf.hasValue()")[0]}
        for rule in schema.get("x-kubernetes-validations", [])
    ]
    found = []
    if rules:
        broken = _broken(tuple(rule["rule"] for rule in rules), dumps(value))
        found = [
            (path + rule.get("fieldPath", ""), rule["message"])
            for rule in rules
            if rule["rule"] in broken
        ]
    if isinstance(value, int) and not isinstance(value, bool):
        below = value < schema.get("minimum", value)
        found += [(path, "bounds")] if below or value > schema.get("maximum", value) else []
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        found.append((path, "length"))
    if value not in schema.get("enum", [value]):
        supported = ", ".join(f'"{word}"' for word in schema["enum"])
        found.append((path, f'Unsupported value: "{value}": supported values: {supported}'))
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            found.append((path, "items"))
        for index, item in enumerate(value):
            found += refusals(schema["items"], item, f"{path}[{index}]")
    if isinstance(value, dict) and "properties" in schema:
        found += [(f"{path}.{n}", "required") for n in schema.get("required", []) if n not in value]
        for name, child in schema["properties"].items():
            if name in value:
                found += refusals(child, value[name], f"{path}.{name}")
    return found


@cache
def _broken(rules: tuple[str, ...], value: str) -> frozenset[str]:
    """Those of the rules of one place that a value breaks. Values are JSON.

    It is kept: to evaluate CEL takes long, and most places of generated objects have their
    defaults.
    """
    seen = {"self": celpy.json_to_cel(loads(value))}
    return frozenset(rule for rule in rules if not _program(rule).evaluate(seen))


@cache
def _program(rule: str) -> Any:
    return ENVIRONMENT.program(ENVIRONMENT.compile(rule))
