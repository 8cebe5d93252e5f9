"""What status says of a fleet's pods: one row for each world, written by hand.

The rows follow docs/reference/conditions.md and the runbook. A row names every condition that is
not at rest, so it also says what does not change."""

from dataclasses import replace

import pytest

from argosy_operator.core.snapshot.pods import FailingPair
from tests.core.status.worlds import (
    GATEWAY,
    GENERATION,
    LOST,
    ROLLED_OUT,
    SERVED,
    STARTING,
    TWO,
    Row,
    World,
    compare,
    leaving,
    pod,
    sick,
    status,
    unready,
)

SPLIT = {"mode": "disaggregated"}
PARKED = {"roles": {"colocated": {"replicas": {"min": 0, "max": 0}}}}

SEEN_BEFORE = {"observedGeneration": GENERATION - 1}
ZERO = {"autoscaling": {"scaleToZero": {}}}
NO_REPLICAS = {"wanted": {"colocated": 0}, "deployed": {"colocated": 0}}
AT_ZERO = {"Ready": "True ScaledToZero", "Servable": "False ScaledToZero"}
WAKING = {
    "Ready": "False Waking",
    "Servable": "False Waking",
    "Reconciling": "True Starting",
    "Progressing": "True Starting",
}
MIXED = {
    "Ready": "True NoPrefill",
    "Servable": "False NoPrefill",
    "Reconciling": "True RollingOut",
    "Progressing": "True RollingOut",
}
ROWS = [
    Row(
        "all is as the spec asks",
        World(),
        {},
    ),
    Row(
        "no engine pod is ready yet",
        World(pods=(unready("colocated"), GATEWAY)),
        STARTING,
    ),
    Row(
        "one of two pods is ready",
        World(spec=TWO, pods=(pod("colocated"), unready("colocated", 2), GATEWAY)),
        {
            "RolledOut": "False Starting",
            "Reconciling": "True Starting",
            "Progressing": "True Starting",
        },
    ),
    Row(
        "its only pod was lost after the fleet served",
        World(pods=(unready("colocated"), GATEWAY), before=SERVED),
        LOST,
    ),
    Row(
        "the pod is still lost in the next round",
        World(pods=(unready("colocated"), GATEWAY), before={"Ready": "False PodsNotReady"}),
        LOST,
    ),
    Row(
        "a parked fleet gets its first pod: it starts, it has lost nothing",
        World(
            pods=(unready("colocated"), GATEWAY),
            before={"Ready": "True Parked", "Servable": "False Parked"},
        ),
        STARTING,
    ),
    Row(
        "there is no gateway pod",
        World(pods=(pod("colocated"),)),
        {
            "RolledOut": "False GatewayNotReady",
            "Ready": "False GatewayNotReady",
            "Reconciling": "True GatewayNotReady",
        },
    ),
    Row(
        "the gateway pod is not ready",
        World(pods=(pod("colocated"), unready("gateway", revision=""))),
        {
            "RolledOut": "False GatewayNotReady",
            "Ready": "False GatewayNotReady",
            "Reconciling": "True GatewayNotReady",
        },
    ),
    Row(
        "the only engine pod is being deleted",
        World(pods=(pod("colocated", terminating=True), GATEWAY)),
        STARTING,
    ),
    Row(
        "a pair of prefill and decode serves",
        World(SPLIT, (pod("prefill"), pod("decode"), GATEWAY)),
        {},
    ),
    Row(
        "a pair of pods fails to hand over, as two gateways say",
        World(
            SPLIT,
            (pod("prefill"), pod("decode"), pod("decode", 2), GATEWAY),
            failing_pairs=frozenset(
                (
                    FailingPair("chat-prefill-1", "chat-decode-2", "silent", 2),
                    FailingPair("chat-prefill-1", "chat-decode-2", "broken", 5),
                    FailingPair("chat-prefill-1", "chat-decode-1", "connect", 1),
                    FailingPair("chat-prefill-9", "chat-decode-1", "connect", 7),
                    FailingPair("chat-decode-1", "chat-prefill-1", "connect", 7),
                )
            ),
        ),
        {"KVTransferHealthy": "False HandoversFail"},
    ),
    Row(
        "more pairs fail than fit into a sentence",
        World(
            SPLIT,
            (pod("prefill"), *(pod("decode", n) for n in range(1, 7)), GATEWAY),
            failing_pairs=frozenset(
                FailingPair("chat-prefill-1", f"chat-decode-{n}", "silent", 2) for n in range(1, 7)
            ),
        ),
        {"KVTransferHealthy": "False HandoversFail"},
    ),
    Row(
        "a fleet starts, and its decode pod is ready first",
        World(SPLIT, (unready("prefill"), pod("decode"), GATEWAY)),
        STARTING | {"Servable": "False NoPrefill"},
    ),
    Row(
        "a fleet starts, and its prefill pod is ready first",
        World(SPLIT, (pod("prefill"), unready("decode"), GATEWAY)),
        STARTING | {"Servable": "False NoDecode"},
    ),
    Row(
        "both roles start",
        World(SPLIT, (unready("prefill"), unready("decode"), GATEWAY)),
        STARTING,
    ),
    Row(
        "a rollout is held where it is",
        World(
            {"rollout": {"paused": True}},
            (pod("colocated", revision="old"), GATEWAY),
            deployed={"colocated": 0},
            old="colocated",
        ),
        {
            "RolledOut": "False RolloutPaused",
            "Reconciling": "False RolloutPaused",
            "Progressing": "False RolloutPaused",
        },
    ),
    Row(
        "the spec's revision is refused, and the one before runs",
        World(runs_instead=True),
        {
            "RolledOut": "False RolledBack",
            "Reconciling": "False RolledBack",
            "Stalled": "True RolledBack",
        },
    ),
    Row(
        "the last old pod does not leave first, and there is no room for a new one",
        World(
            {"rollout": {"maxSurgeGPUs": 0}},
            (pod("colocated", revision="old"), GATEWAY),
            deployed={"colocated": 0},
            old="colocated",
        ),
        {
            "RolledOut": "False SurgeTooSmall",
            "Reconciling": "False SurgeTooSmall",
            "Stalled": "True SurgeTooSmall",
            "Progressing": "False SurgeTooSmall",
        },
    ),
    Row(
        "prefill is of the old revision and decode of the new one, and nothing served before",
        World(SPLIT, (pod("prefill", revision="old"), pod("decode"), GATEWAY), old="prefill"),
        {
            "RolledOut": "False RollingOut",
            "Ready": "False Starting",
            "Servable": "False NoPrefill",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
            "ScalingActive": "False NoSLO",
        },
    ),
    Row(
        "prefill is of the new revision and decode of the old one, and nothing served before",
        World(SPLIT, (pod("prefill"), pod("decode", revision="old"), GATEWAY), old="decode"),
        {
            "RolledOut": "False RollingOut",
            "Ready": "False Starting",
            "Servable": "False NoPrefill",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        },
    ),
    Row(
        "a fleet that served is left with pods of different revisions: decode answers alone",
        World(
            SPLIT,
            (pod("prefill", revision="old"), pod("decode"), GATEWAY),
            old="prefill",
            before=SERVED,
        ),
        MIXED | {"RolledOut": "False RollingOut"},
    ),
    Row(
        "its decode pods are the older ones, and so they are in the next round",
        World(
            SPLIT,
            (pod("prefill"), pod("decode", revision="old"), GATEWAY),
            old="decode",
            before={"Ready": "True NoPrefill", "Servable": "False NoPrefill"},
        ),
        MIXED | {"RolledOut": "False RollingOut"},
    ),
    Row(
        "pods of different revisions serve, and a pair of one revision does, too",
        World(
            SPLIT,
            (pod("prefill", revision="old"), pod("decode", revision="old"), pod("decode"), GATEWAY),
            old="prefill",
            before=SERVED,
        ),
        {
            "RolledOut": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        },
    ),
    Row(
        "pods of different revisions serve, and no gateway does",
        World(
            SPLIT,
            (pod("prefill", revision="old"), pod("decode")),
            old="prefill",
            before=SERVED,
        ),
        MIXED | {"Ready": "False PodsNotReady"} | {"RolledOut": "False RollingOut"},
    ),
    Row(
        "a fleet that served has lost its prefill pods",
        World(SPLIT, (unready("prefill"), pod("decode"), GATEWAY), before=SERVED),
        STARTING | {"Ready": "True NoPrefill", "Servable": "False NoPrefill"},
    ),
    Row(
        "the prefill pods are still lost in the next round",
        World(
            SPLIT,
            (unready("prefill"), pod("decode"), GATEWAY),
            before={"Ready": "True NoPrefill", "Servable": "False NoPrefill"},
        ),
        STARTING | {"Ready": "True NoPrefill", "Servable": "False NoPrefill"},
    ),
    Row(
        "a fleet that served has lost its decode pods",
        World(SPLIT, (pod("prefill"), unready("decode"), GATEWAY), before=SERVED),
        LOST | {"Servable": "False NoDecode"},
    ),
    Row(
        "a fleet that served has lost its prefill pods and its gateway",
        World(SPLIT, (unready("prefill"), pod("decode")), before=SERVED),
        LOST | {"Servable": "False NoPrefill"},
    ),
    Row(
        "a fleet that served has lost its prefill pods, and its Service is another owner's",
        World(
            SPLIT,
            (unready("prefill"), pod("decode"), GATEWAY),
            before=SERVED,
            taken=("Service/chat",),
        ),
        {
            "RolledOut": "False ForeignObject",
            "Ready": "False ForeignObject",
            "Servable": "False NoPrefill",
            "Reconciling": "False ForeignObject",
            "Stalled": "True ForeignObject",
            "Progressing": "True Starting",
            "NameConflict": "True ForeignObject",
        },
    ),
    Row(
        "a fleet that becomes colocated has only a decode pod of before",
        World(
            pods=(unready("colocated"), pod("decode", revision="old"), GATEWAY),
            old="decode",
            before=SERVED,
        ),
        LOST
        | {"Reconciling": "True RollingOut", "Progressing": "True RollingOut"}
        | {"RolledOut": "False RollingOut"},
    ),
    Row(
        "the old revision serves while the new one starts",
        World(
            pods=(unready("colocated"), pod("colocated", revision="old"), GATEWAY), old="colocated"
        ),
        {
            "RolledOut": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        },
    ),
    Row(
        "a pod that is no longer needed finishes its answers",
        World(pods=(pod("colocated"), leaving("colocated", 2), GATEWAY), deployed={"colocated": 2}),
        {
            "Reconciling": "False RolledOut",
            "Progressing": "True PodsLeaving",
            "Draining": "True PodsLeaving",
        },
    ),
    Row(
        "old pods finish their answers at the end of a rollout",
        World(
            pods=(pod("colocated"), leaving("colocated", 2, revision="old"), GATEWAY),
            old="colocated",
        ),
        {
            "RolledOut": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
            "Draining": "True PodsLeaving",
        },
    ),
    Row(
        "the spec was reached, and the fleet scales: it is not on its way to another spec",
        World(TWO, (pod("colocated"), unready("colocated", 2), GATEWAY), before=ROLLED_OUT),
        {"Reconciling": "False RolledOut", "Progressing": "True Starting"},
    ),
    Row(
        "the spec was reached, and its only pod is lost",
        World(pods=(unready("colocated"), GATEWAY), before=ROLLED_OUT),
        LOST | {"Reconciling": "False RolledOut", "RolledOut": "True RolledOut"},
    ),
    Row(
        "the spec was reached, and the gateway is lost",
        World(pods=(pod("colocated"),), before=ROLLED_OUT, gateways={"availableReplicas": 0}),
        {"Ready": "False GatewayNotReady", "Reconciling": "False RolledOut"},
    ),
    Row(
        "the spec was reached, and a gateway pod is evicted",
        World(
            pods=(pod("colocated"), GATEWAY, pod("gateway", 2, "", terminating=True)),
            before=ROLLED_OUT,
        ),
        {},
    ),
    Row(
        "the spec before this one was reached, and a pod is missing",
        World(
            TWO,
            (pod("colocated"), unready("colocated", 2), GATEWAY),
            before=ROLLED_OUT,
            told_of=0,
        ),
        {
            "RolledOut": "False Starting",
            "Reconciling": "True Starting",
            "Progressing": "True Starting",
        },
    ),
    Row(
        "the spec was reached, and an operator with another image rolls it out",
        World(
            pods=(unready("colocated"), pod("colocated", revision="old"), GATEWAY),
            old="colocated",
            before=ROLLED_OUT,
        ),
        {
            "RolledOut": "False RollingOut",
            "Reconciling": "True RollingOut",
            "Progressing": "True RollingOut",
        },
    ),
    *(
        Row(
            f"gateways are replaced: {words}",
            World(gateways=says, before=ROLLED_OUT),
            {"RolledOut": "False RollingOut", "Reconciling": "True RollingOut"},
        )
        for words, says in (
            ("the Deployment's controller has not seen the new template", SEEN_BEFORE),
            ("an older one still exists", {"replicas": 3}),
            ("one of them is of the new template", {"updatedReplicas": 1}),
        )
    ),
    Row(
        "the Deployment says that no gateway of before is left, and the list of pods has one",
        World(pods=(pod("colocated"), *(pod("gateway", n, "") for n in (1, 2, 3)))),
        {"RolledOut": "False RollingOut", "Reconciling": "True RollingOut"},
    ),
    Row(
        "a gateway of before has ended, and Kubernetes has not removed its pod yet",
        World(
            pods=(
                pod("colocated"),
                GATEWAY,
                pod("gateway", 2, "", terminating=True, phase="Succeeded"),
            )
        ),
        {"RolledOut": "False RollingOut", "Reconciling": "True RollingOut"},
    ),
    Row(
        "gateways are of the spec's template, and one of them is not available",
        World(gateways={"availableReplicas": 1}),
        {"RolledOut": "False Starting", "Reconciling": "True Starting"},
    ),
    Row(
        "every role has 0 replicas",
        World(PARKED, (GATEWAY,)),
        {"Ready": "True Parked", "Servable": "False Parked"},
    ),
    Row(
        "another owner has the Service of a parked fleet",
        World(PARKED, (GATEWAY,), taken=("Service/chat",)),
        {
            "Ready": "False ForeignObject",
            "RolledOut": "False ForeignObject",
            "Servable": "False Parked",
            "Reconciling": "False ForeignObject",
            "Stalled": "True ForeignObject",
            "NameConflict": "True ForeignObject",
        },
    ),
    Row(
        "no requests arrive, and its pods are gone",
        World(ZERO, (GATEWAY,), **NO_REPLICAS),
        AT_ZERO,
    ),
    Row(
        "a fleet goes to zero, and its last pod ends its answers",
        World(ZERO, (leaving("colocated"), GATEWAY), wanted={"colocated": 0}, before=SERVED),
        AT_ZERO
        | {
            "Reconciling": "False RolledOut",
            "Progressing": "True PodsLeaving",
            "Draining": "True PodsLeaving",
        },
    ),
    Row(
        "a fleet at zero has no gateway pod that is ready",
        World(ZERO, (unready("gateway", revision=""),), **NO_REPLICAS),
        AT_ZERO
        | {"Ready": "False GatewayNotReady", "Reconciling": "True GatewayNotReady"}
        | {"RolledOut": "False GatewayNotReady"},
    ),
    Row(
        "another owner has the Service of a fleet at zero",
        World(ZERO, (GATEWAY,), taken=("Service/chat",), **NO_REPLICAS),
        {
            "RolledOut": "False ForeignObject",
            "Ready": "False ForeignObject",
            "Servable": "False ScaledToZero",
            "Reconciling": "False ForeignObject",
            "Stalled": "True ForeignObject",
            "NameConflict": "True ForeignObject",
        },
    ),
    Row(
        "a fleet with the field and its pods is as any other",
        World(ZERO),
        {},
    ),
    Row(
        "a request came to a fleet at zero",
        World(ZERO, (GATEWAY,), before=AT_ZERO),
        WAKING | {"RolledOut": "False Starting"},
    ),
    Row(
        "the pod of a fleet that wakes is not ready yet",
        World(ZERO, (unready("colocated"), GATEWAY), before={"Servable": "False Waking"}),
        WAKING | {"RolledOut": "False Starting"},
    ),
    Row(
        "the pod of a fleet that woke is ready",
        World(ZERO, before={"Servable": "False Waking", "Ready": "False Waking"}),
        {},
    ),
    Row(
        "a parked fleet is parked, whatever it does when it is not used",
        World({**PARKED, **ZERO}, (GATEWAY,)),
        {"Ready": "True Parked", "Servable": "False Parked"},
    ),
    Row("a fleet that is being deleted still answers", World(deleting=True), {}),
    Row(
        "a parked fleet is being deleted",
        World(PARKED, (GATEWAY,), deleting=True),
        {"Ready": "True Parked", "Servable": "False Parked"},
    ),
    Row(
        "the fleet is paused while a pod is missing",
        World({"paused": True} | TWO, (pod("colocated"), GATEWAY)),
        {
            "RolledOut": "False Paused",
            "Reconciling": "False Paused",
            "Progressing": "False Paused",
            "ScalingActive": "False Paused",
            "PeersVerified": "False RollingOut",
        },
    ),
    Row(
        "the fleet is paused, and its pod cannot start",
        replace(sick(waiting=("ErrImagePull", "no such image")), spec={"paused": True}),
        {
            "RolledOut": "False Paused",
            "Ready": "False ImagePullFailed",
            "Servable": "False NoPods",
            "Reconciling": "False Paused",
            "Progressing": "False Paused",
            "Stalled": "True ImagePullFailed",
            "ScalingActive": "False Paused",
            "PeersVerified": "False RollingOut",
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_the_conditions_say_what_the_pods_do(row: Row) -> None:
    found, expected = compare(row)
    assert found == expected


def test_status_names_the_spec_that_it_is_about_and_where_clients_reach_the_fleet() -> None:
    said = status(World())
    assert (said.observed_generation, said.mode) == (1, "colocated")
    assert said.url == "http://chat.ns.svc"
    assert {c.observed_generation for c in said.conditions} == {1}
    assert status(World(taken=("Service/chat",))).url is None


def test_a_fleet_that_is_being_deleted_wants_no_pods() -> None:
    (colocated,) = (status(World(deleting=True)).roles.colocated,)
    assert colocated is not None
    assert (colocated.desired, colocated.serving) == (0, 1)
