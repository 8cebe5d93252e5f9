"""Kubernetes objects as JSON: the types for them, who owns them, and how they write values.

Objects come from the API server or from `render`; core reads them and never changes one in place.
`differences` finds drift: only fields that we render count. What others add (sidecars, annotations,
defaults of the API server) stays. The writer of a field comes from managedFields.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from argosy_operator.api.v1alpha1 import API_VERSION
from argosy_operator.core.snapshot import names

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as the API server sends it."""

ChildKey = tuple[str, str]
"""Kind and name of an object in the fleet's namespace."""

FleetKey = tuple[str, str]
"""Namespace and name of a ServingDeployment."""

Place = tuple[str | int, ...]
"""A path of keys and indices, such as ("spec", "slo", "classes", 0, "name")."""


def path(place: Place) -> str:
    """Return a place as the API server writes it: spec.slo.classes[0].name."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def child_key(obj: Object) -> ChildKey:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def is_owned(obj: Object, uid: str) -> bool:
    """Whether the object with this uid is among the owners of `obj`."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def status_patch(kind: str, meta: Object, status: Object) -> Object:
    """What a server-side apply of `/status` sends for the object with this metadata. A fleet's mark
    `refused` is not among it: persons write it too, and an apply would own it."""
    status = {key: value for key, value in status.items() if key != "refused"}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "status": status,
    }


def replicas_of(obj: Object) -> int:
    """spec.replicas; 1 where it is absent, as Kubernetes reads it."""
    return int(obj["spec"].get("replicas", 1))


def is_seen(obj: Object) -> bool:
    """Whether the controller of `obj` has read its spec of now, so that its status speaks of it."""
    observed = (obj.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= obj["metadata"].get("generation", 0))


def digest(value: object, digits: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def rfc3339(time: float) -> str:
    """Seconds since the epoch as Kubernetes writes a time, in whole seconds."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(time: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time.

    None for None, for a text that is no such time, and for a time that cannot be written in UTC.
    """
    if not time:
        return None
    try:
        parsed = datetime.fromisoformat(time)
        return parsed.astimezone(UTC).timestamp() if parsed.tzinfo else None
    except (ValueError, OverflowError):
        return None


LARGEST_QUANTITY = 2**63 - 1
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?"
)
_UNITS = {
    **{unit: Decimal(10) ** (3 * n) for n, unit in enumerate("num", start=-3)},
    **{unit: Decimal(10) ** (3 * n) for n, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", start=1)},
}


def quantity(text: object) -> Decimal | None:
    """The number that a quantity such as 2, 500m, 1k, 1e3 or 16Gi means (`resource.Quantity`).

    None for a text that Kubernetes does not accept as a quantity, or cannot store.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    number = Decimal(digits) * (_UNITS[unit] if unit else Decimal(10) ** int(exponent or 0))
    return number if abs(number) <= LARGEST_QUANTITY else None


Path = tuple[str, ...]

APPLIED = "serving.argosy.dev/applied"  # on every child: digest of what we rendered last

# Lists to which others may add items; an item is known by the first of these keys that it has.
_OPEN = {
    "containers",
    "initContainers",
    "env",
    "volumes",
    "volumeMounts",
    "ports",
    "tolerations",
    "ownerReferences",
}
_KEYS = ("uid", "mountPath", "name", "containerPort", "port", "key")


def signed(obj: Object) -> Object:
    """The object with the digest of itself as an annotation.

    A field that is no longer rendered changes the digest, so such a change is drift, too.
    """
    meta = obj["metadata"]
    annotations = dict(meta.get("annotations") or {}) | {APPLIED: digest(obj)}
    return {**obj, "metadata": {**meta, "annotations": annotations}}


def differences(wanted: object, live: object, path: Path = ()) -> Iterator[Path]:
    """Paths at which `live` lacks, or has another value than, a field of `wanted`.

    An item of a list is written `key=value` (`containers`, `name=engine`, `image`).
    """
    if wanted == live:  # most parts of a child at rest
        return
    if isinstance(wanted, Mapping):
        have = live if isinstance(live, Mapping) else {}
        for key, value in wanted.items():
            if key in have or value not in ("", None, False, 0, [], {}):
                yield from differences(value, have.get(key), (*path, str(key)))
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        yield from _in_list(wanted, live if isinstance(live, Sequence) else (), path)
    elif not _same_quantity(wanted, live, path):
        yield path


def value_at(live: object, path: Path) -> object:
    """What stands at a path of `differences`; None if nothing does."""
    for step in path:
        if isinstance(live, Mapping):
            live = live.get(step)
        elif isinstance(live, Sequence) and not isinstance(live, str):
            key, _, value = step.partition("=")
            live = next((item for item in live if str(item.get(key)) == value), None)
        else:
            return None
    return live


def _in_list(wanted: Sequence[Any], live: Sequence[Any], path: Path) -> Iterator[Path]:
    if path and path[-1] in _OPEN:
        for item in wanted:
            keys = _KEYS if isinstance(item, Mapping) else ()
            key = next((key for key in keys if key in item), None)
            if key is None:  # a toleration of all taints
                if item not in live:
                    yield (*path, "key=")
                continue
            same = [other for other in live if other.get(key) == item[key]]
            here = (*path, f"{key}={item[key]}")
            if not same:
                yield here
            # Several tolerations may be of one key.
            elif all(any(True for _ in differences(item, other)) for other in same):
                yield from differences(item, same[0], here)
    elif len(wanted) != len(live):
        yield path
    else:
        for one, other in zip(wanted, live, strict=True):
            if any(True for _ in differences(one, other)):
                yield path
                return


def _same_quantity(wanted: object, live: object, path: Path) -> bool:
    """The API server writes 1024Mi as 1Gi."""
    if "resources" not in path and path[-1:] != ("sizeLimit",):
        return False
    number = quantity(wanted)
    return number is not None and number == quantity(live)


def changed_by(live: Object, path: Path) -> str:
    """The other field manager that owns the field, or else that wrote the object last."""
    others = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("manager") != names.FIELD_MANAGER
        and entry.get("subresource") in (None, "", "scale")
    ]
    owners = [entry for entry in others if _owns(entry.get("fieldsV1") or {}, path)]
    newest = max(owners or others, key=lambda entry: str(entry.get("time", "")), default=None)
    return str(newest["manager"]) if newest else "another writer"


def owner_of_replicas(live: Object) -> str | None:
    """The field manager that wrote spec.replicas last; None if managedFields does not say."""
    path = ("spec", "replicas")
    entries = live["metadata"].get("managedFields") or ()
    owners = [entry for entry in entries if _owns(entry.get("fieldsV1") or {}, path)]
    newest = max(owners, key=lambda entry: str(entry.get("time", "")), default=None)
    return str(newest["manager"]) if newest else None


def only_applied_replicas(live: Object) -> bool:
    """Whether spec.replicas is there because we apply it, and for no other reason: an apply without
    it would take it away."""
    path = ("spec", "replicas")
    entries = live["metadata"].get("managedFields") or ()
    owners = [entry for entry in entries if _owns(entry.get("fieldsV1") or {}, path)]
    applied = (names.FIELD_MANAGER, "Apply")
    return bool(owners) and all((o.get("manager"), o.get("operation")) == applied for o in owners)


def applied_at(live: Object) -> float | None:
    """When our applies changed the object last, in seconds since the epoch; None if its metadata
    does not say."""
    meta = live["metadata"]
    ours = (
        seconds(entry.get("time"))
        for entry in meta.get("managedFields") or ()
        if entry.get("manager") == names.FIELD_MANAGER
    )
    known = [at for at in ours if at is not None]
    return max(known, default=seconds(meta.get("creationTimestamp")))


def _owns(fields: Mapping[str, Any], path: Iterable[str]) -> bool:
    for step in path:
        if "=" in step:
            key, _, value = step.partition("=")
            found = next(
                (
                    below
                    for name, below in fields.items()
                    if name.startswith("k:") and str(json.loads(name[2:]).get(key)) == value
                ),
                None,
            )
        else:
            found = fields.get(f"f:{step}")
        if found is None:
            return False
        if not found:
            return True
        fields = found
    return True


def readable(path: Path) -> str:
    return ".".join(path)
