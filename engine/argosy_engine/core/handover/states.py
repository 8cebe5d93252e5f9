"""The states of a handover at both ends, with the allowed transitions.

`pulls.py` moves pulls through the decode engine's states, `leases.py` moves leases through the
prefill engine's. `docs/reference/handover.md` is generated from the tables below.
"""

from dataclasses import dataclass
from enum import Enum


class PullState(Enum):
    """A pull on the decode engine."""

    ASKED = "asked"
    STREAMING = "streaming"
    CANCELLING = "cancelling"
    LOST = "lost"
    DONE = "done"
    FAILED = "failed"


class LeaseState(Enum):
    """A lease on the prefill engine."""

    PROMISED = "promised"
    HELD = "held"
    SENDING = "sending"
    RELEASED = "released"
    FREED = "freed"


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed change of state."""

    before: PullState | LeaseState
    after: PullState | LeaseState
    when: str
    """What causes it; for docs/reference/handover.md."""


PULL_MEANINGS = {
    PullState.ASKED: "The KV service has the pull job. A prefill engine queues or computes the "
    "prompt, and blocks arrive as they are computed. The request holds the blocks of its prompt "
    "and no place in the batch.",
    PullState.STREAMING: "The prefill engine has drawn the first token; the client has it, or it "
    "waits for the sequence to join the batch. The KV is on its way.",
    PullState.CANCELLING: "The request ended or the pull took too long. The KV service has to "
    "stop, and may still write to the blocks until it confirms.",
    PullState.LOST: "The KV service did not confirm in time. The request goes on without the pull. "
    "The blocks that the service may write to stay out of the pool until it confirms.",
    PullState.DONE: "All KV is here and verified, and only now is it in the prefix cache. Unless "
    "the request has ended or its pull was lost, it decodes as soon as the batch has a place.",
    PullState.FAILED: "The KV service gave up and no longer touches the blocks. Unless the request "
    "has ended, `--kv-on-failure` decides: its prompt is computed here, or it ends with 503. When "
    "the client has the first token, the prompt is always computed here.",
}

PULL_TRANSITIONS = (
    Transition(PullState.ASKED, PullState.STREAMING, "`PullReady`"),
    Transition(PullState.ASKED, PullState.DONE, "`PullDone` without a first token"),
    Transition(PullState.ASKED, PullState.FAILED, "`PullFailed`"),
    Transition(
        PullState.ASKED,
        PullState.CANCELLING,
        "the request ended, or no progress for `--kv-timeout-s`",
    ),
    Transition(PullState.STREAMING, PullState.DONE, "`PullDone`"),
    Transition(PullState.STREAMING, PullState.FAILED, "`PullFailed`"),
    Transition(
        PullState.STREAMING,
        PullState.CANCELLING,
        "the request ended, or no progress for `--kv-timeout-s`",
    ),
    Transition(PullState.CANCELLING, PullState.DONE, "`PullDone`: it was complete already"),
    Transition(PullState.CANCELLING, PullState.FAILED, "`PullFailed` confirms the cancel"),
    Transition(PullState.CANCELLING, PullState.LOST, "no confirmation within 5 s"),
    Transition(PullState.LOST, PullState.DONE, "a late `PullDone`"),
    Transition(PullState.LOST, PullState.FAILED, "a late `PullFailed`"),
)

LEASE_MEANINGS = {
    LeaseState.PROMISED: "The prompt is queued or computed. Its ticket is with the decode engine, "
    "which may pull the blocks that are ready.",
    LeaseState.HELD: "The prompt is computed and its blocks wait for the decode engine.",
    LeaseState.SENDING: "The KV service reads blocks that are ready. The prompt may still be "
    "computed. The lease cannot expire meanwhile.",
    LeaseState.RELEASED: "The decode engine has the KV or no longer wants it. A send that still "
    "runs may finish; no other can start.",
    LeaseState.FREED: "The blocks are back in the pool, where they stay in the prefix cache until "
    "they are needed.",
}

LEASE_TRANSITIONS = (
    Transition(LeaseState.PROMISED, LeaseState.HELD, "the prompt is computed"),
    Transition(LeaseState.PROMISED, LeaseState.SENDING, "`begin_send`"),
    Transition(
        LeaseState.PROMISED,
        LeaseState.RELEASED,
        "`release`: refused, failed, or its connection closed",
    ),
    Transition(LeaseState.HELD, LeaseState.SENDING, "`begin_send`"),
    Transition(LeaseState.HELD, LeaseState.RELEASED, "`release`"),
    Transition(LeaseState.HELD, LeaseState.FREED, "the lease expired"),
    Transition(LeaseState.SENDING, LeaseState.HELD, "the last `end_send`"),
    Transition(
        LeaseState.SENDING, LeaseState.PROMISED, "the last `end_send`, while the prompt is computed"
    ),
    Transition(LeaseState.SENDING, LeaseState.RELEASED, "`release`"),
    Transition(LeaseState.RELEASED, LeaseState.FREED, "no send runs"),
)

_ALLOWED = {(move.before, move.after) for move in (*PULL_TRANSITIONS, *LEASE_TRANSITIONS)}


def move_pull(before: PullState, after: PullState) -> PullState:
    """`after`, if the transition is allowed."""
    assert (before, after) in _ALLOWED, f"a pull cannot go from {before.value} to {after.value}"
    return after


def move_lease(before: LeaseState, after: LeaseState) -> LeaseState:
    """`after`, if the transition is allowed."""
    assert (before, after) in _ALLOWED, f"a lease cannot go from {before.value} to {after.value}"
    return after
