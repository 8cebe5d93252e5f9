"""What a client asks for in headers of ours: the class of its request, and its flow."""

import re
from collections.abc import Mapping

from argosy_gateway.accounting.classes import DEFAULT_CLASS, SloClass
from argosy_gateway.errors import RequestError
from argosy_gateway.server.asgi import Scope, header

__all__ = ["flow_of", "slo_class_of"]

_FLOW = re.compile(r"[A-Za-z0-9._-]{1,128}")


def slo_class_of(scope: Scope, classes: Mapping[str, SloClass]) -> SloClass:
    """The class that `x-argosy-class` names. Raises RequestError (400) if there is none."""
    given = header(scope, b"x-argosy-class")
    name = given.decode("latin-1") if given is not None else DEFAULT_CLASS
    if name not in classes:
        text = f"No such class in x-argosy-class; this fleet has {', '.join(classes)}."
        raise RequestError(400, text, param="x-argosy-class", code="class_not_found")
    return classes[name]


def flow_of(scope: Scope) -> str:
    """The flow that `x-argosy-flow` names, "" without one. Raises RequestError (400)."""
    given = header(scope, b"x-argosy-flow")
    if given is None:
        return ""
    flow = given.decode("latin-1")
    if not _FLOW.fullmatch(flow):
        text = "x-argosy-flow must be 1 to 128 letters, digits, dots, underscores or hyphens."
        raise RequestError(400, text, param="x-argosy-flow")
    return flow
