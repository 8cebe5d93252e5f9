"""`kubectl argosy logs` on a cluster in memory: whose lines, and until when."""

import json

from kubernetes.aio.client.exceptions import ApiException

from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import World


def test_lines_stand_behind_their_pods_and_options_are_passed_on(world: World, run: Run) -> None:
    world.fleet()
    for name, role in (("chat-decode-1", "decode"), ("chat-gateway-1", "gateway")):
        world.pod(name, role)
    world.logs = {
        "chat-decode-1/engine": [b"one\n", b"tw\xff\n"],
        "chat-gateway-1/gateway": [b"three\n"],
    }
    status, out, _ = run("logs", "chat")
    assert status == 0
    assert out.splitlines() == [
        "[chat-decode-1] one", "[chat-decode-1] tw\ufffd", "[chat-gateway-1] three",
    ]  # fmt: skip
    assert world.asked == [("chat-decode-1", {}), ("chat-gateway-1", {})]
    world.asked.clear()
    run("logs", "chat", "--role", "gateway", "--since", "2m", "--tail", "5", "-p")
    asked = {"since_seconds": 120, "tail_lines": 5, "previous": True}
    assert world.asked == [("chat-gateway-1", asked)]


def test_a_container_that_waits_to_start_is_a_line_and_the_others_follow(
    world: World, run: Run
) -> None:
    world.fleet()
    for name in ("chat-decode-1", "chat-decode-2"):
        world.pod(name)
    waits = ApiException(status=400)
    waits.body = json.dumps({"message": "container is waiting to start"})
    world.logs = {"chat-decode-1/engine": waits, "chat-decode-2/engine": [b"x\n"]}
    status, out, _ = run("logs", "chat")
    assert status == 0
    assert out.splitlines() == [
        "[chat-decode-1] (container is waiting to start)", "[chat-decode-2] x",
    ]  # fmt: skip


def test_lines_are_those_of_the_fleet_in_the_namespace_that_is_named(
    world: World, run: Run
) -> None:
    for namespace in ("a", "b"):
        world.fleet("chat", namespace)
        world.pod(f"chat-decode-{namespace}", namespace=namespace)
        world.logs[f"chat-decode-{namespace}/engine"] = [b"x\n"]
    assert run("logs", "chat", "-n", "b")[1] == "[chat-decode-b] x\n"


def test_a_missing_right_is_named(world: World, run: Run) -> None:
    world.fleet()
    world.pod("chat-decode-1")
    for words in (["logs", "chat"], ["logs", "chat", "-f"]):
        world.logs = {"chat-decode-1/engine": ApiException(status=403)}
        status, _, said = run(*words)
        assert status == 4
        assert "you may not get pods/log of chat-decode-1" in said


def test_a_fleet_without_pods_says_so(world: World, run: Run) -> None:
    world.fleet()
    assert run("logs", "chat") == (1, "", "kubectl argosy logs: chat has no pods\n")
    said = run("logs", "chat", "--role", "prefill")[2]
    assert said == "kubectl argosy logs: chat has no pods of role prefill\n"


def test_following_what_has_ended_is_refused(run: Run) -> None:
    status, _, said = run("logs", "chat", "-f", "-p")
    assert status == 2
    assert "a container that has ended writes no more: leave out -f" in said


def test_a_follower_takes_new_pods_from_their_start(world: World, run: Run) -> None:
    world.fleet()
    world.pod("chat-decode-1")
    waits, looks = ApiException(status=400), list[float]()
    world.logs = {"chat-decode-1/engine": [b"old\n"], "chat-decode-2/engine": waits}

    def slept(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            world.pod("chat-decode-2")
        if len(looks) == 5:
            world.logs["chat-decode-2/engine"] = [b"new\n"]
        if len(looks) == 12:
            raise KeyboardInterrupt

    world.on_sleep = slept
    status, out, _ = run("logs", "chat", "-f", "--tail", "1")
    assert status == 130
    assert out.splitlines() == ["[chat-decode-1] old", "[chat-decode-2] new"]
    assert set(looks) == {2.0}
    assert world.asked[0] == ("chat-decode-1", {"follow": True, "tail_lines": 1})
    assert world.asked[-1] == ("chat-decode-2", {"follow": True})
