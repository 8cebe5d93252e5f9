"""Which pods a ReplicaSet removes first, from Kubernetes' documentation and its controller.

https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-down-a-replicaset and
ActivePodsWithRanks in controller_utils.go have the rules. Pods are objects as the API server has
them. Nothing here is shared with the operator, whose own order is compared with this one.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import cmp_to_key
from typing import Any

Object = dict[str, Any]
COST = "controller.kubernetes.io/pod-deletion-cost"
PHASES = ("Pending", "Unknown", "Running")


def removed_first(pods: Iterable[Object], now: float) -> list[Object]:
    """Active pods of one ReplicaSet: the first one is removed first. Kubernetes leaves open which
    of two pods goes that no rule tells apart; here it goes by name."""
    active = sorted(filter(is_active, pods), key=lambda pod: str(pod["metadata"]["name"]))
    on_node = Counter(pod["spec"].get("nodeName", "") for pod in active)

    def compare(one: Object, other: Object) -> int:
        rules = (
            _first_if(one, other, lambda pod: not pod["spec"].get("nodeName")),
            _smaller(*(PHASES.index(pod["status"]["phase"]) for pod in (one, other))),
            _first_if(one, other, lambda pod: ready_since(pod) is None),
            _smaller(cost_of(one), cost_of(other)),
            _smaller(*(-on_node[pod["spec"].get("nodeName", "")] for pod in (one, other))),
            _younger(ready_since(one), ready_since(other), one, other, now),
            _smaller(-restarts(one), -restarts(other)),
            _younger(created(one), created(other), one, other, now),
        )
        return next((rule for rule in rules if rule), 0)

    return sorted(active, key=cmp_to_key(compare))


def is_active(pod: Object) -> bool:
    """A ReplicaSet counts it."""
    ended = pod["status"]["phase"] in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def ready_since(pod: Object) -> float | None:
    """When it became ready; None if it is not."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return _seconds(condition["lastTransitionTime"])
    return None


def created(pod: Object) -> float:
    return _seconds(pod["metadata"]["creationTimestamp"])


def cost_of(pod: Object) -> int:
    """0 for a text that is no 32-bit number as Kubernetes writes one: no plus sign, no 007."""
    text = pod["metadata"].get("annotations", {}).get(COST, "0")
    number = int(text) if re.fullmatch(r"0|-?[1-9][0-9]*", text, re.ASCII) else 0
    return number if -(2**31) <= number < 2**31 else 0


def restarts(pod: Object) -> int:
    counts = [c["restartCount"] for c in pod["status"].get("containerStatuses", ())]
    return max(counts, default=0)


def _smaller(one: float, other: float) -> int:
    return (one > other) - (one < other)


def _first_if(one: Object, other: Object, rule: Any) -> int:
    return int(rule(other)) - int(rule(one))


def _younger(
    since: float | None, other_since: float | None, one: Object, other: Object, now: float
) -> int:
    """The younger one first, by powers of two of its age in nanoseconds; within one power by uid,
    so that the choice among pods of about one age is random."""
    if since is None or other_since is None or since == other_since:
        return 0
    powers = [
        int(math.log2(age_s * 1e9)) if (age_s := now - time) > 0 else -1
        for time in (since, other_since)
    ]
    uids = (one["metadata"]["uid"], other["metadata"]["uid"])
    return _smaller(*powers) or (uids[0] > uids[1]) - (uids[0] < uids[1])


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
