"""A decode engine's prompt as a request of this prefill engine, and the answers to it."""

import logging

from argosy_engine.core.handover.messages import (
    LeaseKey,
    LeaseReady,
    PrefillEvent,
    PrefillRefused,
)
from argosy_engine.core.request import NewRequest, Sequence
from argosy_engine.runtime.inbox import SubmitRemote

__all__ = ["answer", "lease_key", "lease_ready", "refuse", "remote_id", "remote_request"]

log = logging.getLogger(__name__)


def remote_id(request_id: str, attempt: int) -> str:
    """A name that neither our own requests nor other attempts of this one have."""
    return f"{request_id}#{attempt}"


def remote_request(submit: SubmitRemote) -> NewRequest:
    """What the scheduler computes: the prompt, and one token."""
    prefill = submit.prefill
    return NewRequest(
        request_id=remote_id(prefill.request_id, prefill.attempt),
        token_ids=list(prefill.token_ids),
        sampling=prefill.sampling,
        arrival_s=submit.arrival_s,
        attempt=prefill.attempt,
        lease_s=prefill.lease_s,
        priority=prefill.priority,
    )


def lease_key(submit: SubmitRemote, engine_epoch: str) -> LeaseKey:
    return LeaseKey(submit.prefill.request_id, submit.prefill.attempt, engine_epoch)


def lease_ready(key: LeaseKey, sequence: Sequence, first_token: int) -> LeaseReady:
    """The answer to a prompt that is computed."""
    return LeaseReady(
        key=key,
        first_token=first_token,
        n_tokens=sequence.n_prompt,
        n_blocks=len(sequence.blocks),
    )


def refuse(submit: SubmitRemote, reason: str, message: str) -> None:
    """`reason` is a `Refusal`'s code, or "failed"."""
    prefill = submit.prefill
    event = PrefillRefused(
        request_id=prefill.request_id, attempt=prefill.attempt, reason=reason, message=message
    )
    answer(submit, event)


def answer(submit: SubmitRemote, event: PrefillEvent) -> None:
    """Call the KV service; an exception of its does not reach the engine loop."""
    try:
        submit.on_event(event)
    except Exception:
        # The KV service may be closed already; its connections end the leases.
        log.exception("the KV service did not take an event")
