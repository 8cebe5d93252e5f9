"""From an AdmissionReview of the API server to the answer: always yes, with warnings."""

import logging
from collections.abc import Mapping
from typing import Any

from argosy_operator.core.warnings.told import told

log = logging.getLogger("argosy.webhook")

REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}


class NoReviewError(ValueError):
    """The body is no AdmissionReview."""


def answer(review: Any) -> dict[str, Any]:
    """The AdmissionReview that answers `review`. Raises NoReviewError for what is none."""
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NoReviewError("write an AdmissionReview of admission.k8s.io/v1 with request.uid")
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    lines = _lines(request)
    if lines:
        response["warnings"] = list(lines)
    return REVIEW | {"response": response}


def _lines(request: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings; none where making them fails: that must not block the write."""
    new, old = request.get("object"), request.get("oldObject")
    if not isinstance(new, dict) or request.get("operation") not in ("CREATE", "UPDATE"):
        return ()
    before = old if isinstance(old, dict) else None
    try:
        return told(new, before, dry_run=request.get("dryRun") is True)
    except Exception:
        log.exception("no warnings about %s/%s", request.get("namespace"), request.get("name"))
        return ()
