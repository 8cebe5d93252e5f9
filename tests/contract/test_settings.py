"""What a gateway says of its settings is what the operator compares with those that it rendered."""

import json
from typing import Any

from argosy_gateway.options import Settings
from argosy_gateway.server.admin import read_load
from argosy_operator.adapters.gateways import parse_load
from argosy_operator.core.snapshot.names import SETTINGS_KEY
from argosy_operator.core.snapshot.objects import child_key
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.core.status.worlds import NOW, World, pod, snapshot_of, status
from tests.gateway.server.asked import gateway_of

NAME = "chat-gateway-1"
PODS = (pod("colocated"), pod("gateway", revision="", ip="10.0.0.1"))
RENAMED = {"model": {"uri": "sim://opt-13b-a100", "servedNames": ["a", "org/b:2"]}}


def rendered(spec: dict[str, Any]) -> dict[str, str]:
    """The data of the settings."""
    wanted = snapshot_of(World(spec), LoopMemory(), NOW).wanted
    (found,) = (obj for obj in wanted if child_key(obj) == ("ConfigMap", "chat-gateway"))
    data: dict[str, str] = found["data"]
    return data


def rolled_out(spec: dict[str, Any], *read: dict[str, str]) -> str:
    """What status says of a fleet of this spec whose gateway has read these settings in turn."""
    running = gateway_of(served_names=(), settings_name="chat-gateway", pod_name=NAME)
    take = Settings(running)
    for data in read:
        take(data)
    said = parse_load(json.dumps(read_load(running)).encode(), NAME, NOW)
    found = status(World(spec, pods=PODS, said={NAME: said}))
    return next(f"{c.status} {c.reason}" for c in found.conditions if c.type == "RolledOut")


def test_a_gateway_that_took_what_is_rendered_uses_it() -> None:
    assert rolled_out(RENAMED, rendered({}), rendered(RENAMED)) == "True RolledOut"


def test_a_gateway_that_took_what_was_rendered_before_does_not() -> None:
    assert rolled_out(RENAMED, rendered({})) == "False GatewaySettingsPending"
    assert rolled_out(RENAMED) == "False GatewaySettingsPending"


def test_a_gateway_that_cannot_use_what_is_rendered_refuses_it() -> None:
    """As one of an older version, which knows fewer strategies."""
    running = gateway_of(served_names=(), settings_name="chat-gateway", pod_name=NAME)
    newer = rendered({})[SETTINGS_KEY].replace("leastLoad", "of-a-newer-operator")
    Settings(running)({SETTINGS_KEY: newer})
    said = parse_load(json.dumps(read_load(running)).encode(), NAME, NOW)
    assert said is not None
    assert said.settings is not None
    assert "of-a-newer-operator" in said.settings.refused
