"""What often ends by itself becomes a matter for a person after spec.progressDeadline."""

import math
from dataclasses import replace

import pytest

from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.status.problems import next_overdue_s, problems_of
from tests.core.status.worlds import (
    CLAIM,
    GATEWAY,
    NOW,
    World,
    pod,
    round_of,
    unready,
)


def seen(*pods: Pod, **spec: object) -> Snapshot:
    return round_of(World(spec, (*pods, GATEWAY)))[0]


@pytest.mark.parametrize(
    ("snapshot", "due_s"),
    [
        (seen(pod("colocated")), math.inf),
        (seen(unready("colocated", unschedulable="0/3", waits_since=NOW - 590.0)), 10.0),
        (seen(unready("colocated", unschedulable="0/3", waits_since=NOW - 600.0)), math.inf),
        (seen(unready("colocated", unschedulable=CLAIM, waits_since=NOW)), math.inf),
        (seen(unready("colocated", creating="ContainerCreating", waits_since=NOW - 590.0)), 10.0),
        (
            seen(
                unready("colocated", unschedulable="0/3", waits_since=NOW - 50.0),
                unready("colocated", 2, waiting=("ErrImagePull", "x"), waits_since=NOW - 20.0),
                progressDeadline="1m",
            ),
            10.0,
        ),
    ],
    ids=[
        "at rest",
        "ten seconds before",
        "over",
        "waiting does not help",
        "nothing is said until then",
        "the sooner one",
    ],
)
def test_the_round_that_says_so_comes_in_time(snapshot: Snapshot, due_s: float) -> None:
    """No event announces the end of a deadline."""
    assert next_overdue_s(snapshot, {}) == due_s


def test_of_two_pods_with_one_trouble_the_older_one_counts_and_is_named() -> None:
    snapshot = seen(
        unready("colocated", 1, waiting=("ErrImagePull", "x"), waits_since=NOW - 5.0),
        unready("colocated", 2, waiting=("ErrImagePull", "x"), waits_since=NOW - 700.0),
    )
    (problem,) = problems_of(snapshot, {})
    assert "chat-colocated-2" in problem.message
    assert problem.overdue_in_s(snapshot) == -100.0


def fetching(*accounts: str, since: str) -> Snapshot:
    """A Job of the account `reader` that was made at `since` and has no pod."""
    fetch = {"size": "1Gi", "serviceAccountName": "reader"}
    spec = {"model": {"uri": "hf://org/tiny@main", "fetch": fetch}}
    snapshot = round_of(World(spec, (GATEWAY,)))[0]
    children = dict(snapshot.children)
    job = children["Job", "chat-fetch"]
    meta = job["metadata"] | {"creationTimestamp": since}
    children["Job", "chat-fetch"] = job | {"metadata": meta}
    made = {("ServiceAccount", name): {"metadata": {"name": name}} for name in accounts}
    return replace(snapshot, children=children | made)


def test_a_missing_account_of_the_job_counts_from_the_jobs_making() -> None:
    (problem,) = problems_of(fetching("other", since="2025-12-31T23:55:00Z"), {})
    assert problem.reason == "ServiceAccountNotFound"
    assert problem.overdue_in_s(fetching(since="2025-12-31T23:55:00Z")) == 300.0
    assert problems_of(fetching("reader", since="2025-12-31T23:55:00Z"), {}) == ()
