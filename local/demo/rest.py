"""Writes at rest, counted in the API server's own audit log.

A fleet without traffic should cost the API server nothing. Every write by the operator's or a
gateway's account counts, except Leases (leadership is a heartbeat) and access reviews.
"""

import json
from pathlib import Path

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
APART = {"leases", "tokenreviews", "subjectaccessreviews"}


def is_ours(user: str, namespaces: tuple[str, ...]) -> bool:
    """Whether `user` is the service account of the operator or of a fleet's gateway."""
    if not user.startswith("system:serviceaccount:"):
        return False
    namespace, account = user.split(":")[2:4]
    return namespace in namespaces and ("argosy" in account or account.endswith("-gateway"))


def writes(log: Path, begin: str, end: str, namespaces: tuple[str, ...]) -> list[str]:
    """Each write in [begin, end), two RFC 3339 times in UTC, as `account verb resource name`."""
    found = []
    with log.open() as lines:
        for line in lines:
            if '"stage":"ResponseComplete"' not in line:
                continue
            event = json.loads(line)
            about = event.get("objectRef", {})
            if (
                event.get("verb") in WRITES
                and begin <= event["requestReceivedTimestamp"] < end
                and about.get("resource") not in APART
                and is_ours(event["user"]["username"], namespaces)
            ):
                account = event["user"]["username"].rsplit(":", 1)[-1]
                sub = f"/{about['subresource']}" if "subresource" in about else ""
                thing = f"{about.get('resource')}{sub} {about.get('name', '')}"
                found.append(f"{account} {event['verb']} {thing}")
    return found
