"""How values of Kubernetes objects are read, and what an action is called and waits for."""

from typing import Any

import pytest

from argosy_operator.core.snapshot.actions import (
    Action,
    AnnotatePod,
    Apply,
    Create,
    Delete,
    HastenDrain,
    Scale,
    TakeWorkAgain,
    is_write,
    key_of,
    needs,
    target,
)
from argosy_operator.core.snapshot.objects import (
    is_owned,
    quantity,
    seconds,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9223372036854775807", 2**63 - 1), ("-9223372036854775807", -(2**63) + 1),
        ("9223372036854775808", None), ("-9223372036854775809", None), ("8Ei", None), ("10E", None),
        ("7Ei", 7 * 2**60), ("9E", 9 * 10**18), ("2Pi", 2**51), ("3Ti", 3 * 2**40),
        ("5Gi", 5 * 2**30), ("64Mi", 2**26), ("2P", 2 * 10**15), ("4T", 4 * 10**12),
        ("6G", 6 * 10**9), ("7M", 7 * 10**6), ("8k", 8000), ("8K", None), ("8ki", None),
        ("-2", -2), ("1e-0", 1), ("2e+2", 200),
        (3, 3), (2.5, 2.5), (True, None), (False, None), (b"1", None), ([], None), (" 1", None),
    ],
)  # fmt: skip
def test_a_quantity_is_the_number_that_kubernetes_reads(text: Any, number: float | None) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02T03:04:05.250000Z", 1767323045.25),
        ("2026-01-02T05:04:05+02:00", 1767323045.0),
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-02T03:04:05", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_is_read_in_seconds_since_the_epoch(text: str | None, time: float | None) -> None:
    assert seconds(text) == time


@pytest.mark.parametrize(
    ("owners", "owned"),
    [
        ([{"uid": "1"}], True),
        ([{"uid": "2"}, {"uid": "1"}], True),
        ([{"uid": "2"}], False),
        ([], False),
        (None, False),
    ],
)
def test_an_object_is_owned_by_uid(owners: Any, owned: bool) -> None:
    assert is_owned({"metadata": {"ownerReferences": owners}}, "1") is owned


ROLE = {"kind": "Role", "metadata": {"name": "chat-gateway"}}
BINDING = {
    "kind": "RoleBinding",
    "metadata": {"name": "chat-binding"},
    "roleRef": {"kind": "Role", "name": "chat-gateway"},
}
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "chat-decode-1a2b3c4d"}}

ACTIONS: list[tuple[Action, str, str, str | None, bool]] = [
    # action, its key, its target, the key that must succeed before, does it write an object
    (Apply(ROLE), "Apply Role/chat-gateway", "Role/chat-gateway", None, True),
    (
        Apply(BINDING),
        "Apply RoleBinding/chat-binding",
        "RoleBinding/chat-binding",
        "Apply Role/chat-gateway",
        True,
    ),
    (
        Create(BINDING),
        "Create RoleBinding/chat-binding",
        "RoleBinding/chat-binding",
        "Apply Role/chat-gateway",
        True,
    ),
    (
        Create(DEPLOYMENT),
        "Create Deployment/chat-decode-1a2b3c4d",
        "Deployment/chat-decode-1a2b3c4d",
        None,
        True,
    ),
    (
        Scale("ServingRole", "chat-decode", 3),
        "Scale ServingRole/chat-decode",
        "ServingRole/chat-decode",
        None,
        True,
    ),
    (
        Scale("Deployment", "d", 3, after="Scale ServingRole/chat-decode"),
        "Scale Deployment/d",
        "Deployment/d",
        "Scale ServingRole/chat-decode",
        True,
    ),
    (Delete("Deployment", "d", "uid"), "Delete Deployment/d", "Deployment/d", None, True),
    (AnnotatePod("p", "uid", {}), "AnnotatePod Pod/p", "Pod/p", None, True),
    (
        AnnotatePod("p", "uid", {}, after="Scale Deployment/d"),
        "AnnotatePod Pod/p",
        "Pod/p",
        "Scale Deployment/d",
        True,
    ),
    (HastenDrain("p", "10.0.0.1"), "HastenDrain Pod/p", "Pod/p", "AnnotatePod Pod/p", False),
    (TakeWorkAgain("p", "10.0.0.1"), "TakeWorkAgain Pod/p", "Pod/p", "AnnotatePod Pod/p", False),
]


@pytest.mark.parametrize("row", ACTIONS, ids=[f"{row[1]} after {row[3]}" for row in ACTIONS])
def test_an_action_has_a_key_and_an_object_and_waits_for_what_it_needs(row: Any) -> None:
    action, key, about, before, writes = row
    assert (key_of(action), target(action), needs(action)) == (key, about, before)
    assert is_write(action) is writes
