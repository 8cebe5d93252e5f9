"""What the API server's answers mean, as a real one words them."""

import json

import pytest
from kubernetes.aio.client import ApiException

from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.ports.cluster import _classified


def said(code: int, message: str, reason: str = "") -> ErrorKind:
    error = ApiException(status=code)
    error.body = json.dumps({"kind": "Status", "message": message, "reason": reason})
    return _classified(error, "apply Service chat").kind


@pytest.mark.parametrize("code", [400, 401, 403, 409, 422, 429, 500])
def test_a_webhook_that_denies_an_object_forbids_it_whatever_code_it_chooses(code: int) -> None:
    """429 is no throttling of the server, 409 no race, 401 no problem with our credentials."""
    message = 'admission webhook "images.example" denied the request: no such registry'
    assert said(code, message) is ErrorKind.FORBIDDEN


@pytest.mark.parametrize(
    ("code", "error_kind"),
    [(401, ErrorKind.UNAUTHORIZED), (409, ErrorKind.CONFLICT), (429, ErrorKind.THROTTLED)],
)
def test_the_servers_own_codes_mean_what_they_say(code: int, error_kind: ErrorKind) -> None:
    assert said(code, "the object has been modified") is error_kind
