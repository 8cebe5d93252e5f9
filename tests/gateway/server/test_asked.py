"""The headers by which a client names the class of its request, and its flow."""

import pytest

from argosy_gateway.accounting.classes import SloClass, classes_of
from argosy_gateway.accounting.verdicts import Slo
from argosy_gateway.errors import RequestError
from argosy_gateway.server.asgi import header, respond
from argosy_gateway.server.asked import flow_of, slo_class_of

SLO = Slo(1, 1)
CLASSES = classes_of(SLO, (SloClass("batch", Slo(2, 2), 7), SloClass("a.b", Slo(3, 3))))


def scope(*headers):
    return {"headers": headers}


def test_the_first_header_of_a_name_counts():
    asked = scope((b"b", b"0"), (b"a", b"1"), (b"a", b"2"))
    assert header(asked, b"a") == b"1"
    assert header(asked, b"c") is None


@pytest.mark.parametrize("name", ["default", "batch", "a.b"])
def test_a_class_is_found_by_its_name(name):
    assert slo_class_of(scope((b"x-argosy-class", name.encode())), CLASSES) is CLASSES[name]


def test_without_a_name_a_request_has_the_default_class():
    assert slo_class_of(scope(), CLASSES) is CLASSES["default"]
    assert slo_class_of(scope(), CLASSES).slo is SLO


@pytest.mark.parametrize("name", [b"", b"gold", b"Batch", b"\xe9"])
def test_another_class_is_refused_with_the_names_that_there_are(name):
    with pytest.raises(RequestError) as refused:
        slo_class_of(scope((b"x-argosy-class", name)), CLASSES)
    error = refused.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.message == "No such class in x-argosy-class; this fleet has default, batch, a.b."
    assert (error.param, error.code) == ("x-argosy-class", "class_not_found")


@pytest.mark.parametrize("flow", ["a", "A.z_9-0", "x" * 128])
def test_a_flow_is_a_name(flow):
    assert flow_of(scope((b"x-argosy-flow", flow.encode()))) == flow


def test_without_a_flow_it_is_empty():
    assert flow_of(scope()) == ""


@pytest.mark.parametrize("flow", [b"", b"x" * 129, b"a b", b"a\xe9", b"a/b"])
def test_a_flow_that_is_no_name_is_refused(flow):
    with pytest.raises(RequestError) as refused:
        flow_of(scope((b"x-argosy-flow", flow)))
    error = refused.value
    assert (error.status, error.param, error.code) == (400, "x-argosy-flow", None)
    assert error.message == (
        "x-argosy-flow must be 1 to 128 letters, digits, dots, underscores or hyphens."
    )


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        (
            (),
            [(b"content-type", b"application/json"), (b"content-length", b"3")],
        ),
        (
            ("id", {"content-type": "text/plain", "allow": "GET"}),
            [
                (b"content-type", b"text/plain"),
                (b"content-length", b"3"),
                (b"x-request-id", b"id"),
                (b"allow", b"GET"),
            ],
        ),
    ],
)
async def test_a_small_answer_is_sent_whole(given, headers):
    sent = []

    async def send(message):
        sent.append(message)

    await respond(send, 418, b"tea", *given)
    assert sent == [
        {"type": "http.response.start", "status": 418, "headers": headers},
        {"type": "http.response.body", "body": b"tea"},
    ]
