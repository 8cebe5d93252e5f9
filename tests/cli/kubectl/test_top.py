"""`kubectl argosy top` on a cluster in memory: two looks at each pod."""

import json
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.exceptions import ApiException

from argosy_operator.core.fleet.names import ADMIN_PORT, GATEWAY_ADMIN_PORT
from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import NOW, World
from tests.cli.kubectl.test_loads import PAGE


def test_rates_are_those_between_two_looks(world: World, run: Run) -> None:
    world.fleet()
    world.pod("chat-decode-1")
    world.pod("chat-gateway-1", "gateway")
    world.pod("other-decode-1", fleet="other")
    pages = [PAGE.format(running=1, tokens=n, fast=1, all=n) for n in (100, 300)]
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = lambda: pages[world.now > NOW]
    world.pages[f"chat-gateway-1:{GATEWAY_ADMIN_PORT}"] = lambda: (
        "argosy_gateway_inflight_requests 3\nargosy_gateway_waiting_requests 1\n"
    )
    status, out, _ = run("top", "chat", "-o", "json", "--interval", "4")
    assert status == 0
    engine, gateway = json.loads(out)
    assert (engine["pod"], engine["tokensPerSecond"]) == ("chat-decode-1", 50)
    assert (gateway["pod"], gateway["running"], gateway["waiting"]) == ("chat-gateway-1", 2, 1)
    assert world.now == NOW + 4
    (line,) = run("top", "chat", "--role", "decode")[1].splitlines()[1:]
    assert line.split()[:2] == ["chat-decode-1", "decode"]
    assert world.now == NOW + 6
    assert yaml.safe_load(run("top", "chat", "-o", "yaml")[1])[0]["role"] == "decode"


def test_a_fleet_without_pods_says_so(world: World, run: Run) -> None:
    world.fleet()
    assert run("top", "chat")[:2] == (0, "chat has no pods.\n")
    assert run("top", "chat", "--role", "prefill")[1] == "chat has no pods of role prefill.\n"


@pytest.mark.parametrize("page", ["x{", ApiException(status=502), OSError()])
def test_a_pod_without_readable_metrics_has_no_numbers(page: Any, world: World, run: Run) -> None:
    world.fleet()
    world.pod("chat-decode-1")
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = lambda: page
    status, out, _ = run("top", "chat")
    assert status == 0
    assert out.splitlines()[1].endswith("serving, does not answer")


def test_a_missing_right_is_named(world: World, run: Run) -> None:
    world.fleet()
    world.pod("chat-decode-1")
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = lambda: ApiException(status=403)
    status, _, said = run("top", "chat")
    assert status == 4
    assert "you may not get pods/proxy" in said
