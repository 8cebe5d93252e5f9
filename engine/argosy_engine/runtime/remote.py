"""Decode engines' prompts as requests of this engine, their leases, and the answers.

A decode engine takes such a prompt only if it is the text of a stream that it had itself, that was
moved to the engine that asks, and whose KV it keeps under a lease (`keep`). Nearly all of that
prompt is then in the prefix cache: what is computed is the rest of the last block.

The KV thread pins leases and the engine thread collects those that are over, so the lease table is
behind a lock (`SharedLeases`).
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable

from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import (
    LeaseKey,
    LeaseReady,
    PrefillEvent,
    PrefillProgress,
    PrefillRefused,
)
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission, NewRequest, Sequence, client_id
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.errors import LeaseGoneError
from argosy_engine.runtime.inbox import SubmitRemote
from argosy_engine.runtime.reports import log_end


class SharedLeases:
    """Each method holds the lock for microseconds; times are the clock's seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = LeaseTable()
        self._lock = threading.Lock()
        self._clock = clock

    @property
    def active(self) -> int:
        return len(self._table)

    @property
    def expired(self) -> int:
        return self._table.expired

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._table

    def promise(self, key: LeaseKey) -> str:
        """The ticket: 128 random bits as 32 hexadecimal digits."""
        ticket = secrets.token_hex(16)
        with self._lock:
            self._table.promise(key, ticket)
        return ticket

    def extend(self, key: LeaseKey, block_ids: tuple[int, ...]) -> bool:
        with self._lock:
            return self._table.extend(key, block_ids)

    def find(self, ticket: str) -> LeaseKey:
        with self._lock:
            return self._table.find(ticket)

    def grant(self, key: LeaseKey, block_ids: tuple[int, ...], lease_s: float) -> None:
        with self._lock:
            self._table.grant(key, block_ids, expires_s=self._clock() + lease_s)

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        with self._lock:
            return self._table.begin_send(key, self._clock())

    def end_send(self, key: LeaseKey) -> None:
        with self._lock:
            self._table.end_send(key)

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        with self._lock:
            now = self._clock()
            self._table.renew(key, expires_s=now + lease_s, now=now)

    def release(self, key: LeaseKey) -> None:
        with self._lock:
            self._table.release(key)

    def collect(self) -> list[LeaseKey]:
        with self._lock:
            return self._table.collect(self._clock())


log = logging.getLogger(__name__)


class RemotePrefills:
    """Those of one engine; the engine thread's, but for `key_of` and `epoch`."""

    def __init__(self, scheduler: Scheduler, leases: SharedLeases) -> None:
        self.epoch = secrets.token_hex(8)
        self._scheduler = scheduler
        self._leases = leases
        self._open: dict[str, SubmitRemote] = {}
        """Those that have no answer yet, by `remote_id`."""
        self._streams: dict[LeaseKey, Sequence] = {}
        """Streams that were moved away, and on which no peer has a lease yet."""

    def key_of(self, submit: SubmitRemote) -> LeaseKey:
        return LeaseKey(submit.prefill.request_id, submit.prefill.attempt, self.epoch)

    @property
    def unanswered(self) -> list[str]:
        """Their ids in the scheduler."""
        return list(self._open)

    def add(self, submit: SubmitRemote, *, draining: bool) -> None:
        """Queue the prompt, or refuse it."""
        request = _request(submit)
        refusal = self._scheduler.refusal(request)
        if draining and self._find_stream(request.token_ids) is None:
            refusal = Refusal("draining", "this engine is draining: ask another one")
        if refusal is not None:
            self._leases.release(self.key_of(submit))
            refuse(submit, refusal.code, refusal.message)
            return
        self._open[request.request_id] = submit
        self._scheduler.add(request)

    def keep(self, sequence: Sequence, lease_s: float) -> bool:
        """Stop a stream and hold its blocks for the engine that goes on with it; False if there is
        nothing to hold."""
        key = LeaseKey(sequence.request_id, sequence.request.attempt, self.epoch)
        self._leases.promise(key)  # first: a drain must never see neither a stream nor a lease
        if not self._scheduler.lend(sequence.request_id):
            self._leases.release(key)
            return False
        self._leases.grant(key, tuple(sequence.blocks), lease_s)
        self._streams[key] = sequence
        return True

    def free_streams(self, asked_id: str) -> None:
        """Free the KV of the moved streams of this client's id."""
        for key in self._streams:
            if client_id(key.request_id) == asked_id:
                self._leases.release(key)

    def _find_stream(self, token_ids: list[int]) -> LeaseKey | None:
        """The moved stream that has the KV of this text, except the rest of its last block."""
        blocks = (len(token_ids) - 1) // self._scheduler.pool.block_size
        for key, sequence in self._streams.items():
            if 0 < blocks <= sequence.committed and sequence.tokens[: len(token_ids)] == token_ids:
                return key
        return None

    def lose(self, submit: SubmitRemote, refusal: Refusal) -> None:
        """It could not be taken in."""
        self.let_go(self.key_of(submit))
        refuse(submit, refusal.code, refusal.message)

    def abort(self, request_id: str) -> bool:
        """Tell the peer that it is over; False if it has its answer, or never came."""
        submit = self._open.pop(request_id, None)
        if submit is not None:
            refuse(submit, "failed", "aborted by the peer")
        return submit is not None

    def report_progress(self) -> None:
        """Let peers pull the blocks that are ready of prompts that are still computed."""
        if not self._open:
            return
        size = self._scheduler.pool.block_size
        for sequence in self._scheduler.running:
            submit = self._open.get(sequence.request_id)
            if submit is None:
                continue
            ready = tuple(sequence.blocks[: sequence.num_computed // size])
            if self._leases.extend(self.key_of(submit), ready):
                _answer(submit, PrefillProgress(n_ready=len(ready)))

    def answer(self, emission: Emission) -> None:
        """Grant the lease of a prompt that is computed, or say why it is not."""
        sequence = emission.sequence
        submit = self._open.pop(sequence.request_id, None)
        if submit is None:  # it was aborted
            return
        key = self.key_of(submit)
        if not emission.leased or emission.token_id is None:
            log_end(emission)
            self.let_go(key)
            refuse(submit, _reason(emission), emission.message)
            return
        try:
            self._leases.grant(key, tuple(sequence.blocks), submit.prefill.lease_s)
        except LeaseGoneError:  # the peer left during this step; its abort is in the inbox
            self.let_go(key)
        else:
            if (moved := self._find_stream(sequence.request.token_ids)) is not None:
                self._leases.release(moved)  # the peer's own lease holds the blocks from here on
            _answer(submit, _ready(key, sequence, emission.token_id))

    def let_go(self, key: LeaseKey) -> None:
        """End a remote prefill; a send that runs keeps its blocks until it has ended."""
        self._leases.release(key)
        if key not in self._leases:  # it was collected before its prompt was taken in
            self._scheduler.free_lease(remote_id(key.request_id, key.attempt))

    def collect(self) -> None:
        """Free the blocks of leases that are over."""
        for key in self._leases.collect():
            moved = self._streams.pop(key, None)
            name = remote_id(key.request_id, key.attempt) if moved is None else moved.request_id
            self._scheduler.free_lease(name)


def remote_id(request_id: str, attempt: int) -> str:
    """A name that neither our own requests nor other attempts of this one have."""
    return f"{request_id}#{attempt}"


def _request(submit: SubmitRemote) -> NewRequest:
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


def _ready(key: LeaseKey, sequence: Sequence, first_token: int) -> LeaseReady:
    """The answer to a prompt that is computed."""
    return LeaseReady(
        key=key,
        first_token=first_token,
        n_tokens=sequence.n_prompt,
        n_blocks=len(sequence.blocks),
    )


def _reason(emission: Emission) -> str:
    """A request that no engine could serve, or one that waited too long, is no failure of this
    engine."""
    return "failed" if emission.code == "internal_error" else emission.code


def refuse(submit: SubmitRemote, reason: str, message: str) -> None:
    """`reason` is a `Refusal`'s code, or that of an emission, "failed" for an internal error."""
    prefill = submit.prefill
    event = PrefillRefused(
        request_id=prefill.request_id, attempt=prefill.attempt, reason=reason, message=message
    )
    _answer(submit, event)


def _answer(submit: SubmitRemote, event: PrefillEvent) -> None:
    """Call the KV service; an exception of its does not reach the engine loop."""
    try:
        submit.on_event(event)
    except Exception:
        # The KV service may be closed already; its connections end the leases.
        log.exception("the KV service did not take an event")
