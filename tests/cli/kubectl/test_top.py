"""`kubectl argosy top` on a cluster in memory: two looks at each pod."""

import asyncio
import json
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.exceptions import ApiException

from argosy_operator.cli.kubectl.verbs import top as verb
from argosy_operator.core.fleet import names
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
    assert run("top", "chat") == (0, "", "No pods: chat.\n")
    assert run("top", "chat", "--role", "prefill")[2] == "No pods of role prefill: chat.\n"
    status, out, said = run("top", "-o", "json")
    assert (status, json.loads(out), said) == (0, [], "No pods: chat.\n")


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_without_a_name_the_pods_of_all_fleets_of_the_namespace_are_shown(
    world: World, run: Run
) -> None:
    for name, namespace in (("code", "a"), ("chat", "a"), ("blog", "b"), ("idle", "b")):
        world.fleet(name, namespace)
    world.pod("code-decode-1", fleet="code")
    world.pod("chat-gateway-1", "gateway")
    world.pod("chat-decode-1")
    world.pod("blog-decode-1", fleet="blog", namespace="b")
    world.pod("code-forged-1", fleet="code")["metadata"]["ownerReferences"] = []
    status, out, said = run("top")
    assert (status, said) == (0, "")
    assert [line[:3] for line in cells(out)] == [
        ["FLEET", "POD", "ROLE"], ["chat", "chat-decode-1", "decode"],
        ["chat", "chat-gateway-1", "gateway"], ["code", "code-decode-1", "decode"],
    ]  # fmt: skip
    assert world.now == NOW + 2, "all fleets are looked at together"
    status, out, said = run("top", "-A")
    assert [line[:3] for line in cells(out)] == [
        ["NAMESPACE", "FLEET", "POD"], ["a", "chat", "chat-decode-1"],
        ["a", "chat", "chat-gateway-1"], ["a", "code", "code-decode-1"],
        ["b", "blog", "blog-decode-1"],
    ]  # fmt: skip
    assert said == "No pods: b/idle.\n"
    assert [line[0] for line in cells(run("top", "-n", "b")[1])] == ["FLEET", "blog"]
    assert [line[0] for line in cells(run("top", "code")[1])] == ["POD", "code-decode-1"]
    assert [line[1] for line in cells(run("top", "--role", "gateway")[1])] == [
        "POD", "chat-gateway-1",
    ]  # fmt: skip


def test_without_fleets_it_says_how_to_see_those_of_all_namespaces(run: Run) -> None:
    assert run("top") == (
        0,
        "",
        "There are no ServingDeployments in this namespace; -A shows those of all.\n",
    )
    assert run("top", "-A")[2] == "There are no ServingDeployments.\n"


def test_one_fleet_and_all_namespaces_are_refused(run: Run) -> None:
    status, out, said = run("top", "chat", "-A")
    assert (status, out) == (2, "")
    assert "name one fleet or all namespaces, not both: leave out -A" in said


def test_wide_adds_revision_node_and_model(world: World, run: Run) -> None:
    world.fleet(spec={"model": {"uri": "pvc://models/llama"}})
    labels = {names.FLEET: "chat", names.ROLE: "decode", names.REVISION: "7f"}
    world.pod("chat-decode-1", labels=labels)["spec"]["nodeName"] = "node-3"
    world.pod("chat-gateway-1", "gateway")
    status, out, _ = run("top", "chat", "-o", "wide")
    assert status == 0
    head, engine, gateway = cells(out)
    assert head[-4:] == ["STATE", "REVISION", "NODE", "MODEL"]
    assert engine[-3:] == ["7f", "node-3", "pvc://models/llama"]
    assert gateway[-3:] == ["-", "-", "pvc://models/llama"]
    assert "node-3" not in run("top", "chat")[1]
    (found, _) = json.loads(run("top", "chat", "-o", "json")[1])
    assert found == {
        "namespace": "a", "fleet": "chat", "pod": "chat-decode-1", "role": "decode",
        "state": "serving", "revision": "7f", "node": "node-3", "model": "pvc://models/llama",
    }  # fmt: skip


def test_not_all_pods_are_asked_at_one_time(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AT_ONCE", 2)
    world.fleet()
    now = most = 0
    answer = world.connect_get_namespaced_pod_proxy_with_path

    async def slow(*words: Any, **options: Any) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await answer(*words, **options)

    monkeypatch.setattr(world, "connect_get_namespaced_pod_proxy_with_path", slow)
    for number in range(5):
        world.pod(f"chat-decode-{number}")
    assert len(run("top")[1].splitlines()) == 6
    assert most == 2


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
