"""`kubectl argosy drain` on a cluster in memory: the mark, the wait, and what is refused."""

import pytest

from argosy_operator.cli.kubectl.drain import Work, read_work
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.names import ADMIN_PORT
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import OUR_COST
from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import NOW, World

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m",engine="0"}} {running}
vllm:num_requests_running{{model_name="m",engine="1"}} 0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m",engine="0"}} {waiting}
# TYPE argosy_kv_leases_active gauge
argosy_kv_leases_active {leases}
"""


def busy(running: int = 0, waiting: int = 0, leases: int = 0) -> str:
    return PAGE.format(running=running, waiting=waiting, leases=leases)


@pytest.fixture(autouse=True)
def pods(world: World) -> None:
    world.fleet()
    for name in ("chat-decode-1", "chat-decode-2"):
        world.pod(name)


def mark(world: World) -> str | None:
    pod = next(o for o in world.objects if o["metadata"]["uid"] == "Pod-chat-decode-1")
    found: str | None = pod["metadata"].get("annotations", {}).get(names.DRAIN)
    return found


def test_a_pod_is_marked_and_awaited(world: World, run: Run) -> None:
    left = [2, 2, 1, 0, 0, 1, 0, 0, 0]
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = lambda: busy(left.pop(0))
    status, out, said = run("drain", "chat-decode-1")
    assert status == 0
    assert left == []
    assert world.now == NOW + 8
    assert mark(world) == rfc3339(NOW)
    assert said.splitlines() == [
        "chat-decode-1 still has 2 requests", "chat-decode-1 still has 1 requests",
        "chat-decode-1 has no requests", "chat-decode-1 still has 1 requests",
        "chat-decode-1 has no requests",
    ]  # fmt: skip
    assert out == (
        "chat-decode-1 is empty. `kubectl delete pod chat-decode-1 -n a` replaces it; "
        "`kubectl argosy drain chat-decode-1 --undo` lets it take requests again.\n"
    )


def test_a_pod_of_another_engine_is_asked_where_it_shows_its_metrics(
    world: World, run: Run
) -> None:
    world.pod("chat-decode-9", annotations={"prometheus.io/port": "8000"})
    world.pages["chat-decode-9:8000"] = busy
    status, out, _ = run("drain", "chat-decode-9")
    assert (status, "chat-decode-9 is empty." in out) == (0, True)


def test_undo_takes_the_mark_away(world: World, run: Run) -> None:
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = busy
    run("drain", "chat-decode-1")
    assert run("drain", "chat-decode-1", "--undo")[:2] == (
        0, "chat-decode-1 takes requests again.\n",
    )  # fmt: skip
    assert mark(world) is None


def test_a_mark_of_the_operator_is_not_a_persons_to_take_back(world: World, run: Run) -> None:
    marks = {names.DRAIN: "2026-01-01T00:00:00Z", names.DELETION_COST: OUR_COST}
    world.pod("chat-decode-3", annotations=marks)
    status, _, said = run("drain", "chat-decode-3", "--undo")
    assert status == 1
    assert said == (
        "kubectl argosy drain: the operator drains chat-decode-3, because the fleet needs "
        "fewer pods or rolls out: raise the role's replicas instead\n"
    )


def test_with_delete_it_goes_once_it_is_empty(world: World, run: Run) -> None:
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = busy
    status, out, _ = run("drain", "chat-decode-1", "--delete")
    assert (status, out) == (
        0, "chat-decode-1 was empty and is deleted; its Deployment starts another.\n",
    )  # fmt: skip
    assert [o for o in world.objects if o["metadata"]["uid"] == "Pod-chat-decode-1"] == []


def test_at_the_limit_it_says_what_is_left_and_keeps_the_mark(world: World, run: Run) -> None:
    world.pages[f"chat-decode-1:{ADMIN_PORT}"] = lambda: busy(1, waiting=2, leases=3)
    status, _, said = run("drain", "chat-decode-1", "--timeout", "5s")
    assert status == 1
    assert said.splitlines()[-1] == (
        "kubectl argosy drain: chat-decode-1 still has 3 requests, and holds the KV of 3 "
        "prompts, after 5 s. It keeps its mark and drains on: give a longer --timeout, or let "
        "it take requests again with --undo"
    )
    assert world.now == NOW + 5
    assert mark(world) == rfc3339(NOW)


def test_a_pod_that_was_made_anew_under_the_name_is_another_one(world: World, run: Run) -> None:
    def slept(_: float) -> None:
        world.gone("chat-decode-1")
        world.pod("chat-decode-1")["metadata"]["uid"] = "new"

    world.on_sleep = slept
    assert run("drain", "chat-decode-1")[0] == 0


def test_a_pod_that_does_not_answer_is_not_taken_for_empty(world: World, run: Run) -> None:
    status, _, said = run("drain", "chat-decode-1", "--timeout", "3s")
    assert status == 1
    assert "chat-decode-1 does not say what it still computes, after 3 s" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none", "there is no pod none in namespace a: its engine pods are chat-decode-1, "),
        ("nginx", "nginx is no pod of a fleet"),
        ("forged", "forged carries the label of fleet chat and does not belong to it"),
        ("orphan", "orphan carries the label of fleet gone and does not belong to it"),
        ("chat-gateway-1", "it drains by itself when it is deleted"),
    ],
)
def test_what_is_no_engine_pod_of_a_fleet_is_refused(
    name: str, says: str, world: World, run: Run
) -> None:
    world.pod("chat-gateway-1", "gateway")
    world.pod("nginx", labels={})
    world.pod("orphan", fleet="gone")
    world.pod("forged")["metadata"]["ownerReferences"] = []
    status, _, said = run("drain", name)
    assert status == 1
    assert says in said


def test_what_a_pod_still_computes_is_read_from_its_metrics() -> None:
    assert read_work(busy(4, 2, 1)) == Work(4, 2, 1)
    of_sglang = busy(4, 2).replace("vllm:num_requests_running", "sglang:num_running_reqs")
    of_sglang = of_sglang.replace("vllm:num_requests_waiting", "sglang:num_queue_reqs")
    assert read_work(of_sglang).streams == 6
    assert read_work("").streams is None
    assert read_work("no metrics {") == Work()
