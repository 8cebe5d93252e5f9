"""The engine thread: inbox → scheduler → runner → scheduler → outbox, over and over.

HTTP handlers and the KV service post into the inbox from their threads; everything they ask takes
effect between two steps. What clients must learn goes out through `deliver`, which hops to the HTTP
thread: one batch after each step, and one before it for what the inbox brought. The thread outlives
any one request and any one failed step.
"""

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol, assert_never

from argosy_engine.core.handover.messages import (
    LeaseKey,
    LeaseReady,
    PrefillEvent,
    PrefillRefused,
    PullDone,
    PullEvent,
    PullFailed,
    PullPort,
    PullReady,
    RemotePrefill,
)
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission, FinishReason, NewRequest, Sequence, client_id
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepPlan
from argosy_engine.metrics.observe import EngineMetrics
from argosy_engine.ports.runner import Runner
from argosy_engine.runtime.shared_leases import SharedLeases
from argosy_engine.runtime.worker import Worker

__all__ = ["Delivery", "EngineLoop", "Sink"]

log = logging.getLogger(__name__)

_ENDING = Refusal("draining", "the engine is shutting down: ask another one")
_IDLE_WAIT_S = 0.25  # how long an idle loop sleeps before it looks at deadlines and leases


class Sink(Protocol):
    """Where one client's tokens go; called on the HTTP thread."""

    prefill_pod: str

    def emit(self, emission: Emission) -> None: ...

    def refuse(self, refusal: Refusal) -> None: ...


Delivery = tuple[Sink, Emission | Refusal]


@dataclass(frozen=True, slots=True)
class _Submit:
    request: NewRequest
    sink: Sink


@dataclass(frozen=True, slots=True)
class _SubmitRemote:
    prefill: RemotePrefill
    on_event: Callable[[PrefillEvent], None]
    arrival_s: float


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    reason: FinishReason = "abort"
    lease: LeaseKey | None = None  # a remote prefill's: it may come to be while this waits


@dataclass(frozen=True, slots=True)
class _Wake:
    """Something outside changed (a lease was released): look again."""


_Message = _Submit | _SubmitRemote | _Abort | _Wake | PullReady | PullDone | PullFailed


class EngineLoop:
    """Implements `core.transfer.PrefillPort` for the KV service."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        metrics: EngineMetrics,
        deliver: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.metrics = metrics
        self.leases = SharedLeases(clock)
        self.draining = False
        self.progress_s = clock()  # when the loop last came around, for liveness
        self._epoch = secrets.token_hex(8)
        self._deliver = deliver
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._remotes: dict[str, _SubmitRemote] = {}
        self._outbox: list[Delivery] = []
        self._kv_service: PullPort | None = None
        self._stopping = threading.Event()
        self._running: Future[None] | None = None

    # ------------------------------------------------------------- called from other threads

    def start(self, kv_service: PullPort | None = None, worker: Worker | None = None) -> None:
        """Run on `worker`, which loaded the runner, or on a thread of its own.

        `kv_service` starts and cancels pulls; None outside the decode role.
        """
        self._kv_service = kv_service
        worker = worker or Worker("engine")
        self._running = worker.call(self._run)
        self._running.add_done_callback(_say_why)
        worker.end()

    def stop(self) -> None:
        """End after the current step and join; unfinished requests get an error."""
        self._stopping.set()
        self._inbox.put(_Wake())
        if self._running is not None:
            wait([self._running])

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def unfinished(self) -> int:
        return self.scheduler.unfinished + self._inbox.qsize()

    def submit(self, request: NewRequest, sink: Sink) -> Refusal | None:
        """Queue a client's request, or say at once why not."""
        if self._stopping.is_set():
            return _ENDING
        waiting = len(self.scheduler.waiting) + self._inbox.qsize()
        if waiting >= self.scheduler.limits.max_queue:
            return Refusal("queue_full", f"{waiting} requests are waiting; retry later")
        self._inbox.put(_Submit(request, sink))
        return None

    def abort(self, request_id: str) -> None:
        """The client is gone."""
        self._inbox.put(_Abort(request_id))

    def stop_here(self, request_id: str) -> None:
        """The client has what it wanted: a stop string appeared in the text."""
        self._inbox.put(_Abort(request_id, "stop"))

    def post(self, event: PullEvent) -> None:
        """The KV service's completion events."""
        self._inbox.put(event)

    @property
    def engine_epoch(self) -> str:
        return self._epoch

    def submit_remote_prefill(
        self, prefill: RemotePrefill, on_event: Callable[[PrefillEvent], None]
    ) -> None:
        self._inbox.put(_SubmitRemote(prefill, on_event, self._clock()))

    def abort_remote_prefill(self, request_id: str, attempt: int) -> None:
        key = LeaseKey(request_id, attempt, self._epoch)
        self.leases.release(key)
        self._inbox.put(_Abort(_remote_id(request_id, attempt), lease=key))

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        return self.leases.begin_send(key)

    def end_send(self, key: LeaseKey) -> None:
        self.leases.end_send(key)
        self._inbox.put(_Wake())

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        self.metrics.observe_send(bytes_moved=bytes_moved, seconds=seconds)

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        self.leases.renew(key, lease_s)

    def release(self, key: LeaseKey) -> None:
        self.leases.release(key)
        self._inbox.put(_Wake())

    # ------------------------------------------------------------- the thread

    def _run(self) -> None:
        worked = False
        while not self._stopping.is_set():
            self.progress_s = self._clock()
            try:
                self._take_in(wait=not worked)
                worked = self._turn()
            except Exception:
                # One of three places that catch everything: a bug in one turn must not end serving.
                log.exception("a turn of the engine loop failed")
                self.metrics.loop_errors.inc()
                worked = False
            self._flush()
        self._end_all()

    def _turn(self) -> bool:
        """One scheduling round; False when there was nothing to compute."""
        scheduler = self.scheduler
        for key in self.leases.collect():
            scheduler.free_lease(_remote_id(key.request_id, key.attempt))
        scheduled = scheduler.schedule(self._clock())
        self.metrics.observe_schedule(scheduled)
        for sequence in scheduled.preempted:
            _log_preemption(sequence)
        self._emit(scheduled.emissions)
        for request_id, attempt in scheduled.cancels:
            self._pull_port().cancel_pull(request_id, attempt)
        for request_id in scheduled.abandoned:
            log.error(
                "the KV service did not stop the pull of %s: it goes on here",
                request_id,
                extra={"request_id": client_id(request_id)},
            )
        for job in scheduled.pull_jobs:
            self._pull_port().start_pull(job)
        if scheduled.plan is None:
            return False
        self._flush()  # what is known already does not wait for the step: a peer's first token
        self._emit(self._compute(scheduled.plan))
        return True

    def _compute(self, plan: StepPlan) -> list[Emission]:
        try:
            out = self.runner.execute(plan)
        except Exception as failure:
            log.exception("step %d failed", plan.index)
            self.metrics.loop_errors.inc()
            return self.scheduler.fail_step(f"the model could not compute this step: {failure}")
        emissions = self.scheduler.update(plan, out, self._clock())
        self.metrics.observe_step(plan, out)
        return emissions

    def _take_in(self, *, wait: bool) -> None:
        """Everything that came since the last step; an idle loop sleeps here."""
        try:
            message = self._inbox.get(timeout=_IDLE_WAIT_S) if wait else self._inbox.get_nowait()
            while True:
                try:
                    self._take(message)
                except Exception as fault:
                    log.exception(
                        "could not take in %s", type(message).__name__, extra=_subject(message)
                    )
                    self.metrics.loop_errors.inc()
                    self._answer_lost(message, fault)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _answer_lost(self, message: _Message, fault: Exception) -> None:
        """Without an answer, the client of such a request would wait without end."""
        refusal = Refusal("invalid", f"the engine could not take this request: {fault}")
        if isinstance(message, _Submit):
            self._outbox.append((message.sink, refusal))
        elif isinstance(message, _SubmitRemote):
            self._refuse_remote(message, refusal.code, refusal.message)

    def _take(self, message: _Message) -> None:
        match message:
            case _Submit():
                self._add(message)
            case _SubmitRemote():
                self._add_remote(message)
            case _Abort(request_id, reason, lease):
                if lease is not None:
                    self.leases.release(lease)
                self._abort(request_id, reason)
            case PullReady():
                self._pull_ready(message)
            case PullDone():
                self.metrics.observe_pull(message)
                self.scheduler.pull_done(message)
            case PullFailed():
                if message.cause != "cancelled":
                    level = logging.DEBUG if message.cause == "suspended" else logging.WARNING
                    log.log(level, "pull failed: %s", message.message, extra=_subject(message))
                    self.metrics.observe_pull_failure(message)
                self.scheduler.pull_failed(message)
            case _Wake():
                pass
            case _:
                assert_never(message)

    def _add(self, submit: _Submit) -> None:
        refusal = self.scheduler.refusal(submit.request)
        if refusal is not None:
            self._outbox.append((submit.sink, refusal))
            return
        self._sinks[submit.request.request_id] = submit.sink
        self.scheduler.add(submit.request)

    def _add_remote(self, submit: _SubmitRemote) -> None:
        prefill = submit.prefill
        request_id = _remote_id(prefill.request_id, prefill.attempt)
        request = NewRequest(
            request_id=request_id,
            token_ids=list(prefill.token_ids),
            sampling=prefill.sampling,
            arrival_s=submit.arrival_s,
            attempt=prefill.attempt,
            lease_s=prefill.lease_s,
        )
        refusal = self.scheduler.refusal(request)
        if self.draining:
            refusal = Refusal("draining", "this engine is draining: ask another one")
        if refusal is not None:
            self._refuse_remote(submit, refusal.code, refusal.message)
            return
        self._remotes[request_id] = submit
        self.scheduler.add(request)

    def _abort(self, request_id: str, reason: FinishReason) -> None:
        sink = self._sinks.pop(request_id, None)
        remote = self._remotes.pop(request_id, None)
        if remote is not None:
            self._refuse_remote(remote, "failed", "aborted by the peer")
        sequence = self.scheduler.sequences.get(request_id)
        if sequence is not None and request_id not in self.scheduler.leased:
            self.scheduler.abort(request_id, reason)
            if sink is not None or remote is not None:
                self.metrics.observe_end(sequence, reason)

    def _pull_ready(self, event: PullReady) -> None:
        sink = self._sinks.get(event.request_id)
        if sink is not None:
            sink.prefill_pod = event.prefill_pod
        self._emit(self.scheduler.pull_ready(event, self._clock()))

    # ------------------------------------------------------------- outcomes

    def _emit(self, emissions: list[Emission] | tuple[Emission, ...]) -> None:
        for emission in emissions:
            self.metrics.observe_emission(emission)
            request_id = emission.sequence.request_id
            if emission.sequence.request.lease_s is not None:
                self._answer_remote(emission)
                continue
            sink = self._sinks.get(request_id)
            if sink is not None:
                self._outbox.append((sink, emission))
                if emission.reason is not None:
                    del self._sinks[request_id]
                    _log_end(emission)

    def _answer_remote(self, emission: Emission) -> None:
        sequence = emission.sequence
        submit = self._remotes.pop(sequence.request_id, None)
        if submit is None:
            self.scheduler.free_lease(sequence.request_id)
            return
        if not emission.leased or emission.token_id is None:
            _log_end(emission)
            self._refuse_remote(submit, "failed", emission.message)
            return
        prefill = submit.prefill
        key = LeaseKey(prefill.request_id, prefill.attempt, self._epoch)
        blocks = tuple(sequence.blocks)
        self.leases.grant(key, blocks, prefill.lease_s)
        _notify(submit, _lease_ready(key, sequence, emission.token_id, blocks))

    def _refuse_remote(self, submit: _SubmitRemote, reason: str, message: str) -> None:
        prefill = submit.prefill
        _notify(submit, PrefillRefused(
            request_id=prefill.request_id, attempt=prefill.attempt, reason=reason, message=message
        ))  # fmt: skip

    def _flush(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._deliver(batch)

    def _end_all(self) -> None:
        """Tell everybody who waits, also those whom the inbox has not let in yet."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, _Submit):
                    self._outbox.append((message.sink, _ENDING))
                elif isinstance(message, _SubmitRemote):
                    self._refuse_remote(message, _ENDING.code, _ENDING.message)
        for request_id in list(self._remotes):
            self._abort(request_id, "abort")
        self._outbox.extend((sink, _ENDING) for sink in self._sinks.values())
        self._sinks.clear()
        self._flush()

    def _pull_port(self) -> PullPort:
        assert self._kv_service is not None, "only a decode engine with a KV service starts pulls"
        return self._kv_service


def _remote_id(request_id: str, attempt: int) -> str:
    """A peer's request beside our own ones, and beside its own earlier attempt."""
    return f"{request_id}#{attempt}"


def _log_preemption(sequence: Sequence) -> None:
    log.info(
        "preempted %s (time %d): no KV block is free for the next tokens and it entered last; "
        "its %d tokens are computed again",
        sequence.request_id,
        sequence.preemptions,
        len(sequence.tokens),
        extra=_subject(sequence.request),
    )


def _log_end(emission: Emission) -> None:
    """A request that failed has a line of its own: that of a step names no request."""
    if emission.reason == "error":
        log.warning("failed: %s", emission.message, extra=_subject(emission.sequence.request))


def _subject(message: _Message | NewRequest) -> dict[str, object]:
    """The keys of a log line about one request."""
    match message:
        case _Submit(request):
            return _subject(request)
        case _SubmitRemote(prefill):
            return {"request_id": client_id(prefill.request_id), "attempt": prefill.attempt}
        case _Abort(request_id):
            return {"request_id": client_id(request_id)}
        case _Wake():
            return {}
        case _:
            return {"request_id": client_id(message.request_id), "attempt": message.attempt}


def _say_why(running: "Future[None]") -> None:
    if fault := running.exception():
        log.error("the engine thread has ended", exc_info=fault)


def _notify(submit: _SubmitRemote, event: PrefillEvent) -> None:
    try:
        submit.on_event(event)
    except Exception:
        # The KV service's loop may be closed already; its connections end the leases.
        log.exception("the KV service did not take an event")


def _lease_ready(
    key: LeaseKey, sequence: Sequence, first_token: int, blocks: tuple[int, ...]
) -> LeaseReady:
    scheduled = sequence.scheduled_s or sequence.request.arrival_s
    return LeaseReady(
        key=key,
        first_token=first_token,
        n_tokens=sequence.n_prompt,
        block_ids=blocks,
        queue_s=scheduled - sequence.request.arrival_s,
        prefill_s=(sequence.first_token_s or scheduled) - scheduled,
    )
