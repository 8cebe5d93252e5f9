"""What the conditions say while a Job fetches the model, and when it cannot."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.pods import FetchProgress, Pod
from argosy_operator.core.status.table import _in_steps
from tests.core.status.worlds import GATEWAY, Row, World, pod, status, told

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


TERMINAL = {
    "SourceForbidden": "Put a token or keys with the right to read into the Secret that "
    "spec.model.fetch.template names. The Job reads it at its next start, within five minutes",
    "SourceNotFound": "Correct spec.model.uri. If the commit has vanished, name one that exists",
    "OnlyPickles": "Choose a revision with *.safetensors files, or convert the weights",
    "VolumeFull": "Raise spec.model.fetch.size if the storage class can grow a claim, or name a "
    "larger one. Earlier commits stay in the claim: delete their folders if no pod serves them",
    "VolumeNotWritable": "Let the claim be mounted for writing by group 65532, or let the "
    "platform choose user ids where it gives them, as docs/how-to/pods.md says",
    "WeightsInvalid": "Save the weights again as safetensors, or correct spec.model.uri",
    "UnsupportedArchitecture": "Choose a model whose architecture the engine supports",
}
"""What waiting does not solve, and what to do."""
AGAIN = {
    "FilesIncomplete": "Look at what stands between the Job and the source, such as a proxy that "
    "cuts or changes answers, or a writer of the bucket. The Job tries again by itself",
    "SourceUnreachable": "Let the pod reach it: name the proxy or the endpoint of your own in "
    "the variables of spec.model.fetch.template. The Job goes on by itself",
}
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
        {},
    ),
    Row(
        "the Job has no pod yet",
        world(),
        FETCHING,
        {
            "FetchingModel": "Job chat-fetch fetches hf://org/tiny@main into claim chat-model; "
            "engine pods start when it is there; it has no pod yet: if this lasts, kubectl "
            "describe job chat-fetch says why"
        },
    ),
    Row(
        "the account of the Job does not exist, which ends by itself once it does",
        World(BY_READER, pods=(GATEWAY,)),
        refused("ServiceAccountNotFound")
        | {"Reconciling": "True FetchingModel", "Stalled": "False AsSpecified"},
        {
            "ServiceAccountNotFound": "Job chat-fetch makes no pod: there is no ServiceAccount "
            "reader in the namespace. Create it in the fleet's namespace, or correct "
            "spec.model.fetch.serviceAccountName. The Job goes on by itself"
        },
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
        {
            "PodNotStarted": "Job chat-fetch has had no pod since 2025-12-31T23:50:00Z: a quota, a "
            "LimitRange or a policy of the namespace may refuse it. See kubectl describe job "
            "chat-fetch"
        },
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
        {
            "PodNotStarted": "Job chat-fetch has been suspended since 2025-12-31T23:59:00Z: "
            "Job suspended. Resume it, or wait for the queue that suspended it. See kubectl "
            "describe job chat-fetch"
        },
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
        {
            "FetchingModel": "Job chat-fetch fetches hf://org/tiny@main into claim chat-model; "
            "engine pods start when it is there; pod chat-fetch-1 waits to start since "
            "2026-01-01T00:00:00Z. kubectl describe pod chat-fetch-1 says for what"
        },
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
            {
                "Unschedulable": f"pod chat-fetch-1 waits for claim chat-model, which is not "
                f"bound: {UNBOUND}. {class_} must exist and make volumes that are {mode}. Correct "
                "spec.model.fetch.storageClassName or accessMode, and delete the claim: the "
                "operator makes it again. See kubectl describe pvc chat-model"
            },
        )
        for fetch, class_, mode in (
            ({}, "The cluster's default storage class", "ReadWriteMany"),
            (
                {"storageClassName": "fast", "accessMode": "ReadWriteOnce"},
                "Its storage class fast",
                "ReadWriteOnce",
            ),
        )
    ),
    Row(
        "a claim of the user's is not bound",
        World(
            {"model": {"uri": URI, "fetch": {"claimName": "mine"}}},
            pods=(GATEWAY,),
            fetch_pods=(unbound(unschedulable=UNBOUND),),
        ),
        FETCHING | {"Ready": "False Unschedulable", "CapacityLimited": "True Unschedulable"},
        {
            "Unschedulable": f"pod chat-fetch-1 waits for a claim that is not bound: {UNBOUND}. "
            "The claim's storageClassName must be a class that exists and makes volumes of its "
            "accessModes. See kubectl describe pvc"
        },
    ),
    Row(
        "the scheduler gave up on the claim",
        world(unbound(unplaced=f"SchedulerError: {NOT_BOUND}")),
        FETCHING | {"Ready": "False PodNotStarted"},
        {
            "PodNotStarted": "pod chat-fetch-1 waits for claim chat-model, which is not bound: "
            f"SchedulerError: {NOT_BOUND}. The cluster's default storage class must exist and make "
            "volumes that are ReadWriteMany. Correct spec.model.fetch.storageClassName or "
            "accessMode, and delete the claim: the operator makes it again. See kubectl describe "
            "pvc chat-model"
        },
    ),
    Row(
        "its pod fetches",
        world(job_pod()),
        FETCHING,
        {
            "FetchingModel": "Job chat-fetch fetches hf://org/tiny@main into claim chat-model; "
            "engine pods start when it is there; pod chat-fetch-1 runs since "
            "2026-01-01T00:00:00Z. kubectl logs chat-fetch-1 shows how far it is"
        },
    ),
    Row(
        "an older pod of it waits to start, and another one fetches",
        world(job_pod(phase="Pending", started=False, ready=False), replace(job_pod(), name="b")),
        FETCHING,
        {
            "FetchingModel": "Job chat-fetch fetches hf://org/tiny@main into claim chat-model; "
            "engine pods start when it is there; pod b runs since 2026-01-01T00:00:00Z. kubectl "
            "logs b shows how far it is"
        },
    ),
    Row(
        "its pod says how far it is, in twentieths",
        world(job_pod(), fetch_progress={"chat-fetch-1": FetchProgress(3_300_000_000, 16 << 30)}),
        FETCHING,
        {
            "FetchingModel": "Job chat-fetch fetches hf://org/tiny@main into claim chat-model; "
            "2.4 of 16.0 GiB are there; engine pods start when it is there; pod chat-fetch-1 runs "
            "since 2026-01-01T00:00:00Z. kubectl logs chat-fetch-1 shows how far it is"
        },
    ),
    *(
        Row(f"the Job says {r}", failed(r), refused(r), {r: f"why. {do}"})
        for r, do in TERMINAL.items()
    ),
    *(
        Row(
            f"the Job says {r}, and tries again",
            failed(r),
            refused(r) | {"Reconciling": "True FetchingModel", "Stalled": "False AsSpecified"},
            {r: f"why. {do}"},
        )
        for r, do in AGAIN.items()
    ),
    *(Row(f"the Job says {r} for long", failed(r, waits_since=LATE), refused(r)) for r in AGAIN),
    Row(
        "the image of the Job does not exist",
        world(job_pod(ready=False, waiting=("InvalidImageName", "no"))),
        refused("ImagePullFailed") | {"ModelFetched": "False FetchingModel"},
        {
            "ImagePullFailed": "pod chat-fetch-1 cannot pull its image: no. Correct images.fetch "
            "in the values of the operator's chart, or copy the image to where the nodes can pull "
            "it"
        },
    ),
    Row(
        "the model is there, and the engines serve",
        World(SPEC, pods=(pod("colocated"), GATEWAY), status={"model": FETCHED}),
        {"ModelFetched": "True AsSpecified"},
        {},
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
    found, expected = told(row)
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
