"""What the conditions say while a Job fetches the model, and when it cannot."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.pods import FetchProgress, Pod
from argosy_operator.core.status.table import _in_steps
from tests.core.status.worlds import GATEWAY, Row, World, compare, pod, status

URI, CLAIM = "hf://org/tiny@main", "chat-model"
SPEC = {"model": {"uri": URI, "fetch": {"size": "1Gi"}}}
BY_READER = {"model": {"uri": URI, "fetch": {"size": "1Gi", "serviceAccountName": "reader"}}}
COMMIT = "a" * 40
FETCHED = {
    "uri": URI,
    "commit": COMMIT,
    "claimName": CLAIM,
    "claimUid": "PersistentVolumeClaim-uid",
    "path": f"hf/org--tiny/{COMMIT}",
    "bytes": 10,
}
FETCHING = {
    "Ready": "False FetchingModel",
    "RolledOut": "False FetchingModel",
    "Servable": "False NoPods",
    "Reconciling": "True FetchingModel",
    "Progressing": "True Starting",
    "ModelFetched": "False FetchingModel",
}


def job_pod(**looks: Any) -> Pod:
    """The pod of the Job, which runs since 2026 began."""
    looks = {"waits_since": 1_767_225_600.0} | looks
    return Pod("chat-fetch-1", "fetch-1", "fetch", "", owner="Job-uid", **looks)


def world(*pods: Pod, **more: Any) -> World:
    return World(SPEC, pods=(GATEWAY,), fetch_pods=pods, **more)


def failed(reason: str, message: str = "why.", **looks: Any) -> World:
    said = json.dumps({"reason": reason, "message": message})
    return world(job_pod(terminated=("Error", said), restarts=3, **looks))


UNBOUND = (
    "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not eligible for "
    "preemption due to a terminating pod"
)
NOT_BOUND = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'


def unbound(**looks: Any) -> Pod:
    """The pod of the Job, which has no node because its claim has no volume."""
    return job_pod(phase="Pending", assigned=False, started=False, ready=False, **looks)


TERMINAL = (
    *("SourceForbidden", "SourceNotFound", "OnlyPickles", "VolumeFull", "VolumeNotWritable"),
    *("WeightsInvalid", "UnsupportedArchitecture"),
)
"""What waiting does not solve."""
AGAIN = ("FilesIncomplete", "SourceUnreachable")
"""What the Job's next try may solve: Stalled after progressDeadline."""


def refused(reason: str) -> dict[str, str]:
    return FETCHING | {
        "Ready": f"False {reason}",
        "Reconciling": f"False {reason}",
        "Stalled": f"True {reason}",
        "ModelFetched": f"False {reason}",
    }


LATE = 1_767_225_600.0 - 601
TEN_AGO = "2025-12-31T23:50:00Z"
SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "message": "Job suspended",
    "lastTransitionTime": "2025-12-31T23:59:00Z",
}
ROWS = [
    Row(
        "a model that is used where it is",
        World(),
        {},
    ),
    Row(
        "the Job has no pod yet",
        world(),
        FETCHING,
    ),
    Row(
        "the account of the Job does not exist, which ends by itself once it does",
        World(BY_READER, pods=(GATEWAY,)),
        refused("ServiceAccountNotFound")
        | {"Reconciling": "True FetchingModel", "Stalled": "False AsSpecified"},
    ),
    Row(
        "the account of the Job does not exist for long",
        World(BY_READER, pods=(GATEWAY,), job_made="2025-12-31T23:49:00Z"),
        refused("ServiceAccountNotFound"),
    ),
    Row(
        "the account is gone, and the Job has its pod",
        World(BY_READER, pods=(GATEWAY,), fetch_pods=(job_pod(),)),
        FETCHING,
    ),
    Row(
        "the Job has had no pod for ten minutes",
        world(job_made="2025-12-31T23:50:00Z"),
        refused("PodNotStarted") | {"ModelFetched": "False FetchingModel"},
    ),
    Row(
        "the Job has had no pod for less than that",
        world(job_made="2025-12-31T23:50:01Z"),
        FETCHING,
    ),
    *(
        Row(
            f"the Job lost its pod a moment ago, and makes another one: {said}",
            world(job_made="2025-12-31T12:00:00Z", job_says=said),
            FETCHING,
        )
        for said in ({"failed": 1}, {"active": 1}, {"terminating": 1})
    ),
    Row(
        "a queue has suspended the Job",
        world(job_says={"conditions": [SUSPENDED]}),
        refused("PodNotStarted")
        | {"Reconciling": "True FetchingModel", "Stalled": "False AsSpecified"}
        | {"ModelFetched": "False FetchingModel"},
    ),
    Row(
        "a queue has suspended the Job for ten minutes",
        world(job_says={"conditions": [SUSPENDED | {"lastTransitionTime": TEN_AGO}]}),
        refused("PodNotStarted") | {"ModelFetched": "False FetchingModel"},
    ),
    Row(
        "the Job was resumed",
        world(job_says={"conditions": [SUSPENDED | {"status": "False"}]}),
        FETCHING,
    ),
    Row(
        "its pod waits for a volume",
        world(job_pod(phase="Pending", started=False, ready=False, creating="ContainerCreating")),
        FETCHING,
    ),
    Row(
        "its pod waits for a volume for long",
        world(
            job_pod(
                phase="Pending",
                started=False,
                ready=False,
                creating="ContainerCreating",
                waits_since=LATE,
            )
        ),
        refused("PodNotStarted") | {"ModelFetched": "False FetchingModel"},
    ),
    *(
        Row(
            f"the claim is not bound, with {fetch}, as of a moment ago",
            World(
                {"model": {"uri": URI, "fetch": {"size": "1Gi", **fetch}}},
                pods=(GATEWAY,),
                fetch_pods=(unbound(unschedulable=UNBOUND),),
            ),
            FETCHING | {"Ready": "False Unschedulable", "CapacityLimited": "True Unschedulable"},
        )
        for fetch in ({}, {"storageClassName": "fast", "accessMode": "ReadWriteOnce"})
    ),
    Row(
        "a claim of the user's is not bound",
        World(
            {"model": {"uri": URI, "fetch": {"claimName": "mine"}}},
            pods=(GATEWAY,),
            fetch_pods=(unbound(unschedulable=UNBOUND),),
        ),
        FETCHING | {"Ready": "False Unschedulable", "CapacityLimited": "True Unschedulable"},
    ),
    Row(
        "the scheduler gave up on the claim",
        world(unbound(unplaced=f"SchedulerError: {NOT_BOUND}")),
        FETCHING | {"Ready": "False PodNotStarted"},
    ),
    Row(
        "its pod fetches",
        world(job_pod()),
        FETCHING,
    ),
    Row(
        "an older pod of it waits to start, and another one fetches",
        world(job_pod(phase="Pending", started=False, ready=False), replace(job_pod(), name="b")),
        FETCHING,
    ),
    Row(
        "its pod says how far it is, in twentieths",
        world(job_pod(), fetch_progress={"chat-fetch-1": FetchProgress(3_300_000_000, 16 << 30)}),
        FETCHING,
    ),
    *(Row(f"the Job says {r}", failed(r), refused(r)) for r in TERMINAL),
    *(
        Row(
            f"the Job says {r}, and tries again",
            failed(r),
            refused(r) | {"Reconciling": "True FetchingModel", "Stalled": "False AsSpecified"},
        )
        for r in AGAIN
    ),
    *(Row(f"the Job says {r} for long", failed(r, waits_since=LATE), refused(r)) for r in AGAIN),
    Row(
        "the image of the Job does not exist",
        world(job_pod(ready=False, waiting=("InvalidImageName", "no"))),
        refused("ImagePullFailed") | {"ModelFetched": "False FetchingModel"},
    ),
    Row(
        "the model is there, and the engines serve",
        World(SPEC, pods=(pod("colocated"), GATEWAY), status={"model": FETCHED}),
        {"ModelFetched": "True AsSpecified"},
    ),
    Row(
        "a claim that was made again is empty",
        World(
            SPEC,
            pods=(GATEWAY,),
            fetch_pods=(job_pod(),),
            status={"model": FETCHED | {"claimUid": "another"}},
        ),
        FETCHING | {"Progressing": "True RollingOut"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_how_the_fetching_goes(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


def test_what_the_job_says_becomes_the_status() -> None:
    said = {"commit": COMMIT, "path": f"hf/org--tiny/{COMMIT}", "files": 3, "bytes": 10}
    written = status(world(job_pod(phase="Succeeded", said=json.dumps(said)))).model
    assert written is not None
    assert written.model_dump(by_alias=True) == FETCHED


@pytest.mark.parametrize("said", ["", "{}", "[]", "null", '{"commit": "a", "path": "b"}'])
def test_what_is_no_result_is_none(said: str) -> None:
    assert status(world(job_pod(phase="Succeeded", said=said))).model is None


@given(of=st.integers(1, 1 << 45), parts=st.lists(st.integers(0, 1 << 45), max_size=60))
def test_one_fetch_changes_its_message_twenty_times_at_most(of: int, parts: list[int]) -> None:
    said = {_in_steps(FetchProgress(min(part, of), of)) for part in (0, *parts, of)}
    assert len(said) <= 21
    size = _in_steps(FetchProgress(of, of)).split()
    assert size[0] == size[2]
