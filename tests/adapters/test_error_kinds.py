"""What the API server's answers mean, as a real one words them."""

import json
from typing import Any

import pytest
from kubernetes.aio.client import ApiException

from argosy_operator.adapters.cluster import classify
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind


def answered(code: int, body: object, headers: dict[str, str] | None = None) -> ClusterError:
    error = ApiException(status=code, reason="what HTTP calls it")
    error.body = body if isinstance(body, str | None) else json.dumps(body)
    error.headers = headers
    return classify(error, "apply Service chat")


def said(code: int, message: str, reason: str = "", **details: Any) -> ErrorKind:
    status = {"kind": "Status", "message": message, "reason": reason, "details": details}
    return answered(code, status).kind


OLD = (
    'Operation cannot be fulfilled on deployments.apps "chat-gateway": the object has been '
    "modified; please apply your changes to the latest version and try again"
)
QUOTA = (
    'pods "chat" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
)
RBAC = (
    'services is forbidden: User "system:serviceaccount:argosy:operator" cannot create resource '
    '"services" in API group "" in the namespace "ns"'
)
ENDING = (
    'services "chat" is forbidden: unable to create new content in namespace ns because it is '
    "being terminated"
)
ENDING_CAUSE = [{"reason": "NamespaceTerminating", "message": "namespace ns is being terminated"}]


@pytest.mark.parametrize(
    ("code", "reason", "message", "details", "means"),
    [
        (400, "BadRequest", "the body of the request was in an unknown format", {}, "Invalid"),
        (401, "Unauthorized", "Unauthorized", {}, "Unauthorized"),
        (403, "Forbidden", RBAC, {}, "Forbidden"),
        (403, "Forbidden", QUOTA, {}, "QuotaExceeded"),
        (403, "Forbidden", ENDING, {"causes": ENDING_CAUSE}, "NamespaceTerminating"),
        (404, "NotFound", 'services "chat" not found', {}, "NotFound"),
        (409, "Conflict", OLD, {}, "Conflict"),
        (409, "AlreadyExists", 'services "chat" already exists', {}, "AlreadyExists"),
        (410, "Expired", "The provided continue parameter is too old", {}, "Gone"),
        (413, "RequestEntityTooLarge", "limit is 3145728", {}, "Invalid"),
        (422, "Invalid", 'Service "chat" is invalid: spec.ports: Required value', {}, "Invalid"),
        (429, "TooManyRequests", "The server is too busy, please retry", {}, "Throttled"),
        (500, "InternalError", 'failed calling webhook "a.example": EOF', {}, "Unreachable"),
        (503, "ServiceUnavailable", "the server is currently unable", {}, "Unreachable"),
        (504, "Timeout", "Timeout: request did not complete", {}, "Unreachable"),
    ],
)  # fmt: skip
def test_each_answer_of_the_api_server_is_the_kind_that_its_status_says(
    code: int, reason: str, message: str, details: dict[str, Any], means: str
) -> None:
    assert said(code, message, reason, **details) == means


@pytest.mark.parametrize("code", [400, 401, 403, 409, 422, 429, 500])
def test_a_webhook_that_denies_an_object_forbids_it_whatever_code_it_chooses(code: int) -> None:
    """429 is no throttling of the server, 409 no race, 401 no problem with our credentials."""
    message = 'admission webhook "images.example" denied the request: no such registry'
    assert said(code, message) is ErrorKind.FORBIDDEN


@pytest.mark.parametrize(
    ("code", "message"), [(409, QUOTA), (409, ENDING), (422, QUOTA), (404, ENDING)]
)
def test_words_of_a_quota_or_a_namespace_count_only_in_a_refusal(code: int, message: str) -> None:
    assert said(code, message, causes=ENDING_CAUSE) in ("Conflict", "Invalid", "NotFound")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "the server's own words"}, "the server's own words"),
        ("<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>"),
        ("x" * 5000, "x" * 500),
        ("", "what HTTP calls it"),
        (None, "what HTTP calls it"),
        ({}, "{}"),
    ],
    ids=["status", "a proxy's page", "a long page", "empty", "none", "no message"],
)
def test_the_message_is_the_servers_own_and_bounded(body: object, words: str) -> None:
    error = answered(502, body)
    assert (error.kind, error.message) == ("Unreachable", words)
    assert str(error) == f"apply Service chat: Unreachable: {words}"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "86400"}, 300.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "\N{SUPERSCRIPT TWO}"}, None),
        ({"Retry-After": "-1"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_throttling_server_says_how_long_to_wait_up_to_five_minutes(
    header: dict[str, str] | None, seconds: float | None
) -> None:
    assert answered(429, {"reason": "TooManyRequests"}, header).retry_after_s == seconds
