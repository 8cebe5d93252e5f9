"""The engine thread: inbox → scheduler → runner → scheduler → outbox, over and over.

HTTP handlers and the KV service post messages into the inbox from their threads; the messages take
effect between two steps. Tokens and ends go to the clients through `deliver`, which hands them to
the HTTP thread: one batch before each step, for what the inbox brought, and one after it. A failed
request or a failed step does not end the thread.

`Worker` is the thread that loads the model and then runs every step. OpenMP keeps a team of threads
for each thread that computes. If one thread loaded and another ran the steps, there would be two
teams. libgomp would count more threads than cores, and its waiting threads would sleep instead of
spinning.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar, assert_never

from argosy_engine.config import MOST_AUTO_TOKENS
from argosy_engine.core.handover.messages import (
    LeaseKey,
    PrefillEvent,
    PullAlive,
    PullDone,
    PullEvent,
    PullFailed,
    PullPort,
    PullReady,
    RemotePrefill,
)
from argosy_engine.core.limits import Refusal
from argosy_engine.core.live import change, show
from argosy_engine.core.request import Emission, FinishReason, NewRequest, client_id
from argosy_engine.core.runner import Launcher, Runner
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import SchedulerOutput, StepPlan
from argosy_engine.runtime.ahead import Ahead, OneByOne, Steps
from argosy_engine.runtime.inbox import (
    Abort,
    Keep,
    LetGo,
    Message,
    Reset,
    SetLimits,
    Sink,
    Submit,
    SubmitRemote,
    Wake,
    log_subject,
)
from argosy_engine.runtime.metrics import EngineMetrics
from argosy_engine.runtime.remote import RemotePrefills, SharedLeases, refuse, remote_id
from argosy_engine.runtime.reports import Reports, log_end, log_end_of_thread

T = TypeVar("T")


class Worker:
    """Runs jobs one after the other on one daemon thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Queue `work`; the future has its result or its exception."""
        future: Future[T] = Future()
        self._jobs.put(lambda: _into(future, work))
        return future

    def end(self) -> None:
        """End the thread after the queued jobs."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _into(future: "Future[Any]", work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # the caller waits for the result and raises it
        future.set_exception(error)


def move_kv(
    runner: Runner, scheduled: SchedulerOutput, moved: Callable[[str, int, float], None]
) -> None:
    """To the host first, because blocks that were given up may be filled from it.

    `moved` is told of each direction, "out" or "in", how many blocks moved in how many seconds.
    """
    for direction, copy, copies in (
        ("out", runner.to_host, scheduled.to_host),
        ("in", runner.from_host, scheduled.from_host),
    ):
        if copies:
            began = time.perf_counter()
            copy(copies)
            moved(direction, len(copies), time.perf_counter() - began)


log = logging.getLogger(__name__)

_ENDING = Refusal("draining", "the engine is shutting down: ask another one")
_IDLE_WAIT_S = 0.25
"""How long an idle loop waits for a message before it looks at deadlines and leases."""

Delivery = tuple[Sink, Emission | Refusal]
"""A sink, and what it gets."""


class EngineLoop:
    """Owns the scheduler and the runner. The KV service uses it as its `PrefillPort`."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        metrics: EngineMetrics,
        deliver: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
        launcher: Launcher | None = None,
    ) -> None:
        """With a `launcher`, a step may be launched before the tokens of the last one are read."""
        self.scheduler = scheduler
        self.runner = runner
        self.metrics = metrics
        self.leases = SharedLeases(clock)
        self.draining = False
        """Set by the drain: remote prefills are refused; the HTTP server refuses clients."""
        self.prefills_for_peers = True
        """False in a decode engine: remote prefills are refused, except for streams that it had."""
        self.lease_s = 30.0
        """How long the KV of a stream that goes on elsewhere is held at most."""
        self.progress_s = clock()
        """When the last turn began; the liveness probe reads it."""
        self._steps = 0
        self._reports = Reports(scheduler, clock)
        self._deliver = deliver
        self._clock = clock
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        """Where the tokens of clients' requests go, by request id, until the request ends."""
        self._remotes = RemotePrefills(scheduler, self.leases)
        self._moving: set[str] = set()
        """Requests whose KV is held when their connection closes."""
        self._computing: Steps = OneByOne(lambda plan: self.runner.execute(plan))
        if launcher is not None:
            self._computing = Ahead(scheduler, launcher, may_go_on=self._may_go_on, clock=clock)
        self._outbox: list[Delivery] = []
        self._kv_service: PullPort | None = None
        self._stopping = threading.Event()
        self._running: Future[None] | None = None

    # ------------------------------------------------------------- called from other threads

    def start(self, kv_service: PullPort | None = None, worker: Worker | None = None) -> None:
        """Run on `worker`, the thread that loaded the runner, or else on a new thread.

        `kv_service` starts and cancels pulls; None outside the decode role.
        """
        self._kv_service = kv_service
        worker = worker or Worker("engine")
        self._running = worker.call(self._run)
        self._running.add_done_callback(log_end_of_thread)
        worker.end()

    def stop(self) -> None:
        """End after the current step and join; unfinished requests get an error."""
        self._stopping.set()
        self._inbox.put(Wake())
        if self._running is not None:
            wait([self._running])

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def unfinished(self) -> int:
        return self.scheduler.unfinished + self._inbox.qsize()

    def submit(self, request: NewRequest, sink: Sink) -> Refusal | None:
        """Queue a client's request; a refusal if it cannot be queued."""
        if self._stopping.is_set():
            return _ENDING
        waiting = len(self.scheduler.waiting) + self._inbox.qsize()
        if waiting >= self.scheduler.limits.max_queue and not request.accepted:
            return Refusal("queue_full", f"{waiting} requests are waiting; retry later")
        self._inbox.put(Submit(request, sink))
        return None

    def abort(self, request_id: str) -> None:
        """The client closed its connection."""
        self._inbox.put(Abort(request_id))

    def keep(self, client_id: str) -> None:
        """Hold the KV of this request's stream for one lease when its connection closes: the stream
        then goes on at another engine."""
        self._inbox.put(Keep(client_id))

    def let_go(self, client_id: str) -> None:
        """Free the KV that `keep` holds, or no longer hold it when the connection closes."""
        self._inbox.put(LetGo(client_id))

    def stop_here(self, request_id: str) -> None:
        """A stop string appeared in the text: the request ends as if by a stop token."""
        self._inbox.put(Abort(request_id, "stop"))

    def change(self, sent: object) -> "Future[None]":
        """Take other limits between two steps; the future has ValueError if they are wrong."""
        done: Future[None] = Future()
        self._inbox.put(SetLimits(sent, done))
        return done

    def reset_prefix_cache(self) -> "Future[bool]":
        """False if a request runs or its KV is held for a peer."""
        done: Future[bool] = Future()
        self._inbox.put(Reset(done))
        return done

    def post(self, event: PullEvent) -> None:
        """An event of one of our pulls, from the KV service."""
        self._inbox.put(event)

    @property
    def engine_epoch(self) -> str:
        return self._remotes.epoch

    @property
    def computed_steps(self) -> int:
        return self._steps

    def submit_remote_prefill(
        self, prefill: RemotePrefill, on_event: Callable[[PrefillEvent], None]
    ) -> str:
        submit = SubmitRemote(prefill, on_event, self._clock())
        ticket = self.leases.promise(self._remotes.key_of(submit))
        self._inbox.put(submit)
        return ticket

    def find_lease(self, ticket: str) -> LeaseKey:
        return self.leases.find(ticket)

    def abort_remote_prefill(self, request_id: str, attempt: int) -> None:
        key = LeaseKey(request_id, attempt, self._remotes.epoch)
        self.leases.release(key)
        self._inbox.put(Abort(remote_id(request_id, attempt), lease=key))

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        return self.leases.begin_send(key)

    def end_send(self, key: LeaseKey) -> None:
        self.leases.end_send(key)
        self._inbox.put(Wake())

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        self.metrics.observe_send(bytes_moved=bytes_moved, seconds=seconds)

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        self.leases.renew(key, lease_s)

    def release(self, key: LeaseKey) -> None:
        self.leases.release(key)
        self._inbox.put(Wake())

    # ------------------------------------------------------------- the thread

    def _run(self) -> None:
        worked = False
        while not self._stopping.is_set():
            self.progress_s = self._clock()
            try:
                self._take_in(wait=not worked)
                worked = self._turn()
                self._reports.tick()
            except Exception:
                # A bug in one turn must not end serving.
                log.exception("a turn of the engine loop failed")
                self.metrics.loop_errors.inc()
                self._computing.drop()  # it follows a step whose tokens may be lost
                worked = False
            self._flush()
        self._computing.drop()
        self._end_all()

    def _turn(self) -> bool:
        """One step, with the scheduling round before it unless it was launched already; False if
        there was nothing to compute."""
        scheduler = self.scheduler
        self._remotes.collect()
        if self._computing.next is not None:
            self._flush()
            self._go_on()
            return True
        scheduled = scheduler.schedule(self._clock())
        self.metrics.observe_schedule(scheduled)
        for sequence in scheduled.preempted:
            self._reports.count_preemption(sequence)
        self._emit(scheduled.emissions)
        moved = self._move_kv(scheduled)  # before a pull writes to blocks that were given up
        for request_id, attempt in scheduled.cancels:
            self._pull_port().cancel_pull(request_id, attempt)
        for request_id in scheduled.abandoned:
            log.error(
                "the KV service did not stop the pull of %s: its prompt is computed here",
                request_id,
                extra={"request_id": client_id(request_id)},
            )
        for job in scheduled.pull_jobs:
            self._pull_port().start_pull(job)
        if scheduled.plan is None:
            return False
        self._flush()  # a peer's first token need not wait for the step
        if moved:
            self._emit(self._compute(scheduled.plan))
        return True

    def _may_go_on(self) -> bool:
        return self._inbox.empty() and not self._stopping.is_set()

    def _go_on(self, *, further: bool = True) -> None:
        """Take the outcome of the step that was launched already. Without `further` nothing runs
        then."""
        if (step := self._computing.next) is not None:
            self.metrics.observe_blocked(step.blocked_by)
            self._emit(self._compute(step.plan, further=further))

    def _move_kv(self, scheduled: SchedulerOutput) -> bool:
        """Copy what is swapped. False after an error: the requests concerned have failed then."""
        try:
            move_kv(self.runner, scheduled, self._observe_swap)
        except Exception as error:
            log.exception("could not swap KV")
            self.metrics.loop_errors.inc()
            swapped = [s for s in scheduled.preempted if s.swapped]
            message = f"its KV could not be moved: {error}"
            self._emit(self.scheduler.fail_step(message, (*swapped, *scheduled.resumed)))
            return False
        return True

    def _observe_swap(self, direction: str, blocks: int, seconds: float) -> None:
        self.scheduler.preemption.observe_copy(blocks, seconds)
        self.metrics.observe_swap(direction, blocks, seconds)

    def _compute(self, plan: StepPlan, *, further: bool = True) -> list[Emission]:
        try:
            plan, out = self._computing.compute(plan, go_on=further)
        except Exception as error:
            log.exception("step %d failed", plan.index)
            self.metrics.loop_errors.inc()
            return self.scheduler.fail_step(f"the model could not compute this step: {error}")
        emissions = self.scheduler.update(plan, out, self._clock())
        self.metrics.observe_step(plan, out)
        self._steps += 1
        self._reports.step(plan, len(out.token_ids))
        self._remotes.report_progress()
        return emissions

    def _take_in(self, *, wait: bool) -> None:
        """Take the messages that came since the last step; an idle loop waits here for one."""
        try:
            message = self._inbox.get(timeout=self._idle_s()) if wait else self._inbox.get_nowait()
            while True:
                try:
                    self._take(message)
                except Exception as error:
                    log.exception(
                        "could not take in %s", type(message).__name__, extra=log_subject(message)
                    )
                    self.metrics.loop_errors.inc()
                    self._answer_lost(message, error)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _idle_s(self) -> float:
        """How long to wait for a message: until a held first token is due, and at most 0.25 s."""
        due_s = self.scheduler.first_tokens.next_s()
        if due_s is None:
            return _IDLE_WAIT_S
        return min(max(due_s - self._clock(), 0.0), _IDLE_WAIT_S)

    def _answer_lost(self, message: Message, error: Exception) -> None:
        """Refuse a request whose message could not be taken in; its client would wait forever."""
        refusal = Refusal("invalid", f"the engine could not take this request: {error}")
        if isinstance(message, Submit):
            self._outbox.append((message.sink, refusal))
        elif isinstance(message, SubmitRemote):
            self._remotes.lose(message, refusal)

    def _take(self, message: Message) -> None:
        match message:
            case Submit():
                self._add(message)
            case SubmitRemote():
                gone = self.draining or not self.prefills_for_peers
                self._remotes.add(message, draining=gone)
            case Abort(request_id, reason, lease):
                self._abort(request_id, reason)
                if lease is not None:
                    self._remotes.let_go(lease)
            case Keep(asked_id):
                self._moving.update(r for r in self._sinks if client_id(r) == asked_id)
            case LetGo(asked_id):
                self._moving -= {r for r in self._moving if client_id(r) == asked_id}
                self._remotes.free_streams(asked_id)
            case PullAlive():
                self.scheduler.pull_alive(message, self._clock())
            case PullReady():
                self._pull_ready(message)
            case PullDone():
                self.metrics.observe_pull(message)
                if (sink := self._sinks.get(message.request_id)) is not None:
                    sink.pull_whole = True
                if (pulled := self.scheduler.sequences.get(message.request_id)) is not None:
                    pulled.arrived_s = self._clock()
                self.scheduler.pull_done(message)
            case PullFailed():
                self._pull_failed(message)
            case SetLimits():
                self._change(message)
            case Reset():
                self._go_on(further=False)
                message.done.set_result(self.scheduler.pool.reset())
            case Wake():
                pass
            case _:
                assert_never(message)

    def _change(self, message: SetLimits) -> None:
        try:
            live = change(self.scheduler.live, message.sent)
        except ValueError as error:
            message.done.set_exception(error)
        else:
            self.scheduler.apply(live, MOST_AUTO_TOKENS)
            log.info("limits are now %s", show(live, self.scheduler.step_limits()))
            message.done.set_result(None)

    def _add(self, submit: Submit) -> None:
        refusal = self.scheduler.refusal(submit.request)
        if refusal is not None:
            self._outbox.append((submit.sink, refusal))
            return
        self._sinks[submit.request.request_id] = submit.sink
        self.scheduler.add(submit.request)

    def _abort(self, request_id: str, reason: FinishReason) -> None:
        sink = self._sinks.pop(request_id, None)
        asked_by_peer = self._remotes.abort(request_id)
        sequence = self.scheduler.sequences.get(request_id)
        moves = request_id in self._moving and reason == "abort"
        self._moving.discard(request_id)
        if sequence is not None and request_id not in self.scheduler.leased:
            if not (moves and self._remotes.keep(sequence, self.lease_s)):
                self.scheduler.abort(request_id, reason)
            if sink is not None or asked_by_peer:
                self.metrics.observe_end(sequence, reason)

    def _pull_ready(self, event: PullReady) -> None:
        sink = self._sinks.get(event.request_id)
        if sink is not None:
            sink.prefill_pod = event.prefill_pod
            sink.failed_prefills = event.failed
        self._emit(self.scheduler.pull_ready(event, self._clock()))

    def _pull_failed(self, event: PullFailed) -> None:
        sink = self._sinks.get(event.request_id)
        if sink is not None:
            sink.failed_prefills = event.failed
            sink.pull_whole = False
        emissions = self.scheduler.pull_failed(event)
        if event.cause != "cancelled":
            level = logging.DEBUG if event.cause == "suspended" else logging.WARNING
            log.log(level, "pull failed: %s", event.message, extra=log_subject(event))
            self.metrics.observe_pull_failure(event, computed_here=not emissions)
        self._emit(emissions)

    # ------------------------------------------------------------- outcomes

    def _emit(self, emissions: list[Emission] | tuple[Emission, ...]) -> None:
        self.metrics.observe_emissions(emissions)
        for emission in emissions:
            request_id = emission.sequence.request_id
            if emission.sequence.request.lease_s is not None:
                self._remotes.answer(emission)
                continue
            sink = self._sinks.get(request_id)
            if sink is not None:
                self._outbox.append((sink, emission))
                if emission.reason is not None:
                    del self._sinks[request_id]
                    self._moving.discard(request_id)
                    log_end(emission)

    def _flush(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._deliver(batch)

    def _end_all(self) -> None:
        """Refuse all that is unfinished, including what is still in the inbox."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, Submit):
                    self._outbox.append((message.sink, _ENDING))
                elif isinstance(message, SubmitRemote):
                    refuse(message, _ENDING.code, _ENDING.message)
                elif isinstance(message, SetLimits | Reset):
                    message.done.set_exception(ValueError(_ENDING.message))
        for request_id in self._remotes.unanswered:
            self._abort(request_id, "abort")
        self._outbox.extend((sink, _ENDING) for sink in self._sinks.values())
        self._sinks.clear()
        self._moving.clear()
        self._flush()

    def _pull_port(self) -> PullPort:
        assert self._kv_service is not None, "only a decode engine with a KV service starts pulls"
        return self._kv_service
