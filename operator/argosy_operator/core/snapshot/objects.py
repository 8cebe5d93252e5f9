"""Kubernetes objects as JSON: the types for them, who owns them, and how they write values.

Everything here is pure and knows nothing of a fleet. Objects come from the API server or from
`render`; core reads them and never changes one in place.
"""

import hashlib
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from argosy_operator.api.v1alpha1 import API_VERSION

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
    """What a server-side apply of `/status` sends for the object with this metadata."""
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
