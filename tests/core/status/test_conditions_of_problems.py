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
    ended,
    pod,
    refused,
    sick,
    status,
    told,
    unready,
)

CONFLICT = {"NameConflict": "True ForeignObject"}
RBAC = 'deployments.apps is forbidden: User "op" cannot create resource "deployments"'
POLICY = 'pods "chat-" is forbidden: violates PodSecurity "restricted"'


CHANGE = "Change the fleet so that the namespace allows its pods, or change the namespace's policy"
LIMIT = "maximum memory usage per Container is 1Gi, but limit is 32Gi"
SCC = "unable to validate against any security context constraint: [spec.x: Invalid value]"
UNREACHABLE = (
    'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: '
    'Post "https://hook.system.svc:443/": dial tcp 10.96.0.7:443: connect: connection refused'
)
DENIED = 'admission webhook "policy.example.com" denied the request: no label team'
AGAIN = "Kubernetes tries again by itself"
WAITS_FOR = (
    (
        "a webhook does not answer",
        UNREACHABLE,
        f"{UNREACHABLE}. Repair that webhook, or exclude this namespace in its configuration. "
        f"{AGAIN}",
    ),
    (
        "a ServiceAccount is missing",
        'pods "chat-" is forbidden: error looking up service account ns/reader: serviceaccount '
        '"reader" not found',
        "there is no ServiceAccount reader in the namespace. Create it, or correct "
        f"serviceAccountName in the template. {AGAIN}",
    ),
    (
        "a PriorityClass is missing",
        'pods "chat-" is forbidden: no PriorityClass with name high was found',
        "there is no PriorityClass high. Create it, or correct priorityClassName in the template. "
        f"{AGAIN}",
    ),
    (
        "a RuntimeClass is missing",
        'pods "chat-" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
        "there is no RuntimeClass gvisor. Create it, or correct runtimeClassName in the template. "
        f"{AGAIN}",
    ),
    (
        "a webhook denies the pods",
        DENIED,
        f"{DENIED}. {CHANGE}",
    ),
)
"""Why pods cannot be made for a while, and what status says."""


PENDING: dict[str, Any] = {"phase": "Pending", "started": False}
TEN_AGO = "since 2025-12-31T23:50:00Z"
NOT_STARTED = (
    (
        "a volume is not mounted",
        {"creating": "ContainerCreating", "set_up": False},
        f"is ContainerCreating {TEN_AGO}: its volumes are not mounted, or it has no network. A "
        "Secret, a ConfigMap or a claim of its volumes may be missing, or a driver of its node "
        "fails",
    ),
    (
        "an image is pulled",
        {"creating": "ContainerCreating", "set_up": True},
        f"is ContainerCreating {TEN_AGO}: its volumes and its network are there, so the node still "
        "pulls an image, or its runtime hangs",
    ),
    (
        "an older kubelet makes the container",
        {"creating": "ContainerCreating"},
        f"is ContainerCreating {TEN_AGO}: it waits for its volumes, its network or its image",
    ),
    (
        "an init container runs",
        {"creating": "PodInitializing", "set_up": True},
        f"is PodInitializing {TEN_AGO}: an init container, which a webhook has added, has not "
        "ended",
    ),
    (
        "no scheduler looks for a node",
        {"assigned": False},
        f"has no node {TEN_AGO}: no scheduler says why. Correct schedulerName in the template if "
        "there is no such scheduler, or see kubectl describe pvc if a claim of it has no volume",
    ),
    (
        "the node has not begun with the pod",
        {"node": "node-7"},
        f"is Pending on node node-7 {TEN_AGO}: its kubelet says nothing of it",
    ),
)
"""Why a pod has not started, how it looks, and what status says."""


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
        {
            "InvalidSpec": "the API server rejects Deployment/chat-colocated-NEW: spec.template: "
            "Invalid value. Correct the spec"
        },
    ),
    Row(
        "RBAC forbids the Deployment",
        refused(ErrorKind.FORBIDDEN, RBAC),
        blocked("Forbidden") | {"RolledOut": "False Forbidden"},
        {
            "Forbidden": "the API server forbids Deployment/chat-colocated-NEW: deployments.apps "
            "is "
            'forbidden: User "op" cannot create resource "deployments". Add the '
            "missing rule to the operator's role"
        },
    ),
    Row(
        "a policy forbids the pods",
        World(pods=(GATEWAY,), no_pods=POLICY),
        blocked("Forbidden") | {"RolledOut": "False Forbidden"},
        {
            "Forbidden": 'pods of chat-colocated-NEW cannot be created: pods "chat-" is forbidden: '
            'violates PodSecurity "restricted". Change the fleet so that the namespace '
            "allows its pods, or change the namespace's policy"
        },
    ),
    *(
        Row(
            f"{words} refuses the pods, as of a minute ago: waiting does not help",
            not_made(message, MINUTE),
            blocked("Forbidden") | {"RolledOut": "False Forbidden"},
            {"Forbidden": f"pods of chat-colocated-NEW cannot be created: {message}. {do}"},
        )
        for words, message, do in (
            ("Pod Security", POLICY, CHANGE),
            ("a LimitRange", f'pods "chat-" is forbidden: {LIMIT}', CHANGE),
            (
                "OpenShift",
                f'pods "chat-" is forbidden: {SCC}',
                "Let the platform choose user ids in spec.template, or let their ServiceAccount "
                "use another security context constraint",
            ),
        )
    ),
    *(
        Row(
            f"{words}, as of a minute ago: nobody needs to act yet",
            not_made(message, MINUTE),
            STARTING | {"Ready": "False Forbidden", "RolledOut": "False Forbidden"},
            {"Forbidden": f"pods of chat-colocated-NEW cannot be created: {says}"},
        )
        for words, message, says in WAITS_FOR
    ),
    *(
        Row(
            f"{words}, for long",
            not_made(message, "2025-12-31T23:50:00Z"),
            blocked("Forbidden") | {"RolledOut": "False Forbidden"},
        )
        for words, message, _ in WAITS_FOR
    ),
    Row(
        "the namespace is being deleted",
        refused(ErrorKind.TERMINATING, "because it is being terminated"),
        blocked("Deleting") | {"RolledOut": "False Deleting"},
        {"Deleting": "the namespace is being deleted, so nothing is created in it"},
    ),
    Row(
        "the claim of the model does not exist",
        sick(unschedulable=CLAIM),
        blocked("ClaimNotFound"),
        {
            "ClaimNotFound": 'pod chat-colocated-1: persistentvolumeclaim "weights" not found. '
            "Create "
            "the claim, or correct spec.model.uri"
        },
    ),
    *(
        Row(
            f"the kubelet waits with {waiting}",
            sick(waiting=(waiting, message)),
            blocked("ImagePullFailed"),
            {
                "ImagePullFailed": f"pod chat-colocated-1 cannot pull its image: {says}. Correct "
                "spec.engine.image, or copy the image to where the nodes can pull it"
            },
        )
        for waiting, message, says in (
            ("ErrImagePull", PULL, PULL),
            ("ImagePullBackOff", f"Back-off pulling image: ErrImagePull: {PULL}", PULL),
            ("InvalidImageName", "bad reference", "bad reference"),
            ("ErrImageNeverPull", "not present", "not present"),
        )
    ),
    Row(
        "the model's image cannot be pulled",
        World(OCI, pods=(unready("colocated", waiting=("ErrImagePull", NO_MODEL)), GATEWAY)),
        blocked("ImagePullFailed"),
        {
            "ImagePullFailed": f"pod chat-colocated-1 cannot pull the model: {NO_MODEL}. Correct "
            "spec.model.uri, or name a pull secret of its registry in imagePullSecrets of "
            "spec.template.spec"
        },
    ),
    Row(
        "the model is an image, and that of the engine cannot be pulled",
        World(OCI, pods=(unready("colocated", waiting=("ErrImagePull", PULL)), GATEWAY)),
        blocked("ImagePullFailed"),
        {
            "ImagePullFailed": f"pod chat-colocated-1 cannot pull its image: {PULL}. Correct "
            "spec.engine.image, or copy the image to where the nodes can pull it"
        },
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
        {
            "ImagePullFailed": "pod chat-gateway-1 cannot pull its image: rpc error: no such image "
            '"none:1". Correct images.gateway in the values of the operator\'s chart, '
            "or copy the image to where the nodes can pull it"
        },
    ),
    Row(
        "the model is not on the volume",
        ended("ModelNotFound", "/models/opt: no config.json."),
        blocked("ModelNotFound"),
        {
            "ModelNotFound": "/models/opt: no config.json. Put the weights on the volume, or "
            "correct "
            "the path in spec.model.uri"
        },
    ),
    Row(
        "the weights cannot be read",
        ended("WeightsInvalid", "model.safetensors: truncated"),
        blocked("WeightsInvalid"),
        {
            "WeightsInvalid": "model.safetensors: truncated. Save the weights again as "
            "safetensors, or "
            "correct spec.model.uri"
        },
    ),
    Row(
        "the engine does not know the architecture",
        ended("UnsupportedArchitecture", "MambaForCausalLM"),
        blocked("UnsupportedArchitecture"),
        {
            "UnsupportedArchitecture": "MambaForCausalLM. Choose a model whose architecture the "
            "engine supports"
        },
    ),
    Row(
        "the engine's own message names GPU memory",
        ended("OutOfMemory", "CUDA out of memory"),
        blocked("OutOfMemory"),
        {
            "OutOfMemory": "CUDA out of memory. Raise the memory in spec.roles.<role>.resources, "
            "or "
            "lower spec.engine.maxModelLen"
        },
    ),
    Row(
        "the kernel killed the engine for its memory",
        sick(terminated=("OOMKilled", "exit code 137")),
        blocked("OutOfMemory"),
        {
            "OutOfMemory": "pod chat-colocated-1 was killed: it used too much memory. Raise the "
            "memory in spec.roles.<role>.resources, or lower spec.engine.maxModelLen"
        },
    ),
    Row(
        "the engine refuses an argument",
        ended("BadArgument", "--block-size must be a power of two"),
        blocked("BadArgument"),
        {"BadArgument": "--block-size must be a power of two. Correct spec.engine"},
    ),
    Row(
        "the container waits after a crash",
        sick(waiting=("CrashLoopBackOff", "back-off 10s"), terminated=("Error", " trace\n")),
        blocked("ContainerCrashing"),
        {
            "ContainerCrashing": "pod chat-colocated-1 keeps crashing: trace. See kubectl logs "
            "chat-colocated-1 --previous"
        },
    ),
    Row(
        "the container waits after a crash without output",
        sick(waiting=("CrashLoopBackOff", "back-off 10s")),
        blocked("ContainerCrashing"),
        {
            "ContainerCrashing": "pod chat-colocated-1 keeps crashing. See kubectl logs "
            "chat-colocated-1 "
            "--previous"
        },
    ),
    Row(
        "the container runs for a moment between two crashes",
        sick(terminated=("Error", "exit code 1"), restarts=1),
        blocked("ContainerCrashing"),
        {
            "ContainerCrashing": "pod chat-colocated-1 keeps crashing: exit code 1. See kubectl "
            "logs "
            "chat-colocated-1 --previous"
        },
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
        "an engine ran out of memory in the past and is ready now",
        World(pods=(pod("colocated", terminated=("OOMKilled", "x"), restarts=1), GATEWAY)),
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
    *(
        Row(
            f"the kubelet says {waiting}",
            sick(waiting=(waiting, "secret not found")),
            blocked("ContainerCrashing"),
            {
                "ContainerCrashing": "the container of pod chat-colocated-1 cannot start "
                f"({waiting}): secret not found. See kubectl describe pod chat-colocated-1"
            },
        )
        for waiting in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
    ),
    *(
        Row(
            f"{words}, for ten minutes",
            sick(**PENDING, waits_since=NOW - 600.0, **looks),
            blocked("PodNotStarted"),
            {
                "PodNotStarted": f"pod chat-colocated-1 {says}. See kubectl describe pod "
                "chat-colocated-1"
            },
        )
        for words, looks, says in NOT_STARTED
    ),
    *(
        Row(
            f"{words}, as of 599 s ago: every pod begins so",
            sick(**PENDING, waits_since=NOW - 599.0, **looks),
            STARTING,
        )
        for words, looks, _ in NOT_STARTED
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
        {
            "PodNotStarted": "pod chat-colocated-1 has no node since 2025-12-31T23:59:59Z: "
            "SchedulingGated: Scheduling is blocked. See kubectl describe pod chat-colocated-1"
        },
    ),
    Row(
        "a queue holds the pod back for ten minutes",
        sick(**PENDING, assigned=False, unplaced="SchedulingGated: x", waits_since=NOW - 600.0),
        blocked("PodNotStarted"),
    ),
    Row(
        "a sidecar of a pod that runs is not made for ten minutes",
        sick(creating="ContainerCreating", waits_since=NOW - 600.0),
        blocked("PodNotStarted"),
    ),
    Row(
        "the second pod waits for its volume for ten minutes",
        second_pod(**PENDING, creating="ContainerCreating", waits_since=NOW - 600.0),
        serves_on("PodNotStarted") | {"RolledOut": "False Starting"},
    ),
    Row(
        "a pod that waits for its volume is being deleted",
        World(
            pods=(
                pod("colocated"),
                unready("colocated", 2, **PENDING, creating="ContainerCreating", terminating=True),
                GATEWAY,
            )
        ),
        {},
    ),
    Row(
        "no node has GPUs for the pod",
        sick(unschedulable="0/3 nodes: insufficient gpu", gpus=4),
        blocked("Unschedulable", CapacityLimited="True Unschedulable"),
        {
            "Unschedulable": "no node has 4 GPUs for a colocated pod: 0/3 nodes: insufficient "
            "gpu. Add "
            "nodes, or lower the role's replicas or resources"
        },
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
            f"waiting does not help, at once: {reason} {looks}",
            sick(waits_since=NOW, **looks),
            blocked(reason),
        )
        for reason, looks in (
            ("ClaimNotFound", {"unschedulable": CLAIM}),
            ("ImagePullFailed", {"waiting": ("InvalidImageName", "bad reference")}),
            ("ImagePullFailed", {"waiting": ("ErrImageNeverPull", "not present")}),
            ("OutOfMemory", {"terminated": ("Error", typed("OutOfMemory"))}),
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
        {
            "Unschedulable": "no node has room for a colocated pod: 0/3 nodes: insufficient "
            "memory. Add "
            "nodes, or lower the role's replicas or resources"
        },
    ),
    *(
        Row(
            f"a claim is not bound: {said}",
            sick(unschedulable=f"0/3 nodes are available: {said}", gpus=4),
            blocked("Unschedulable", CapacityLimited="True Unschedulable"),
            {
                "Unschedulable": "pod chat-colocated-1 waits for a claim that is not bound: 0/3 "
                f"nodes are available: {said}. The claim's storageClassName must be a class that "
                "exists and makes volumes of its accessModes. See kubectl describe pvc"
            },
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
        {
            "GPUTypeFull": "colocated runs on a100, since pods found no node with h100 "
            "(2025-12-31T23:00:00Z). It may go back after a day, if that is cheaper"
        },
    ),
    Row(
        "a role has left two GPU types that had no room",
        World(
            TYPED,
            (pod("colocated", gpu_type="a100"), GATEWAY),
            noted=left(h100="22:00", h200="23:00"),
        ),
        {"CapacityLimited": "True GPUTypeFull"},
        {
            "GPUTypeFull": "colocated runs on a100, since pods found no node with h100 and h200 "
            "(2025-12-31T23:00:00Z). It may go back after a day, if that is cheaper"
        },
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
        {
            "QuotaExceeded": "exceeded quota: gpus, requested: 1, used: 8, limited: 8. Raise the "
            "quota, "
            "or lower the roles' replicas or resources"
        },
    ),
    Row(
        "a quota refuses the pods",
        World(pods=(GATEWAY,), no_pods=f'pods "chat-" is forbidden: {QUOTA}'),
        blocked("QuotaExceeded", CapacityLimited="True QuotaExceeded"),
        {
            "QuotaExceeded": 'pods "chat-" is forbidden: exceeded quota: gpus, requested: 1, '
            "used: 8, "
            "limited: 8. Raise the quota, or lower the roles' replicas or resources"
        },
    ),
    Row(
        "one pod serves, and no node has room for the second",
        second_pod(unschedulable="0/3 nodes"),
        serves_on("Unschedulable", CapacityLimited="True Unschedulable")
        | {"RolledOut": "False Starting"},
    ),
    Row(
        "one pod serves, and the second cannot pull its image",
        second_pod(waiting=("ErrImagePull", PULL)),
        serves_on("ImagePullFailed") | {"RolledOut": "False Starting"},
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
        {
            "UnreadableNumber": "pod chat-colocated-1 has a limit that is not a number, "
            "nvidia.com/gpu: "
            "many, so its GPUs are not counted. Find the webhook or controller that "
            "changes the fleet's pods"
        },
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
        {
            "ForeignObject": "Service/chat already exists with another owner and is left "
            "unchanged. "
            "Delete it, or create the fleet under another name"
        },
    ),
    Row(
        "another owner has two names that no client needs",
        World(taken=("ServiceAccount/chat-gateway", BUDGET)),
        {"Reconciling": "False ForeignObject", "Stalled": "True ForeignObject"}
        | CONFLICT
        | {"RolledOut": "False ForeignObject"},
        {
            "ForeignObject": "PodDisruptionBudget/chat-colocated, ServiceAccount/chat-gateway "
            "already "
            "exists with another owner and is left unchanged. Delete it, or create the "
            "fleet under another name"
        },
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
        {
            "ForeignObject": "PodDisruptionBudget/chat-colocated already exists with another "
            "owner and "
            "is left unchanged. Delete it, or create the fleet under another name"
        },
    ),
    Row(
        "a webhook fails for the Deployment",
        refused(*HOOK),
        STARTING
        | {"Ready": "False WriteFailed", "Reconciling": "True WriteFailed"}
        | {"RolledOut": "False WriteFailed"},
        {
            "WriteFailed": "Deployment/chat-colocated-NEW cannot be written: failed calling "
            "webhook "
            '"policy.example": timeout. Repair that webhook, or exclude this namespace '
            "in its configuration"
        },
    ),
    Row(
        "a write that pods do not need fails while the fleet starts",
        refused(ErrorKind.FAILED, "etcd is slow", BUDGET),
        STARTING | {"Reconciling": "True WriteFailed"} | {"RolledOut": "False WriteFailed"},
        {
            "WriteFailed": "PodDisruptionBudget/chat-colocated cannot be written: etcd is slow. "
            "See the operator's log"
        },
    ),
    Row(
        "a write fails while the fleet serves",
        World(fails={BUDGET: HOOK}),
        {"RolledOut": "False WriteFailed", "Reconciling": "True WriteFailed"},
    ),
    Row(
        "a write has failed for 299 seconds",
        World(fails={BUDGET: HOOK}, for_s=299.0),
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
        {
            "PutBackAgain": "alice changed spec.ports of Service chat; bob changed spec.x of Role "
            "chat-gateway. This goes on, so Argosy puts its own values back less and "
            "less often. Stop the other writer, or change the ServingDeployment"
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_what_keeps_the_fleet_from_its_spec(row: Row) -> None:
    found, expected = told(row)
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
