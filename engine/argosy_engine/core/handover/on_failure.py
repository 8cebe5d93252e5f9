"""What becomes of a request when no prefill engine handed its prompt over.

The answer depends on the option `--kv-on-failure` and on what the prefill engines said. A request
whose first token has left always goes on here: its client has an answer that must not break off.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

from argosy_engine.core.handover.messages import FailedPrefill, PullFailed
from argosy_engine.core.limits import OnPullFailure

__all__ = ["CLIENT_ERRORS", "LOST", "PullRefusal", "after_failure"]

CLIENT_ERRORS = frozenset({"context_length_exceeded", "invalid"})
"""REFUSED's reasons that are the client's fault: another engine would say the same."""
_AWAY = frozenset({"connect", "suspended", "draining"})
"""Reasons of engines that serve no request at all."""


@dataclass(frozen=True, slots=True)
class PullRefusal:
    """The request ends with this error."""

    code: Literal["kv_transfer_failed", "context_length_exceeded", "invalid"]

    message: str
    """For the client."""


LOST = PullRefusal("kv_transfer_failed", "no prefill engine handed the prompt over: retry")


def after_failure(event: PullFailed, on_failure: OnPullFailure) -> PullRefusal | None:
    """None: compute the prompt here."""
    if event.reason in CLIENT_ERRORS:
        _, named, said = event.message.partition(f"{event.reason}: ")
        without_address = said if named else event.message
        return PullRefusal(event.reason, without_address)  # type: ignore[arg-type]
    match on_failure:
        case "recompute":
            return None
        case "fail":
            return LOST
        case "colocated":
            return None if all(map(_is_away, event.failed)) else LOST
        case _:
            assert_never(on_failure)


def _is_away(failed: FailedPrefill) -> bool:
    return failed.reason in _AWAY
