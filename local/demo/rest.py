"""Writes at rest, counted in the API server's own audit log.

A fleet without traffic should cost the API server nothing. Every write by the operator's or a
gateway's account counts, except Leases (leadership is a heartbeat) and access reviews.

A log without writes also comes from an audit policy that leaves them out, or from an operator that
has died. So the log must hold earlier writes of the operator, and its Lease, which it renews every
two seconds, must have been renewed all the time.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from local.demo.errors import DemoError

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
APART = {"leases", "tokenreviews", "subjectaccessreviews"}
RENEWAL_GAP_S = 15.0
"""The Lease's duration: after so long without a renewal another replica would lead."""


def is_ours(user: str, namespaces: tuple[str, ...]) -> bool:
    """Whether `user` is the service account of the operator or of a fleet's gateway."""
    if not user.startswith("system:serviceaccount:"):
        return False
    namespace, account = user.split(":")[2:4]
    return namespace in namespaces and ("argosy" in account or account.endswith("-gateway"))


def writes(log: Path, begin: datetime, end: datetime, namespaces: tuple[str, ...]) -> list[str]:
    """Each write in [begin, end), as `account verb resource name`.

    DemoError if the log cannot show a silence.
    """
    earlier, renewals, found = 0, [], []
    for event in _events(log):
        user = event["user"]["username"]
        if not is_ours(user, namespaces) or event.get("verb") not in WRITES:
            continue
        at = datetime.fromisoformat(event["requestReceivedTimestamp"])
        if event.get("objectRef", {}).get("resource") in APART:
            if event["objectRef"]["resource"] == "leases" and _done_by_operator(event):
                renewals.append(at)
        elif at < begin:
            earlier += _done_by_operator(event)
        elif at < end:
            found.append(_line(event))
    if not earlier:
        raise DemoError(
            f"{log} has no earlier write of the operator, so it cannot show a silence: see the "
            "audit policy and the operator's account"
        )
    gap = _gap_s([at for at in renewals if begin <= at < end], begin, end)
    if gap > RENEWAL_GAP_S:
        raise DemoError(
            f"the operator did not renew its Lease for {gap:.0f} s, so it may be silent because "
            "it has died: see its log"
        )
    return found


def _events(log: Path) -> Iterator[dict[str, Any]]:
    with log.open() as lines:
        for line in lines:
            if '"stage":"ResponseComplete"' in line:
                yield json.loads(line)


def _done_by_operator(event: dict[str, Any]) -> bool:
    """Whether the API server did what one of our accounts asked, and it is not a gateway's."""
    code = event.get("responseStatus", {}).get("code", 500)
    return "argosy" in event["user"]["username"].rsplit(":", 1)[-1] and code < 300


def _line(event: dict[str, Any]) -> str:
    account, about = event["user"]["username"].rsplit(":", 1)[-1], event.get("objectRef", {})
    sub = f"/{about['subresource']}" if "subresource" in about else ""
    return f"{account} {event['verb']} {about.get('resource')}{sub} {about.get('name', '')}"


def _gap_s(renewals: list[datetime], begin: datetime, end: datetime) -> float:
    """Longest time in [begin, end) without a renewal, in seconds."""
    moments = [begin, *sorted(renewals), end]
    return max((b - a).total_seconds() for a, b in pairwise(moments))
