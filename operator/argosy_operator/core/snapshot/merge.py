"""Kubernetes' strategic merge of pod templates.

Maps are merged by key, and lists whose items have a key are merged by it: an item with a known key
is merged into the one that is there, and others follow it. All other lists are replaced. `null`
deletes a field. `$patch: replace` in a map, or as an item of a list, replaces it whole;
`$patch: delete` in an item deletes that item.

Two lists differ from kubectl's merge, because the original would not do what was meant. A variable
or a volume with a new source replaces the old one: it can have only one. Tolerations are added.
"""

from typing import Any

PATCH = "$patch"
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "claims": "name",
}
"""The key of an item, by the name of the list."""
_UNIONS = ("env", "volumes")
"""Lists whose items have one of several sources."""
SETS = ("tolerations",)
"""Lists that are sets of whole items."""


def merge(far: Any, near: Any, field: str = "") -> Any:
    """Return `near` merged over `far`.

    What it says of deletions stays in it, so that two patches can be merged before they are laid
    over an object. `resolve` carries the deletions out.
    """
    deleted = far is None or (isinstance(far, dict) and far.get(PATCH) == "delete")
    if isinstance(near, dict):
        if PATCH in near:
            return near
        base = far if isinstance(far, dict) and not deleted else {}
        whole = base | {k: merge(base.get(k, _empty(v)), v, k) for k, v in near.items()}
        return whole | {PATCH: "replace"} if deleted else whole
    if isinstance(near, list) and (field in MERGE_KEYS or field in SETS):
        merged = _merge_lists(far if isinstance(far, list) else [], near, field)
        return [{PATCH: "replace"}, *merged] if deleted else merged
    return near


def _empty(near: Any) -> Any:
    return type(near)() if isinstance(near, dict | list) else near


def resolve(value: Any) -> Any:
    """Return the object without deleted fields and without the words that delete them."""
    if isinstance(value, dict):
        return {k: resolve(v) for k, v in value.items() if k != PATCH and v is not None}
    if isinstance(value, list):
        kept = (item for item in value if not (isinstance(item, dict) and _is_gone(item)))
        return [resolve(item) for item in kept]
    return value


def _is_gone(item: dict[str, Any]) -> bool:
    return item.get(PATCH) == "delete" or item == {PATCH: "replace"}


def _merge_lists(far: list[Any], near: list[Any], field: str) -> list[Any]:
    if {PATCH: "replace"} in near:
        return near
    if field in SETS:
        return [*far, *(item for item in near if item not in far)]
    key = MERGE_KEYS[field]
    merged = list(far)
    for item in near:
        at = next((i for i, one in enumerate(merged) if _are_same(one, item, key)), None)
        if at is None:
            merged.append(merge(_empty(item), item))
        elif field in _UNIONS and not _keeps_source(merged[at], item, key):
            merged[at] = {**item, PATCH: "replace"} if PATCH not in item else item
        else:
            merged[at] = merge(merged[at], item)
    return merged


def _are_same(one: Any, other: Any, key: str) -> bool:
    both = isinstance(one, dict) and isinstance(other, dict)
    return both and key in one and one[key] == other.get(key)


def _keeps_source(far: dict[str, Any], near: dict[str, Any], key: str) -> bool:
    """Whether every field of `near` is one that `far` has, too, or takes one away."""
    return PATCH in near or all(k in far or v is None for k, v in near.items() if k != key)
