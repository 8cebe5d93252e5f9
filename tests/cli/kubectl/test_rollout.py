"""`kubectl argosy rollout` on a cluster in memory: what it writes, says and ends with."""

from typing import Any

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import World

OLD, NEW = "aaaa1111", "bbbb2222"


def rolled_out(status: str, reason: str, **parts: Any) -> dict[str, Any]:
    """Status of a fleet of revision NEW with this RolledOut."""
    said = {"type": "RolledOut", "status": status, "reason": reason, "observedGeneration": 1}
    return {"revision": NEW, "conditions": [said | {"message": "why"}], **parts}


@pytest.fixture
def chat(world: World) -> dict[str, Any]:
    fleet = world.fleet(status=rolled_out("True", "RolledOut"))
    world.past(OLD, 1)
    world.past(NEW, 2)
    return fleet


def mark(chat: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = chat["status"]["refused"]
    return found


def test_undo_marks_the_revision_of_the_spec_and_leaves_the_spec_alone(
    chat: dict[str, Any], run: Run
) -> None:
    status, out, _ = run("rollout", "undo", "chat")
    assert status == 0
    assert all(word in out for word in (OLD, NEW, "rollout status chat --watch"))
    said = mark(chat)
    assert (said["revision"], said["runs"], said["reason"]) == (NEW, OLD, "Undone")
    assert "spec" not in chat


def test_a_second_undo_goes_one_further_back(chat: dict[str, Any], world: World, run: Run) -> None:
    world.past("00000000", 0)
    run("rollout", "undo", "chat")
    chat["status"]["revision"] = OLD
    assert run("rollout", "undo", "chat")[0] == 0
    assert (mark(chat)["revision"], mark(chat)["runs"]) == (NEW, "00000000")
    status, _, said = run("rollout", "undo", "chat", "--to-revision", NEW)
    assert (status, "promote chat" in said) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["undo", "chat", "--to-revision", "cccc3333"], f"its history has {NEW}, {OLD}"),
        (["undo", "chat", "--to-revision", NEW], "the one that the spec asks for"),
        (["undo", "none"], "no ServingDeployment none in namespace a: it has chat"),
        (["promote", "chat"], "no revision of chat is refused"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_with_what_there_is(
    chat: dict[str, Any], run: Run, words: list[str], said: str
) -> None:
    status, out, error = run("rollout", *words)
    assert (status, out) == (1, "")
    assert said in error
    assert "refused" not in chat["status"]


def test_a_fleet_of_one_revision_has_nothing_to_undo(world: World, run: Run) -> None:
    world.fleet(status=rolled_out("True", "RolledOut"))
    world.past(NEW, 1)
    status, _, said = run("rollout", "undo", "chat")
    assert (status, "no earlier revision" in said) == (1, True)


def test_promote_takes_the_mark_away(chat: dict[str, Any], run: Run) -> None:
    run("rollout", "undo", "chat")
    assert run("rollout", "promote", "chat")[0] == 0
    assert chat["status"]["refused"] is None


def test_promote_ends_a_canary(chat: dict[str, Any], run: Run) -> None:
    chat["spec"] = {"rollout": {"canary": {"share": "10%"}}}
    chat["status"]["rollout"] = {"new": {"revision": NEW}}
    assert run("rollout", "promote", "chat")[0] == 0
    assert chat["status"]["promoted"] == NEW


def test_a_right_that_is_missing_is_named(chat: dict[str, Any], world: World, run: Run) -> None:
    world.refuses = 403
    status, _, said = run("rollout", "undo", "chat")
    assert (status, "patch servingdeployments/status chat" in said) == (4, True)


def test_pause_and_resume_write_the_spec(chat: dict[str, Any], run: Run) -> None:
    run("rollout", "pause", "chat")
    assert chat["spec"]["rollout"]["paused"] is True
    run("rollout", "resume", "chat")
    assert chat["spec"]["rollout"]["paused"] is False


def test_history_says_which_revision_runs_and_which_is_refused(
    chat: dict[str, Any], run: Run
) -> None:
    run("rollout", "undo", "chat")
    chat["status"]["revision"] = OLD
    _, out, _ = run("rollout", "history", "chat")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (NEW, "2", "refused"), (OLD, "1", "runs"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "reason", "ends"),
    [
        ("True", "RolledOut", 0),
        ("False", "RolledBack", 1),
        ("False", "SurgeTooSmall", 1),
        ("False", "RollingOut", 6),
        ("False", "RolloutPaused", 6),
    ],
)
def test_status_ends_with_what_a_pipeline_needs(
    world: World, run: Run, status: str, reason: str, ends: int
) -> None:
    world.fleet(status=rolled_out(status, reason))
    assert run("rollout", "status", "chat")[0] == ends
    world.objects[-1]["metadata"]["generation"] = 2
    assert run("rollout", "status", "chat")[0] == 6, "it is about an older spec"


def test_watch_prints_each_change_until_the_rollout_is_over(world: World, run: Run) -> None:
    fleet = world.fleet(status=rolled_out("False", "RollingOut"))

    def on_sleep(_: float) -> None:
        if world.now > 1_800_000_020.0:
            fleet["status"] = rolled_out("False", "RolledBack")

    world.on_sleep = on_sleep
    status, out, _ = run("rollout", "status", "chat", "--watch")
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == ["RolledOut=False"] * 2
    fleet["status"] = rolled_out("False", "RollingOut")
    world.on_sleep = lambda _: None
    status, _, said = run("rollout", "status", "chat", "--watch", "--timeout", "90s")
    assert (status, "not over after 90s" in said) == (6, True)


def test_watch_goes_on_when_a_call_fails_and_ends_with_the_rollout(world: World, run: Run) -> None:
    fleet, looks = world.fleet(status=rolled_out("False", "RollingOut")), list[float]()

    def on_sleep(seconds: float) -> None:
        looks.append(seconds)
        failed = ClusterError(ErrorKind.FAILED, "get ServingDeployment chat", "etcd is slow")
        world.down = failed if len(looks) == 1 else None
        if len(looks) == 2:
            fleet["status"] = rolled_out("True", "RolledOut")

    world.on_sleep = on_sleep
    status, out, said = run("rollout", "status", "chat", "--watch")
    assert (status, len(looks)) == (0, 2)
    assert "etcd is slow" in said
    assert "RolledOut=True" in out
