"""Which pods of a fleet run since when, and what its gateways know: what an edit must not change,
and what it must."""

import json
from typing import Any

from tests.e2e.installed import Installed


def patch(argosy: Installed, fleet: str, **spec: Any) -> None:
    """Edit the fleet's spec."""
    body = json.dumps({"spec": spec})
    argosy.kubectl("patch", "sd", fleet, "--type=merge", "-p", body)


def starts(argosy: Installed, fleet: str, role: str | None = None) -> dict[str, int]:
    """Uid of each pod of the fleet → how often its containers were started again."""
    return {
        pod["metadata"]["uid"]: sum(
            one["restartCount"] for one in pod["status"].get("containerStatuses") or ()
        )
        for pod in argosy.pods(fleet, role)
    }


def restarted(before: dict[str, int], after: dict[str, int]) -> int:
    """How many pods of before are gone or were started again."""
    return sum(after.get(uid) != count for uid, count in before.items())


def said_by_gateways(argosy: Installed, fleet: str, path: str = "8081/metrics") -> list[str]:
    """What each gateway pod says at a port and path."""
    port, _, page = path.partition("/")
    names = [pod["metadata"]["name"] for pod in argosy.pods(fleet, "gateway")]
    proxy = f"/api/v1/namespaces/{argosy.namespace}/pods/{{}}:{port}/proxy/{page}"
    return [argosy.kubectl("get", "--raw", proxy.format(name)) for name in names]


def gateways_have(argosy: Installed, fleet: str, text: str, path: str = "8081/metrics") -> bool:
    """Whether this text is in what every gateway pod says at a port and path."""
    said = said_by_gateways(argosy, fleet, path)
    return bool(said) and all(text in one for one in said)
