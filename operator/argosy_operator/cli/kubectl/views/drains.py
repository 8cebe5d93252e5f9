"""Which pods `kubectl argosy drain` may drain, and what it says meanwhile. Pure."""

from collections.abc import Sequence

from argosy_operator.cli.kubectl.views.loads import Load, state_of
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object
from argosy_operator.core.fleet.pods import pod_of
from argosy_operator.core.fleet.snapshot import role_of


def fleet_of(pod: Object) -> str | None:
    """The fleet that the pod's label names."""
    name = (pod["metadata"].get("labels") or {}).get(names.FLEET)
    return None if name is None else str(name)


def refusal(name: str, namespace: str, pod: Object | None, pods: Sequence[Object]) -> str | None:
    """Why the pod cannot be drained; None if it can. `pods` are those that its fleet owns, or, for
    a pod that is not there, those that have the label of a fleet."""
    if pod is None:
        engines = sorted(p["metadata"]["name"] for p in pods if role_of(p) in names.ENGINE_ROLES)
        there = f"its engine pods are {', '.join(engines)}" if engines else "it has no engine pods"
        return f"there is no pod {name} in namespace {namespace}: {there}"
    if fleet_of(pod) is None:
        return f"{name} is no pod of a fleet: it has no label {names.FLEET}"
    if all(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in pods):
        return (
            f"{name} carries the label of fleet {fleet_of(pod)} and does not belong to it: no "
            "Deployment of the fleet made it"
        )
    if role_of(pod) in names.FRONT_ROLES:
        return (
            f"{name} is a {role_of(pod)} pod: it drains by itself when it is deleted "
            f"(`kubectl delete pod {name}`), because its Service sends it nothing more"
        )
    return None


def by_operator(pod: Object) -> bool:
    """Whether the operator chose it to leave: its mark is not a person's to take back."""
    return pod_of(pod).victim


def left_serving(pod: Object, pods: Sequence[Object]) -> str | None:
    """A warning if no other pod of the role serves."""
    role, uid = role_of(pod), pod["metadata"]["uid"]
    others = [p for p in pods if role_of(p) == role and p["metadata"]["uid"] != uid]
    if any(state_of(p) == "serving" for p in others):
        return None
    return (
        f"warning: no other {role} pod of {fleet_of(pod)} serves; requests wait, or are refused, "
        "until one does"
    )


def progress(name: str, work: Load) -> str:
    """What the pod still has to do, as a sentence without its full stop."""
    if work.streams is None:
        return f"{name} does not say what it still computes"
    if work.streams == 0:
        return f"{name} has no requests"
    held = f", and holds the KV of {work.leases:.0f} prompts" if work.leases else ""
    requests = (work.running or 0) + (work.waiting or 0)
    return f"{name} still has {requests:.0f} requests{held}"
