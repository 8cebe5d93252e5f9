"""What the operator reads of a Pod, as the API server sends it.

Each file in `pods/` is such a Pod, written by hand, and says in its first line what has happened.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import Pod, StartPhases, owned_pods, pod_of

PODS = Path(__file__).parent / "pods"

CREATED, READY = 1767322800.0, 1767322890.0  # 2026-01-02T03:00:00Z and T03:01:30Z
DRAINED = 1767326340.0  # 2026-01-02T03:59:00Z


def sent(case: str) -> Any:
    return yaml.safe_load((PODS / f"{case}.yaml").read_text())


def bare(**differences: Any) -> Pod:
    """A pod without labels that has a node and an address, and whose container does not run."""
    same: dict[str, Any] = {
        "name": "p",
        "uid": "u",
        "role": "",
        "revision": "",
        "owner": "",
        "ip": "10.0.3.17",
        "created_at": CREATED,
        "ready_at": None,
        "phases": None,
        "waits_since": CREATED,
        "drain_at": None,
        "phase": "Running",
        "assigned": True,
        "node": "node-7" if differences.get("assigned", True) else "",
        "started": False,
        "probed": False,
        "ready": False,
        "terminating": False,
        "draining": False,
        "victim": False,
        "cost": 0,
        "restarts": 0,
        "gpus": 0,
        "unreadable": None,
        "unschedulable": None,
        "unplaced": "",
        "waiting": None,
        "creating": "",
        "set_up": None,
        "terminated": None,
    }
    return Pod(**same | differences)


WAITS_S = {
    "ready": 90.0,
    "gateway": 10.0,
    "just-created": -CREATED,
    **dict.fromkeys(
        (
            "container-creating",
            "volume-not-mounted",
            "pulling",
            "initializing",
            "image-pull-back-off",
            "init-container-waiting",
            "starting",
            "crash-loop",
            "just-crashed",
            "out-of-memory",
        ),
        1.0,
    ),
    "unready": 1200.0,
    "drained-and-terminating": 3542.0,
    "drained-by-a-person": 90.0,
    "called-back": 90.0,
    "lost-node": 1800.0,
}
"""Seconds after its creation at which its last condition changed; the others have none."""

READ = {
    "ready": bare(
        name="chat-decode-1a2b3c4d-6f7d9c5b8-x2x4z",
        uid="0b6a3a54-6a5e-4f0e-9a52-3f8f4d1c7a11",
        role="decode",
        revision="1a2b3c4d",
        owner="7f0c7c3e-90bb-4f0b-8d1f-4b7a1f2f9a00",
        ready_at=READY,
        phases=StartPhases(scheduling=1.0, files=2.0, images=2.0, load=85.0),
        set_up=True,
        started=True,
        probed=True,
        ready=True,
        gpus=4,
    ),
    "gateway": bare(
        node="node-1",
        name="chat-gateway-7c9f5d6b4-k8w2m",
        uid="5a1e",
        role="gateway",
        owner="90bb",
        ip="10.0.1.5",
        ready_at=1767322810.0,
        started=True,
        probed=True,
        ready=True,
        restarts=3,
        terminated=("Error", "no API server"),
    ),
    "just-created": bare(ip=None, created_at=0.0, phase="Pending", assigned=False),
    "unschedulable": bare(
        ip=None,
        phase="Pending",
        assigned=False,
        gpus=8,
        unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
    "unschedulable-without-words": bare(
        ip=None, phase="Pending", assigned=False, unschedulable="no node takes the pod"
    ),
    "scheduling-gated": bare(
        ip=None,
        phase="Pending",
        assigned=False,
        unplaced="SchedulingGated: Scheduling is blocked due to non-empty scheduling gates",
    ),
    "scheduler-error": bare(
        ip=None,
        phase="Pending",
        assigned=False,
        unplaced='SchedulerError: running PreBind plugin "VolumeBinding": binding volumes: '
        "context deadline exceeded",
    ),
    "container-creating": bare(ip=None, phase="Pending", creating="ContainerCreating"),
    "volume-not-mounted": bare(
        ip=None, phase="Pending", creating="ContainerCreating", set_up=False
    ),
    "pulling": bare(phase="Pending", creating="ContainerCreating", set_up=True),
    "initializing": bare(phase="Pending", creating="PodInitializing"),
    "image-pull-back-off": bare(
        phase="Pending",
        waiting=(
            "ImagePullBackOff",
            'Back-off pulling image "registry.example/engine:9": ErrImagePull: not found',
        ),
    ),
    "init-container-waiting": bare(
        ip=None,
        phase="Pending",
        waiting=("CreateContainerConfigError", 'secret "token" not found'),
        creating="PodInitializing",
    ),
    "waiting-without-words": bare(ip=None, phase="Pending", waiting=("InvalidImageName", "")),
    "starting": bare(started=True),
    "unready": bare(started=True, probed=True),
    "crash-loop": bare(
        restarts=4,
        waiting=(
            "CrashLoopBackOff",
            "back-off 1m20s restarting failed container=engine pod=p_prod(u)",
        ),
        terminated=(
            "Error",
            '{"reason":"ModelNotFound","message":"/models/x has no config.json"}',
        ),
    ),
    "just-crashed": bare(ip=None, restarts=1, terminated=("Error", "exit code 139")),
    "out-of-memory": bare(started=True, restarts=1, terminated=("OOMKilled", "exit code 137")),
    "drained-and-terminating": bare(
        terminating=True, draining=True, victim=True, cost=-1000, drain_at=DRAINED
    ),
    "drained-by-a-person": bare(
        started=True,
        probed=True,
        ready=True,
        ready_at=READY,
        phases=StartPhases(1.0, 0.0, 4.0, 85.0),
        draining=True,
        cost=250,
    ),
    "called-back": bare(
        ip=None,
        started=True,
        probed=True,
        ready=True,
        ready_at=READY,
        phases=StartPhases(0.0, 0.0, 5.0, 85.0),
        cost=-1000,
    ),
    "evicted": bare(ip=None, phase="Failed"),
    "lost-node": bare(phase="Unknown", started=True, probed=True),
}


@pytest.mark.parametrize("case", READ)
def test_a_pod_is_read_as_the_api_server_sent_it(case: str) -> None:
    waits_since = CREATED + WAITS_S.get(case, 0.0)
    assert pod_of(sent(case)) == replace(READ[case], waits_since=waits_since)


def timed(
    scheduled: float | None,
    set_up: float | None,
    init: list[tuple[float, float]],
    started: float,
    ready: float,
) -> Any:
    """A Pod with these times, in seconds after its creation."""

    def at(after_s: float) -> str:
        return rfc3339(CREATED + after_s)

    times = {"PodScheduled": scheduled, "PodReadyToStartContainers": set_up, "Ready": ready}
    ended = [{"startedAt": at(begin), "finishedAt": at(end)} for begin, end in init]
    engine = {"name": "engine", "state": {"running": {"startedAt": at(started)}}}
    return {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": rfc3339(CREATED)},
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": at(time)}
                for kind, time in times.items()
                if time is not None
            ],
            "initContainerStatuses": [{"name": "i", "state": {"terminated": e}} for e in ended],
            "containerStatuses": [engine],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "times", "phases"),
    [
        ("a new node, images to pull", (70, 75, [], 195, 240), (70, 5, 120, 45)),
        ("init containers that fetch", (1, 3, [(10, 40), (41, 44)], 50, 60), (1, 35, 14, 10)),
        ("mounts that the kubelet does not say", (1, None, [], 31, 60), (1, 0, 30, 29)),
        ("no condition at all", (None, None, [], 31, 60), (0, 0, 31, 29)),
        ("a node whose clock is behind", (5, 3, [], 4, 20), (5, 0, 0, 15)),
        ("a node whose clock is ahead", (5, 30, [], 31, 20), (5, 15, 0, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_start_of_a_pod_is_divided_by_what_it_waited_for(
    words: str, times: Any, phases: tuple[float, ...]
) -> None:
    assert pod_of(timed(*times)).phases == StartPhases(*phases), words


AT = st.integers(-100, 1000)


@given(st.none() | AT, st.none() | AT, st.lists(st.tuples(AT, AT), max_size=3), AT, AT)
def test_the_phases_of_a_start_are_all_of_its_time_whatever_the_clocks_say(
    scheduled: int | None, set_up: int | None, init: Any, started: int, ready: int
) -> None:
    phases = pod_of(timed(scheduled, set_up, init, started, ready)).phases
    assert phases is not None
    assert min(phases) >= 0
    assert sum(phases) == max(0, ready)


def test_a_process_that_was_started_again_has_no_phases() -> None:
    raw = timed(1, 2, [], 50, 60)
    raw["status"]["containerStatuses"][0]["restartCount"] = 1
    assert pod_of(raw).phases is None


ALIVE = {  # its ReplicaSet counts it; gateways send it requests
    "ready": (True, True),
    "unready": (True, False),
    "unschedulable": (True, False),
    "drained-by-a-person": (True, False),
    "called-back": (True, True),
    "lost-node": (True, False),
    "drained-and-terminating": (False, False),
    "evicted": (False, False),
}


@pytest.mark.parametrize("case", ALIVE)
def test_who_counts_a_pod_and_who_sends_it_requests(case: str) -> None:
    pod = pod_of(sent(case))
    assert (pod.alive, pod.serving) == ALIVE[case]


def test_a_pod_that_ended_by_itself_is_no_longer_counted() -> None:
    raw = sent("called-back")
    raw["status"]["phase"] = "Succeeded"
    assert not pod_of(raw).alive
    assert not pod_of(raw).serving


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("limits", "gpus", "unreadable"),
    [
        pytest.param([{GPU: "1"}], 1, None, id="a string"),
        pytest.param([{GPU: 2}], 2, None, id="an integer"),
        pytest.param([{GPU: "16"}], 16, None, id="two digits"),
        pytest.param([{GPU: "2k"}], 2000, None, id="thousands"),
        pytest.param([{GPU: "1Ki"}], 1024, None, id="powers of two"),
        pytest.param([{GPU: "1e1"}], 10, None, id="an exponent"),
        pytest.param([{GPU: "8.0"}], 8, None, id="a decimal point"),
        pytest.param([{GPU: "4000m"}], 4, None, id="thousandths"),
        pytest.param([{GPU: "0"}], 0, None, id="none asked for"),
        pytest.param([{GPU: "4"}, {GPU: "2"}], 6, None, id="two containers with GPUs"),
        pytest.param([{"cpu": "2", "memory": "64Gi"}], 0, None, id="other resources"),
        pytest.param([{"amd.com/gpu": "4"}], 0, None, id="another vendor"),
        pytest.param([None], 0, None, id="no limits"),
        pytest.param([], 0, None, id="no containers"),
        pytest.param([{GPU: "many"}], 0, f"{GPU}: many", id="a word"),
        pytest.param([{GPU: "many"}, {GPU: "2"}], 2, f"{GPU}: many", id="one readable of two"),
        pytest.param([{GPU: "2"}, {GPU: "a"}, {GPU: "b"}], 2, f"{GPU}: a", id="the first word"),
    ],
)
def test_the_gpus_of_a_pod_are_the_limits_of_its_containers(
    limits: list[Any], gpus: int, unreadable: str | None
) -> None:
    raw = sent("just-created")
    raw["spec"] = {"containers": [{"name": "c", "resources": {"limits": one}} for one in limits]}
    pod = pod_of(raw)
    assert (pod.gpus, pod.unreadable) == (gpus, unreadable)


# A ReplicaSet removes the lowest number first. Newer API servers refuse what is no int32.


@pytest.mark.parametrize(("exit_code", "said"), [(0, "commit abc"), (1, "")])
def test_only_a_process_that_ended_well_has_said_something(exit_code: int, said: str) -> None:
    raw = sent("called-back")
    ended = {"exitCode": exit_code, "message": "commit abc"}
    raw["status"]["containerStatuses"] = [{"name": "engine", "state": {"terminated": ended}}]
    assert pod_of(raw).said == said


DEPLOYMENT, REPLICA_SET = "uid-of-our-deployment", "uid-of-its-replica-set"


def owner(kind: str, uid: str, controller: bool | None = True) -> Any:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": uid}
    return reference if controller is None else reference | {"controller": controller}


@pytest.mark.parametrize(
    ("of_pod", "of_set", "ours"),
    [
        pytest.param([("ReplicaSet", REPLICA_SET)], [("Deployment", DEPLOYMENT)], True, id="ours"),
        pytest.param(
            [("Node", "n", None), ("ReplicaSet", REPLICA_SET)],
            [("Backup", "b", False), ("Deployment", DEPLOYMENT)],
            True,
            id="with other owners besides",
        ),
        pytest.param(
            [("ReplicaSet", "other")], [("Deployment", DEPLOYMENT)], False, id="of another set"
        ),
        pytest.param(
            [("ReplicaSet", REPLICA_SET)], [("Deployment", "other")], False, id="of another fleet"
        ),
        pytest.param(
            [("Job", REPLICA_SET)], [("Deployment", DEPLOYMENT)], False, id="of another kind"
        ),
        pytest.param(
            [("ReplicaSet", REPLICA_SET)], [("Rollout", DEPLOYMENT)], False, id="of a Rollout"
        ),
        pytest.param(
            [("ReplicaSet", REPLICA_SET, False)],
            [("Deployment", DEPLOYMENT)],
            False,
            id="owned but not controlled",
        ),
        pytest.param([], [("Deployment", DEPLOYMENT)], False, id="without an owner"),
        pytest.param([("ReplicaSet", REPLICA_SET)], [], False, id="of a set without an owner"),
    ],
)
def test_only_pods_that_a_deployment_of_the_fleet_controls_are_ours(
    of_pod: list[Any], of_set: list[Any], ours: bool
) -> None:
    pod, replica_set = sent("just-created"), {"metadata": {"uid": REPLICA_SET}}
    pod["metadata"]["ownerReferences"] = [owner(*one) for one in of_pod]
    replica_set["metadata"]["ownerReferences"] = [owner(*one) for one in of_set]  # type: ignore[assignment]
    found = owned_pods([pod], [replica_set], {DEPLOYMENT})
    assert [one.name for one in found] == (["p"] if ours else [])
