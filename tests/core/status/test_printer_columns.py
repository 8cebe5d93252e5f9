"""What `kubectl get` prints: the columns of the CRDs over what the operator writes."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from argosy_law.observe import FleetMetrics, Idle, Value, unknown_metrics
from argosy_operator.api.model import dump
from argosy_operator.core.status.numbers import role_status
from tests.core.status.worlds import (
    BUDGET,
    GATEWAY,
    HOOK,
    NOW,
    World,
    leaving,
    pod,
    round_of,
    sick,
    status,
    unready,
)

CRDS = Path(__file__).resolve().parents[3] / "crds"
SLO = {"slo": {"ttft": {"target": "2s"}, "tpot": {"target": "50ms"}}}
WIDE = ("Model", "Revision", "Policy", "URL")
BORN = "2026-01-01T00:00:00Z"


@cache
def version(plural: str) -> Any:
    """The served version in the CRD."""
    return yaml.safe_load((CRDS / f"{plural}.yaml").read_text())["spec"]["versions"][0]


def printed(plural: str, obj: Any) -> dict[str, Any]:
    """The cells of one line, by title, as the API server takes them from the object."""
    columns = version(plural)["additionalPrinterColumns"]
    return {column["name"]: _at(obj, column["jsonPath"]) for column in columns}


PART = re.compile(r'\.(\w+)(?:\[\?\(@\.type=="(\w+)"\)\])?')
"""A name, and the type of the one condition that is taken."""


def _at(obj: Any, path: str) -> Any:
    for name, condition in PART.findall(path):
        obj = (obj or {}).get(name)
        if condition:
            obj = next((one for one in obj or () if one["type"] == condition), None)
    return obj


def fleet_line(world: World) -> str:
    """The line of the fleet, without its age; - for an empty cell."""
    cells = wide_line(world)
    assert cells.pop("Age") == BORN
    shown = [cell for name, cell in cells.items() if name not in WIDE]
    return " ".join("-" if cell is None else str(cell) for cell in shown)


def wide_line(world: World) -> dict[str, Any]:
    """What `kubectl get sd -o wide` prints."""
    spec = dump(round_of(world)[0].fleet.spec)
    obj = {"metadata": {"creationTimestamp": BORN}, "spec": spec, "status": dump(status(world))}
    return printed("servingdeployments", obj)


def measured(attained: float, **more: Any) -> World:
    """A colocated fleet with an SLO of 90%; Prometheus answers this."""
    metrics = FleetMetrics(
        NOW,
        Value(8.0, NOW),
        attainment=Value(attained, NOW),
        ttft_p90_s=Value(1.617, NOW),
        tpot_p90_s=Value(0.0412, NOW),
    )
    return World(**({"spec": SLO, "metrics": metrics} | more))


TWO_AND_THREE = {
    "mode": "disaggregated",
    "roles": {
        "prefill": {"replicas": {"min": 2, "max": 4}},
        "decode": {"replicas": {"min": 3, "max": 4}},
    },
}
BUSY = (
    pod("prefill", gpus=2),
    unready("prefill", 2, gpus=2),
    pod("decode", gpus=4),
    pod("decode", 2, gpus=4),
    leaving("decode", 3, gpus=4),
    pod("decode", 4, terminating=True, gpus=4),
    pod("decode", 5, "old", gpus=8),
    GATEWAY,
)


@pytest.mark.parametrize(
    ("line", "world"),
    [
        ("colocated 1/1 - 0 None - - - AsSpecified", World()),
        ("colocated 0/1 - 8 None - - - Starting", sick(gpus=8)),
        ("disaggregated 1/2 3/3 24 None - - - Starting", World(TWO_AND_THREE, BUSY)),
        (
            "disaggregated 1/2 3/3 24 Met 0.950 1.62s 41ms Starting",
            measured(0.95, spec=SLO | TWO_AND_THREE, pods=BUSY),
        ),
        (
            "disaggregated 0/1 0/1 14 None - - - RollingOut",
            World(
                {"mode": "disaggregated"},
                (
                    unready("prefill", gpus=2),
                    unready("decode", gpus=4),
                    pod("colocated", revision="old", gpus=8),
                    GATEWAY,
                ),
                old="colocated",
            ),
        ),
        ("colocated 1/1 - 0 Met 0.902 1.62s 41ms AsSpecified", measured(0.902)),
        ("colocated 1/1 - 0 AtRisk 0.901 1.62s 41ms AsSpecified", measured(0.901)),
        ("colocated 1/1 - 0 AtRisk 0.900 1.62s 41ms AsSpecified", measured(0.9)),
        ("colocated 1/1 - 0 Missed 0.899 1.62s 41ms AsSpecified", measured(0.899)),
        (
            "colocated 1/1 - 0 Idle - - - AsSpecified",
            World(SLO, metrics=FleetMetrics(NOW, Idle(NOW), attainment=Idle(NOW))),
        ),
        (
            "colocated 1/1 - 0 Unknown - - - AsSpecified",
            World(SLO, metrics=unknown_metrics(NOW, "NoPrometheus: set it")),
        ),
        (
            "colocated 1/1 - 0 None - - - AsSpecified",
            World(SLO | {"autoscaling": {"policy": "External"}}),
        ),
        (
            "colocated 0/1 - 0 None - - - ImagePullFailed",
            sick(waiting=("ErrImagePull", "no such image")),
        ),
        (
            "colocated 1/1 - 0 None - - - WriteFailed",
            World(fails={BUDGET: HOOK}, for_s=300.0),
        ),
        ("colocated 1/1 - 0 None - - - Paused", World({"paused": True})),
        (
            "colocated 1/1 - 0 None - - - ForeignObject",
            World({"paused": True}, taken=("Service/chat",)),
        ),
        ("colocated 1/1 - 0 None - - - GatewayNotReady", World(pods=(pod("colocated"),))),
        (
            "colocated 0/0 - 0 None - - - Parked",
            World({"roles": {"colocated": {"replicas": {"min": 0, "max": 0}}}}, (GATEWAY,)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kubectl_get_sd_prints(line: str, world: World) -> None:
    assert fleet_line(world) == line


def test_the_wide_line_says_what_is_served_by_whom_and_where() -> None:
    columns = version("servingdeployments")["additionalPrinterColumns"]
    assert tuple(c["name"] for c in columns if c.get("priority") == 1) == WIDE
    world = World(SLO)
    cells = wide_line(world)
    assert [cells[name] for name in WIDE] == [
        "sim://opt-13b-a100",
        round_of(world)[0].revision,
        "Goodput",
        "http://chat.ns.svc",
    ]


def test_pods_of_before_serve_and_are_counted() -> None:
    """P and D were 0/2 with two pods serving."""
    two = {"roles": {"colocated": {"replicas": {"min": 2, "max": 4}}}}
    old = (pod("colocated", 1, "old"), pod("colocated", 2, "old"))
    assert fleet_line(World(two, (*old, GATEWAY), old="colocated")).startswith("colocated 2/2 - ")
    starts = (unready("colocated", 3), pod("colocated", 4))
    world = World(two, (*old, *starts, GATEWAY), old="colocated")
    assert fleet_line(world) == "colocated 3/2 - 0 None - - - RollingOut"


def test_kubectl_get_sr_prints_the_role_and_its_pods() -> None:
    """Pods of older revisions count, those that are being deleted do not."""
    snapshot, _, _ = round_of(World(TWO_AND_THREE, BUSY))
    selector = "serving.argosy.dev/fleet=chat,serving.argosy.dev/role=decode"
    role = snapshot.children["ServingRole", "chat-decode"]
    status_ = role_status(snapshot, "decode", selector)
    assert status_ == {"replicas": 4, "readyReplicas": 4, "selector": selector}
    role = {**role, "status": status_, "metadata": {"creationTimestamp": BORN}}
    assert printed("servingroles", role) == {
        "Fleet": "chat",
        "Role": "decode",
        "Wanted": 3,
        "Pods": 4,
        "Ready": 4,
        "Bounds": None,
        "Age": BORN,
    }
    limited = {"type": "ScalingLimited", "status": "True", "reason": "OutOfBounds"}
    ready = {"type": "Ready", "status": "True", "reason": "AsSpecified"}
    role = {**role, "status": {**status_, "conditions": [ready, limited]}}
    assert printed("servingroles", role)["Bounds"] == "OutOfBounds"
    prefill = role_status(snapshot, "prefill", "")
    assert (prefill["replicas"], prefill["readyReplicas"]) == (2, 1)
