"""`kubectl argosy status` on a cluster in memory: what it prints, and when again."""

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import rfc3339
from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import NOW, World

SPEC = {"model": {"uri": "sim://opt-13b-a100"}}


def test_the_fleets_of_the_namespace_are_listed_by_name(world: World, run: Run) -> None:
    for name, namespace in (("code", "a"), ("chat", "a"), ("blog", "b")):
        world.fleet(name, namespace, spec=SPEC)
    status, out, _ = run("status")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "chat", "code"]
    assert "blog" in run("status", "-n", "b")[1]
    everywhere = run("status", "-A")[1].splitlines()
    assert [line.split()[:2] for line in everywhere] == [
        ["NAMESPACE", "NAME"], ["a", "chat"], ["a", "code"], ["b", "blog"],
    ]  # fmt: skip


def test_one_fleet_is_shown_in_detail_or_wide(world: World, run: Run) -> None:
    fleet = world.fleet(spec=SPEC, status={"conditions": []})
    fleet["metadata"]["creationTimestamp"] = rfc3339(NOW - 7200)
    detail = run("status", "chat")[1]
    assert "No spec.slo: replicas follow no SLO." in detail
    assert "2h" in detail.splitlines()[1].split()
    wide = run("status", "chat", "-o", "wide")[1]
    assert "sim://opt-13b-a100" in wide
    assert "2h" in wide.splitlines()[1].split()
    assert "No spec.slo" not in wide


def test_a_fleet_shows_what_the_start_of_a_pod_consists_of(world: World, run: Run) -> None:
    measured = {
        "timeToReady": "92s",
        "startPhases": {"scheduling": "1s", "files": "2s", "images": "41s", "load": "48s"},
    }
    roles = {"prefill": measured, "decode": {"desired": 1}}
    world.fleet(spec=SPEC, status={"roles": roles})
    out = run("status", "chat")[1]
    head, row = out[out.index("START OF A POD") :].splitlines()[:2]
    assert head.split()[4:] == ["UNTIL", "READY", "SCHEDULING", "FILES", "IMAGES", "LOAD"]
    assert row.split() == ["prefill", "92s", "1s", "2s", "41s", "48s"]
    assert not out.splitlines()[out.splitlines().index(row) + 1], "decode's was not measured"


def test_an_unknown_fleet_names_those_that_there_are(world: World, run: Run) -> None:
    world.fleet("code")
    status, _, said = run("status", "chat")
    assert status == 1
    assert "there is no ServingDeployment chat in namespace a: it has code" in said


def test_a_watch_prints_again_only_what_changed(world: World, run: Run) -> None:
    fleet, looks = world.fleet(spec=SPEC), list[float]()

    def slept(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            fleet["status"] = {"mode": "colocated"}
        if len(looks) == 4:
            raise KeyboardInterrupt

    world.on_sleep = slept
    status, out, _ = run("status", "-w")
    assert status == 130
    assert looks == [2.0] * 4
    assert out.count("NAME") == 2
    assert out.count("colocated") == 1
    assert "\x1b" not in out, "the screen is cleared on a terminal alone"


REFUSED = ClusterError(ErrorKind.TRANSPORT, "list ServingDeployment", "connection refused")


def test_a_watch_names_a_call_that_fails_and_goes_on(world: World, run: Run) -> None:
    fleet, looks = world.fleet(spec=SPEC), list[float]()

    def slept(seconds: float) -> None:
        looks.append(seconds)
        world.down = REFUSED if len(looks) in (1, 2, 3) else None
        if len(looks) == 5:
            fleet["status"] = {"mode": "colocated"}
        if len(looks) == 7:
            raise KeyboardInterrupt

    world.on_sleep = slept
    status, out, said = run("status", "-w")
    assert status == 130
    assert said.count("no API server can be reached (connection refused)") == 1
    assert out.count("NAME") == 3, "before, when it answers again, and the change"
    assert out.count("colocated") == 1


def test_a_watch_that_never_had_an_answer_ends_with_its_error(world: World, run: Run) -> None:
    world.down = REFUSED
    status, out, said = run("status", "-w")
    assert (status, out) == (3, "")
    assert "no API server can be reached" in said


def test_a_watch_of_a_fleet_that_is_deleted_ends(world: World, run: Run) -> None:
    world.fleet(spec=SPEC)
    world.on_sleep = lambda _: world.objects.clear()
    status, _, said = run("status", "chat", "-w")
    assert status == 1
    assert "there is no ServingDeployment chat" in said
