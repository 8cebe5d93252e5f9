"""When silence in the API server's audit log counts as rest."""

import json
from datetime import UTC, datetime

import pytest

from local.demo import rest
from local.demo.errors import DemoError

OPERATOR = "system:serviceaccount:argosy-system:argosy-operator"
GATEWAY = "system:serviceaccount:demo:smol-gateway"
BEGIN = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
END = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
NAMESPACES = ("demo", "argosy-system")


def at(second: float) -> str:
    """So many seconds after the minute of rest began, as the API server writes times."""
    minute, rest_s = divmod(60 + second, 60)
    return f"2026-01-01T00:{int(minute):02d}:{rest_s:09.6f}Z"


def line(user, verb, resource, second, *, stage="ResponseComplete", code=200, sub=None) -> str:
    about = {"resource": resource, "name": "x"} | ({"subresource": sub} if sub else {})
    return json.dumps(
        {
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "objectRef": about,
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": at(second),
        },
        separators=(",", ":"),
    )


def renewals(user=OPERATOR, *, every=2, until=60, code=200) -> list[str]:
    return [line(user, "update", "leases", s, code=code) for s in range(0, until, every)]


EARLIER = line(OPERATOR, "patch", "servingdeployments", -30)


def written(tmp_path, *lines: str) -> list[str]:
    log = tmp_path / "audit.log"
    log.write_text("".join(f"{text}\n" for text in lines))
    return rest.writes(log, BEGIN, END, NAMESPACES)


def test_an_operator_that_wrote_before_and_lives_is_at_rest_when_it_writes_no_more(tmp_path):
    assert written(tmp_path, EARLIER, *renewals()) == []


COUNTED = [
    ("the_operators_patch", line(OPERATOR, "patch", "servingdeployments", 30), True),
    ("a_create", line(OPERATOR, "create", "events", 30), True),
    ("an_update", line(OPERATOR, "update", "deployments", 30), True),
    ("a_delete", line(OPERATOR, "delete", "pods", 30), True),
    ("a_delete_of_many", line(OPERATOR, "deletecollection", "pods", 30), True),
    ("a_write_that_was_refused", line(OPERATOR, "patch", "pods", 30, code=403), True),
    ("a_gateways_event", line(GATEWAY, "create", "events", 30), True),
    ("the_first_moment", line(OPERATOR, "patch", "pods", 0), True),
    ("the_moment_after", line(OPERATOR, "patch", "pods", 60), False),
    ("a_read", line(OPERATOR, "get", "pods", 30), False),
    ("a_lease", line(OPERATOR, "update", "leases", 30), False),
    ("an_access_review", line(OPERATOR, "create", "subjectaccessreviews", 30), False),
    ("a_token_review", line(OPERATOR, "create", "tokenreviews", 30), False),
    ("the_same_call_at_another_stage", line(OPERATOR, "patch", "pods", 30, stage="Panic"), False),
    ("the_scheduler", line("system:kube-scheduler", "update", "pods", 30), False),
    (
        "an_account_of_another_namespace",
        line("system:serviceaccount:other:argosy-operator", "patch", "pods", 30),
        False,
    ),
    (
        "an_account_of_the_users",
        line("system:serviceaccount:demo:default", "patch", "pods", 30),
        False,
    ),
]


@pytest.mark.parametrize(
    ("text", "counts"), [row[1:] for row in COUNTED], ids=[row[0] for row in COUNTED]
)
def test_every_write_of_the_product_counts_but_leases_and_reviews(tmp_path, text, counts):
    assert len(written(tmp_path, EARLIER, *renewals(), text)) == counts


NO_EARLIER = [
    ("an_empty_log", ()),
    ("renewals_only", renewals()),
    ("earlier_reads", (line(OPERATOR, "list", "pods", -30), *renewals())),
    ("writes_of_a_gateway", (line(GATEWAY, "create", "events", -30), *renewals())),
    ("writes_of_the_scheduler", (line("system:kube-scheduler", "update", "pods", -30),)),
    ("writes_that_were_refused", (line(OPERATOR, "patch", "pods", -30, code=403), *renewals())),
    ("a_write_of_the_first_moment", (line(OPERATOR, "patch", "pods", 0), *renewals())),
    ("only_later_writes", (line(OPERATOR, "patch", "pods", 90), *renewals())),
]


@pytest.mark.parametrize("lines", [row[1] for row in NO_EARLIER], ids=[r[0] for r in NO_EARLIER])
def test_silence_does_not_count_without_the_operators_earlier_writes(tmp_path, lines):
    with pytest.raises(DemoError, match="no earlier write of the operator"):
        written(tmp_path, *lines)


DEAD = [
    ("never_renewed", ()),
    ("died_in_the_minute", renewals(until=40)),
    ("refused_renewals", renewals(code=409)),
    ("only_the_kubelet_renews", renewals("system:node:node-1")),
    ("twenty_seconds_between", renewals(every=20)),
]


@pytest.mark.parametrize("lines", [row[1] for row in DEAD], ids=[row[0] for row in DEAD])
def test_the_silence_of_an_operator_that_does_not_live_does_not_count(tmp_path, lines):
    with pytest.raises(DemoError, match="did not renew its Lease"):
        written(tmp_path, EARLIER, *lines)
