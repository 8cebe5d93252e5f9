"""What status says of problems: one row for each world, written by hand.

The rows follow docs/reference/conditions.md and the runbook. A row names every condition that is
not at rest, so it also says what does not change."""

import json
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.core.status.worlds import (
    BUDGET,
    CLAIM,
    GATEWAY,
    HOOK,
    NOW,
    PULL,
    QUOTA,
    STARTING,
    TWO,
    Row,
    World,
    compare,
    ended,
    pod,
    refused,
    sick,
    status,
    unready,
)

CONFLICT = {"NameConflict": "True ForeignObject"}
RBAC = 'deployments.apps is forbidden: User "op" cannot create resource "deployments"'
POLICY = 'pods "chat-" is forbidden: violates PodSecurity "restricted"'


LIMIT = "maximum memory usage per Container is 1Gi, but limit is 32Gi"
SCC = "unable to validate against any security context constraint: [spec.x: Invalid value]"
FORBIDS = 'pods "chat-" is forbidden: '
WAITS_FOR = (
    'Internal error occurred: failed calling webhook "pods.example.com": connection refused',
    f'{FORBIDS}error looking up service account ns/reader: serviceaccount "reader" not found',
    f"{FORBIDS}no PriorityClass with name high was found",
    f'{FORBIDS}pod rejected: RuntimeClass "gvisor" not found',
    'admission webhook "policy.example.com" denied the request: no label team',
)
"""Why pods cannot be made for a while."""


PENDING: dict[str, Any] = {"phase": "Pending", "started": False}
NOT_STARTED: tuple[dict[str, Any], ...] = (
    {"creating": "ContainerCreating", "set_up": False},
    {"creating": "ContainerCreating", "set_up": True},
    {"creating": "ContainerCreating"},
    {"creating": "PodInitializing", "set_up": True},
    {"assigned": False},
    {"node": "node-7"},
)
"""How a pod looks that has not started: its volumes, an image, an older kubelet, an init container,
no scheduler, a kubelet that says nothing."""


def not_made(message: str, since: str) -> World:
    """The Deployment controller cannot make pods, and says so since then."""
    return World(pods=(GATEWAY,), no_pods=message, no_pods_since=since)


PULL_FAILED, CRASHING = ("ImagePullFailed", {}), ("ContainerCrashing", {})
MINUTE = "2025-12-31T23:59:00Z"
"""A minute before NOW."""


OCI = {"model": {"uri": "oci://registry.example.com/models/tiny:v1"}}
NO_MODEL = "cannot pull registry.example.com/models/tiny:v1: unauthorized"


def typed(reason: str) -> str:
    """What an engine writes before it ends."""
    return json.dumps({"reason": reason, "message": "x"})


H100, A100, H200 = (
    {"name": name, "costPerHour": "4.10", "nodeSelector": {"gpu": name}}
    for name in ("h100", "a100", "h200")
)
TYPED = {
    "gpuTypes": [A100, H100, H200],
    "roles": {"colocated": {"gpuTypes": ["a100", "h100", "h200"]}},
}


def left(**times: str) -> dict[str, str]:
    """The note of a role that left these GPU types on the last day of the year."""
    full = ",".join(f"{name}=2025-12-31T{time}:00Z" for name, time in times.items())
    return {"serving.argosy.dev/gpu-types-full": full}


def blocked(reason: str, **more: str) -> dict[str, str]:
    """No pod serves, and a person must act."""
    problem = {"Ready": f"False {reason}", "Reconciling": f"False {reason}"}
    return STARTING | problem | {"Stalled": f"True {reason}"} | more


def serves_on(reason: str, **more: str) -> dict[str, str]:
    """The fleet answers, lacks a pod, and a person must act."""
    problem = {"Reconciling": f"False {reason}", "Stalled": f"True {reason}"}
    return {"Progressing": "True Starting"} | problem | more


def second_pod(**looks: object) -> World:
    """One of two pods serves; the other one looks like this."""
    return World(TWO, (pod("colocated"), unready("colocated", 2, **looks), GATEWAY))


ROWS = [
    Row(
        "the API server rejects the Deployment",
        refused(ErrorKind.INVALID, "spec.template: Invalid value"),
        blocked("InvalidSpec") | {"RolledOut": "False InvalidSpec"},
    ),
    Row(
        "RBAC forbids the Deployment",
        refused(ErrorKind.FORBIDDEN, RBAC),
        blocked("Forbidden") | {"RolledOut": "False Forbidden"},
    ),
    *(
        Row(
            f"the same pod is refused again, as of a minute ago: {message}",
            not_made(message, MINUTE),
            blocked("Forbidden") | {"RolledOut": "False Forbidden"},
        )
        for message in (POLICY, f"{FORBIDS}{LIMIT}", f"{FORBIDS}{SCC}")
    ),
    *(
        Row(
            f"as of a minute ago, and no person needs to act yet: {message}",
            not_made(message, MINUTE),
            STARTING | {"Ready": "False Forbidden", "RolledOut": "False Forbidden"},
        )
        for message in WAITS_FOR
    ),
    Row(
        "pods have been refused for long",
        not_made(WAITS_FOR[0], "2025-12-31T23:50:00Z"),
        blocked("Forbidden") | {"RolledOut": "False Forbidden"},
    ),
    Row(
        "the namespace is being deleted",
        refused(ErrorKind.TERMINATING, "because it is being terminated"),
        blocked("Deleting") | {"RolledOut": "False Deleting"},
    ),
    Row(
        "the claim of the model does not exist",
        sick(unschedulable=CLAIM),
        blocked("ClaimNotFound"),
    ),
    *(
        Row(
            f"the kubelet waits with {waiting}",
            sick(waiting=(waiting, message)),
            blocked("ImagePullFailed"),
        )
        for waiting, message in (
            ("ErrImagePull", PULL),
            ("ImagePullBackOff", f"Back-off pulling image: ErrImagePull: {PULL}"),
            ("ErrImageNeverPull", "not present"),
        )
    ),
    Row(
        "the model's image cannot be pulled",
        World(OCI, pods=(unready("colocated", waiting=("ErrImagePull", NO_MODEL)), GATEWAY)),
        blocked("ImagePullFailed"),
    ),
    Row(
        "the model is an image, and that of the engine cannot be pulled",
        World(OCI, pods=(unready("colocated", waiting=("ErrImagePull", PULL)), GATEWAY)),
        blocked("ImagePullFailed"),
    ),
    Row(
        "the gateway's image cannot be pulled",
        World(
            pods=(pod("colocated"), unready("gateway", revision="", waiting=("ErrImagePull", PULL)))
        ),
        {
            "RolledOut": "False GatewayNotReady",
            "Ready": "False GatewayNotReady",
            "Reconciling": "False ImagePullFailed",
            "Stalled": "True ImagePullFailed",
        },
    ),
    *(
        Row(f"the engine ends with {reason}", ended(reason, "why."), blocked(reason))
        for reason in (
            *("ModelNotFound", "WeightsInvalid", "UnsupportedArchitecture", "OutOfMemory"),
            "BadArgument",
        )
    ),
    Row(
        "the kernel killed the engine for its memory",
        sick(terminated=("OOMKilled", "exit code 137")),
        blocked("OutOfMemory"),
    ),
    Row(
        "the container waits after a crash",
        sick(waiting=("CrashLoopBackOff", "back-off 10s"), terminated=("Error", " trace\n")),
        blocked("ContainerCrashing"),
    ),
    Row(
        "the container waits after a crash without output",
        sick(waiting=("CrashLoopBackOff", "back-off 10s")),
        blocked("ContainerCrashing"),
    ),
    Row(
        "the container runs for a moment between two crashes",
        sick(terminated=("Error", "exit code 1"), restarts=1),
        blocked("ContainerCrashing"),
    ),
    Row(
        "a container that crashed once is starting: nothing is to be done yet",
        sick(terminated=("Error", "exit code 1"), restarts=0),
        STARTING,
    ),
    Row(
        "a pod crashed in the past and is ready now",
        World(
            pods=(
                pod("colocated", terminated=("Error", "exit code 1"), restarts=3),
                pod("gateway", revision="", terminated=("OOMKilled", "x"), restarts=3),
            )
        ),
        {},
    ),
    Row(
        "the gateway writes what an engine would: it is a crash like any other",
        World(
            pods=(
                pod("colocated"),
                unready(
                    "gateway",
                    revision="",
                    restarts=1,
                    terminated=("Error", '{"reason": "BadArgument", "message": "x"}'),
                ),
            )
        ),
        {
            "RolledOut": "False GatewayNotReady",
            "Ready": "False GatewayNotReady",
            "Reconciling": "False ContainerCrashing",
            "Stalled": "True ContainerCrashing",
        },
    ),
    Row(
        "an engine ends with a reason that is none of its own",
        sick(terminated=("Error", '{"reason": "Paused", "message": "x"}'), restarts=1),
        blocked("ContainerCrashing"),
    ),
    Row(
        "the kubelet cannot make the container",
        sick(waiting=("CreateContainerConfigError", "secret not found")),
        blocked("ContainerCrashing"),
    ),
    *(
        Row(
            f"not started for ten minutes: {looks}",
            sick(**PENDING, waits_since=NOW - 600.0, **looks),
            blocked("PodNotStarted"),
        )
        for looks in NOT_STARTED
    ),
    Row(
        "not started for 599 s: every pod begins so",
        sick(**PENDING, waits_since=NOW - 599.0, **NOT_STARTED[0]),
        STARTING,
    ),
    Row(
        "a queue holds the pod back, which it says at once",
        sick(
            **PENDING,
            assigned=False,
            unplaced="SchedulingGated: Scheduling is blocked.",
            waits_since=NOW - 1.0,
        ),
        STARTING | {"Ready": "False PodNotStarted"},
    ),
    Row(
        "the second pod waits for its volume for ten minutes",
        second_pod(**PENDING, creating="ContainerCreating", waits_since=NOW - 600.0),
        serves_on("PodNotStarted") | {"RolledOut": "False Starting"},
    ),
    Row(
        "no node has GPUs for the pod",
        sick(unschedulable="0/3 nodes: insufficient gpu", gpus=4),
        blocked("Unschedulable", CapacityLimited="True Unschedulable"),
    ),
    *(
        Row(
            f"{words}, as of 599 s ago: nobody needs to act yet",
            sick(waits_since=NOW - 599.0, **looks),
            STARTING | {"Ready": f"False {reason}"} | more,
        )
        for words, looks, reason, more in (
            (
                "no node has GPUs",
                {"unschedulable": "0/3 nodes"},
                "Unschedulable",
                {"CapacityLimited": "True Unschedulable"},
            ),
            ("an image cannot be pulled", {"waiting": ("ErrImagePull", PULL)}, *PULL_FAILED),
            ("an image is pulled again", {"waiting": ("ImagePullBackOff", PULL)}, *PULL_FAILED),
            ("a container crashes", {"waiting": ("CrashLoopBackOff", "x")}, *CRASHING),
            ("a Secret is missing", {"waiting": ("CreateContainerConfigError", "x")}, *CRASHING),
            (
                "the kernel killed the engine",
                {"terminated": ("OOMKilled", "exit code 137")},
                "OutOfMemory",
                {},
            ),
        )
    ),
    *(
        Row(
            f"waiting does not help, at once: {reason}",
            sick(waits_since=NOW, **looks),
            blocked(reason),
        )
        for reason, looks in (
            ("ClaimNotFound", {"unschedulable": CLAIM}),
            ("ImagePullFailed", {"waiting": ("InvalidImageName", "bad reference")}),
            ("BadArgument", {"terminated": ("Error", typed("BadArgument"))}),
        )
    ),
    Row(
        "no node has had room for ten minutes",
        sick(unschedulable="0/3 nodes", waits_since=NOW - 600.0),
        blocked("Unschedulable", CapacityLimited="True Unschedulable"),
    ),
    Row(
        "the user gives a node autoscaler an hour",
        replace(
            sick(unschedulable="0/3 nodes", waits_since=NOW - 3599.0),
            spec={"progressDeadline": "1h"},
        ),
        STARTING | {"Ready": "False Unschedulable", "CapacityLimited": "True Unschedulable"},
    ),
    Row(
        "a fleet that serves scales up, and waits for a node",
        replace(
            second_pod(unschedulable="0/3 nodes", waits_since=NOW - 60.0),
            before={"RolledOut": "True RolledOut"},
        ),
        {
            "Reconciling": "False RolledOut",
            "Progressing": "True Starting",
            "CapacityLimited": "True Unschedulable",
        },
    ),
    Row(
        "a quota has refused the pods for a minute",
        World(pods=(GATEWAY,), no_pods=f'pods "chat-" is forbidden: {QUOTA}', no_pods_since=MINUTE),
        STARTING | {"Ready": "False QuotaExceeded", "CapacityLimited": "True QuotaExceeded"},
    ),
    Row(
        "a quota refuses the Deployment for the first time",
        replace(refused(ErrorKind.QUOTA, QUOTA), for_s=0.0),
        STARTING
        | {
            "Ready": "False QuotaExceeded",
            "CapacityLimited": "True QuotaExceeded",
        },
    ),
    Row(
        "no node has room for a pod without GPUs",
        sick(unschedulable="0/3 nodes: insufficient memory"),
        blocked("Unschedulable", CapacityLimited="True Unschedulable"),
    ),
    *(
        Row(
            f"a claim is not bound: {said}",
            sick(unschedulable=f"0/3 nodes are available: {said}", gpus=4),
            blocked("Unschedulable", CapacityLimited="True Unschedulable"),
        )
        for said in (
            "pod has unbound immediate PersistentVolumeClaims",
            "3 node(s) didn't find available persistent volumes to bind",
        )
    ),
    Row(
        "a pod that is being deleted had no node",
        World(
            pods=(
                pod("colocated"),
                unready("colocated", 2, unschedulable="0/3", terminating=True),
                GATEWAY,
            )
        ),
        {},
    ),
    Row(
        "a role has left a GPU type that had no room an hour ago",
        World(TYPED, (pod("colocated", gpu_type="a100"), GATEWAY), noted=left(h100="23:00")),
        {"CapacityLimited": "True GPUTypeFull"},
    ),
    Row(
        "a role has left two GPU types that had no room",
        World(
            TYPED,
            (pod("colocated", gpu_type="a100"), GATEWAY),
            noted=left(h100="22:00", h200="23:00"),
        ),
        {"CapacityLimited": "True GPUTypeFull"},
    ),
    Row(
        "a role left a GPU type a day ago",
        World(TYPED, (pod("colocated", gpu_type="a100"), GATEWAY), noted=left(h100="00:00")),
        {},
    ),
    Row(
        "a quota refuses the Deployment",
        replace(refused(ErrorKind.QUOTA, QUOTA), for_s=600.0),
        blocked("QuotaExceeded", CapacityLimited="True QuotaExceeded"),
    ),
    Row(
        "a quota refuses the pods",
        World(pods=(GATEWAY,), no_pods=f'pods "chat-" is forbidden: {QUOTA}'),
        blocked("QuotaExceeded", CapacityLimited="True QuotaExceeded"),
    ),
    Row(
        "one pod serves, and no node has room for the second",
        second_pod(unschedulable="0/3 nodes"),
        serves_on("Unschedulable", CapacityLimited="True Unschedulable")
        | {"RolledOut": "False Starting"},
    ),
    Row(
        "one pod serves, and the API server rejects a change of the Deployment's budget",
        World(fails={BUDGET: (ErrorKind.INVALID, "no")}),
        {
            "Ready": "True InvalidSpec",
            "RolledOut": "False InvalidSpec",
            "Reconciling": "False InvalidSpec",
            "Stalled": "True InvalidSpec",
        },
    ),
    Row(
        "a webhook put a limit on a pod that is not a number",
        World(pods=(pod("colocated", unreadable="nvidia.com/gpu: many"), GATEWAY)),
        {"CapacityLimited": "Unknown UnreadableNumber"},
    ),
    Row(
        "another owner has the Service, and clients would reach it",
        World(taken=("Service/chat",)),
        {
            "Ready": "False ForeignObject",
            "Reconciling": "False ForeignObject",
            "Stalled": "True ForeignObject",
        }
        | CONFLICT
        | {"RolledOut": "False ForeignObject"},
    ),
    Row(
        "another owner has two names that no client needs",
        World(taken=("ServiceAccount/chat-gateway", BUDGET)),
        {"Reconciling": "False ForeignObject", "Stalled": "True ForeignObject"}
        | CONFLICT
        | {"RolledOut": "False ForeignObject"},
    ),
    Row(
        "another owner has a name of the fleet, and no pod serves",
        World(pods=(GATEWAY,), taken=(BUDGET,)),
        blocked("ForeignObject") | CONFLICT | {"RolledOut": "False ForeignObject"},
    ),
    Row(
        "the server finds another owner only when the object is created",
        refused(ErrorKind.FOREIGN, "exists", BUDGET),
        blocked("ForeignObject") | CONFLICT | {"RolledOut": "False ForeignObject"},
    ),
    Row(
        "a webhook fails for the Deployment",
        refused(*HOOK),
        STARTING
        | {"Ready": "False WriteFailed", "Reconciling": "True WriteFailed"}
        | {"RolledOut": "False WriteFailed"},
    ),
    Row(
        "a write that pods do not need fails while the fleet starts",
        refused(ErrorKind.FAILED, "etcd is slow", BUDGET),
        STARTING | {"Reconciling": "True WriteFailed"} | {"RolledOut": "False WriteFailed"},
    ),
    Row(
        "a write fails while the fleet serves",
        World(fails={BUDGET: HOOK}),
        {"RolledOut": "False WriteFailed", "Reconciling": "True WriteFailed"},
    ),
    Row(
        "a write has failed for five minutes: a person must act",
        World(fails={BUDGET: HOOK}, for_s=300.0),
        {
            "RolledOut": "False WriteFailed",
            "Reconciling": "False WriteFailed",
            "Stalled": "True WriteFailed",
        },
    ),
    Row(
        "another writer changed a field once: that is no contest",
        World(contested={"alice changed spec.ports of Service chat": 1}),
        {},
    ),
    Row(
        "two writers change fields again and again",
        World(
            contested={
                "bob changed spec.x of Role chat-gateway": 9,
                "alice changed spec.ports of Service chat": 5,
            }
        ),
        {"FieldConflict": "True PutBackAgain"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_what_keeps_the_fleet_from_its_spec(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


@pytest.mark.parametrize(
    "said",
    ["[" * 100_000, '{"reason":' * 30_000, '{"reason": 1e999, "message": NaN}', "9" * 5000],
    ids=["brackets", "objects", "no number", "too many digits"],
)
def test_a_pod_that_ends_with_any_words_is_a_crash_and_no_error_of_the_round(said: str) -> None:
    world = sick(waiting=("CrashLoopBackOff", "back-off 10s"), terminated=("Error", said))
    conditions = {c.type: c for c in status(world).conditions}
    assert conditions["Ready"].reason == "ContainerCrashing"
