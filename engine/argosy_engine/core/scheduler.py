"""Continuous batching: which tokens of which sequences run in the next step.

The engine loop calls `add`, `abort`, the pull events and `free_lease` between steps. It asks for a
step with `schedule`, has the plan computed, and hands the outcome to `update`. One round goes

    intake     end requests that waited too long; cancel pulls that took too long
    allocate   give each decode the block for its next token, preempt if there is none
    batch      decodes and prompts under way (`batching.py`), which asks for
    capacity   new requests, as long as `capacity.py` lets them enter
    update     KV is computed, tokens are drawn, ends are found, blocks are freed

A sequence gets the blocks of its whole prompt when it enters, so that two half-computed prompts
can never wait for each other.
"""

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from argosy_engine.core.batching import BATCHING, WHOLE_PROMPTS, Batch, BatchingPolicy, chunked
from argosy_engine.core.blocks import Allocator, BlockPool
from argosy_engine.core.capacity import (
    POLICIES,
    Admission,
    Candidate,
    CapacityPolicy,
    Hold,
    Pressure,
    blocked_by,
    hold_of,
)
from argosy_engine.core.handover.messages import (
    PullAlive,
    PullDone,
    PullFailed,
    PullReady,
)
from argosy_engine.core.handover.pulls import (
    LOST,
    FirstTokens,
    PullRefusal,
    Pulls,
    PullShare,
    after_failure,
    has_begun,
    should_pull,
)
from argosy_engine.core.limits import Limits, Refusal, refuse_shape
from argosy_engine.core.live import LiveLimits, auto_limits, limits_under, live_of
from argosy_engine.core.preemption import Preemption, choose_victim
from argosy_engine.core.request import Emission, FinishReason, NewRequest, Sequence, State
from argosy_engine.core.short_prompts import ShortPrompts
from argosy_engine.core.step import BlockedBy, SchedulerOutput, StepOutput, StepPlan, plan_step
from argosy_engine.core.step_time import StepTime


class Scheduler:
    """Owns the sequences and their blocks. One thread calls it; `now` never runs backwards."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        limits: Limits,
        policy: CapacityPolicy,
        eos: frozenset[int],
        max_model_len: int,
        batching: BatchingPolicy = chunked,
        preemption: Preemption | None = None,
    ) -> None:
        self.pool = pool
        self.limits = limits
        """This, `policy` and `batching` may be replaced between steps."""
        self.policy = policy
        self.batching = batching
        self.preemption = preemption or Preemption()
        self.max_model_len = min(max_model_len, pool.total * pool.block_size)
        self.sequences: dict[str, Sequence] = {}
        """All that are unfinished, by request id."""
        self.waiting: list[Sequence] = []
        """Queued and preempted ones, by `Sequence.rank`."""
        self.running: list[Sequence] = []
        """In order of admission."""
        self.short_prompts = ShortPrompts()
        self.step_time = StepTime()
        self.first_tokens = FirstTokens()
        self.pulls = Pulls(pool, self.short_prompts.observe_handover)
        self.arrived: list[Sequence] = []
        """Those whose pull is over, in that order; they wait for a place in the batch."""
        self.leased: dict[str, Sequence] = {}
        self.blocks = Allocator(pool, self.max_model_len)
        self._eos = eos
        self._arrivals = 0
        self._idle = True  # nothing was planned in the last round
        self.last_step = 0  # index of the last planned step
        self.planned: list[Sequence] = []  # those of the plan's chunks, until `update`

    # ------------------------------------------------------------- intake, between steps

    def refusal(self, request: NewRequest) -> Refusal | None:
        """None when `add` may be called with this request."""
        step_tokens = None
        if self.batching in WHOLE_PROMPTS and not (request.candidates or request.accepted):
            step_tokens = self.limits.max_num_batched_tokens
        vocab_size = self.limits.vocab_size
        refusal = refuse_shape(request, self.max_model_len, vocab_size, step_tokens)
        if refusal is not None:
            return refusal
        if request.request_id in self.sequences:
            return Refusal("duplicate", f"request {request.request_id} is here already")
        if len(self.waiting) >= self.limits.max_queue and not request.accepted:
            return Refusal("queue_full", f"{len(self.waiting)} requests are waiting; retry later")
        return None

    def add(self, request: NewRequest) -> Sequence:
        """Queue a request that `refusal` let pass."""
        self._arrivals += 1
        sequence = Sequence(
            request=request,
            tokens=list(request.token_ids),
            arrival_index=self._arrivals,
            wait_deadline_s=request.deadline_s,
        )
        self.sequences[request.request_id] = sequence
        insort(self.waiting, sequence, key=attrgetter("rank"))
        return sequence

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request in any state. An unknown id is a request that has finished: no error."""
        sequence = self.sequences.get(request_id)
        if sequence is None:
            return
        self.first_tokens.drop(request_id)
        if sequence.state is State.PULLING:
            sequence.reason = reason  # the blocks stay until the KV service lets go of them
        else:
            self._finish(sequence, reason)

    def pull_ready(self, event: PullReady, now: float) -> list[Emission]:
        """The peer drew the first token: stream it while the KV is still on its way, or hold it."""
        self.pulls.renew(event, now)
        sequence, token_id = self.pulls.first_token(event), event.first_token
        if sequence is None:
            return []
        last = sequence.finish_reason(token_id, self._eos, self.max_model_len) is not None
        if not last and self.first_tokens.hold(sequence, token_id, now):
            return []
        return [self._emit_token(sequence, token_id, now)]

    def pull_alive(self, event: PullAlive, now: float) -> None:
        """The peer makes progress: the pull may go on."""
        self.pulls.renew(event, now)

    def pull_done(self, event: PullDone) -> None:
        """The prompt's KV is here: the sequence decodes from the next step on.

        Without a first token, the prompt's last token is computed again, to draw the next one.
        """
        sequence = self.pulls.end(event)
        if sequence is not None:
            self._resume(sequence, min(sequence.n_prompt, len(sequence.tokens) - 1))
            if sequence.state is not State.FINISHED:
                self.blocks.commit(sequence)

    def pull_failed(self, event: PullFailed) -> list[Emission]:
        """Compute the prompt here, or end the request; a first token that was streamed stays."""
        sequence = self.pulls.end(event)
        if sequence is None:
            return []
        if sequence.reason is None and not has_begun(sequence):
            refusal = after_failure(event, self.limits.on_pull_failure)
            if refusal is not None:
                return [self._refuse(sequence, refusal)]
        here = max(sequence.committed, event.verified) * self.pool.block_size
        self._resume(sequence, min(here, len(sequence.tokens) - 1))
        return []

    def lend(self, request_id: str) -> bool:
        """Stop a stream that goes on at another engine; its blocks stay until `free_lease`.

        False, and nothing is changed, if no block of it is computed and in its place.
        """
        sequence = self.sequences.get(request_id)
        if sequence is None or sequence.state is not State.RUNNING or not sequence.committed:
            return False
        self.running.remove(sequence)
        sequence.reason, sequence.state = "abort", State.LEASED
        self.leased[request_id] = sequence
        return True

    def free_lease(self, request_id: str) -> None:
        """The lease is over: its blocks stay in the prefix cache until they are needed."""
        sequence = self.leased.get(request_id)
        if sequence is not None:
            self._finish(sequence, sequence.reason or "stop")

    def apply(self, live: LiveLimits, most_tokens: int) -> None:
        """Go on under other limits, between two steps. With auto, a step has at most `most_tokens`.

        A policy of the same name keeps what it has learnt.
        """
        if live.capacity_policy != self.live.capacity_policy:
            self.policy = POLICIES[live.capacity_policy]()
        self.batching = BATCHING[live.batching]
        self.limits = limits_under(live, self.limits, most_tokens)

    @property
    def live(self) -> LiveLimits:
        """What `apply` may change."""
        return live_of(self.limits, self.policy, self.batching)

    # ------------------------------------------------------------- a step

    def step_limits(self) -> Limits:
        """Those of the next step: with auto, as many tokens as it should have now."""
        if not self.limits.auto_tokens or self.batching in WHOLE_PROMPTS:
            return self.limits
        return auto_limits(self.limits, self.running, self.step_time.terms, self.pool.block_size)

    def schedule(self, now: float) -> SchedulerOutput:
        """Choose the next step. Its plan must come back through `update` or `fail_step`."""
        emissions = self._expire_waiting(now)
        abandoned = self._abandon_pulls(now, emissions)
        cancels = self.pulls.cancel(now, self.limits.cancel_timeout_s)
        self._enter_arrived(now)  # before decodes grow: they may need a block themselves
        preempted = self._grow_decodes()
        places, blocks = self.limits.max_num_seqs, self.pool.total
        admission = Admission(
            share=PullShare(self.pulls.sequences(), places=places, blocks=blocks),
            blocked="kv" if preempted else None,
        )

        def admit(budget: int, *, whole: bool = False) -> Sequence | None:
            return self._admit_next(admission, budget, now, whole=whole)

        batch = self.batching(self.running, admit, self.step_limits(), self.pool.block_size)
        if len(self.first_tokens):
            emissions += self._due_first_tokens(batch, now)
        to_host, from_host, resumed = self.preemption.take_copies()
        return SchedulerOutput(
            plan=self._plan(batch),
            to_host=to_host,
            from_host=from_host,
            resumed=resumed,
            pull_jobs=tuple(admission.pull_jobs),
            cancels=tuple(cancels),
            abandoned=tuple(abandoned),
            emissions=tuple(emissions),
            blocked_by=admission.blocked or admission.passed_by,
            preempted=tuple(preempted),
        )

    def update(self, plan: StepPlan, out: StepOutput, now: float) -> list[Emission]:
        """Take a step's outcome: extend the sequences, end those that are complete."""
        emissions: list[Emission] = []
        drawn, commit, emit = iter(out.token_ids), self.blocks.commit, self._emit_token
        failed, likely, prompt_likely = out.failed, out.likely, out.prompt_likely
        size = self.pool.block_size
        for chunk, sequence in zip(plan.chunks, self.planned, strict=True):
            token = next(drawn) if chunk.samples else None
            if failed and sequence.request_id in failed:
                emissions.append(self._fail(sequence, failed[sequence.request_id]))
                emissions[-1].code = out.code_of(sequence.request_id)
                continue
            computed = sequence.num_computed = sequence.num_computed + chunk.count
            if token is not None:
                sequence.tokens.append(token)
            if computed // size > sequence.committed:
                commit(sequence)
            if prompt_likely:
                sequence.prompt_likely |= prompt_likely.get(sequence.request_id, {})
            if token is not None:
                emission = emit(sequence, token, now)
                if likely:
                    emission.likely = likely.get(sequence.request_id, ())
                emissions.append(emission)
        self.planned = []
        tokens, decodes = plan.prefill_tokens, plan.decode_sequences
        self.step_time.observe(prompt_tokens=tokens, decodes=decodes, seconds=out.busy_s)
        self.short_prompts.observe_step(prompt_tokens=tokens, sequences=decodes, seconds=out.busy_s)
        return emissions

    def fail_step(self, message: str, also: Iterable[Sequence] = ()) -> list[Emission]:
        """The runner raised: every request in the step, and of `also`, ends with an error."""
        failed, self.planned = dict.fromkeys((*self.planned, *also)), []
        return [self._fail(s, message) for s in failed if s.state is not State.FINISHED]

    @property
    def unfinished(self) -> int:
        """Requests that a client still waits for; leases are not among them."""
        return len(self.sequences) - len(self.leased)

    # ------------------------------------------------------------- allocate, preempt

    def _grow_decodes(self) -> list[Sequence]:
        """Give each decode the block its next token needs; return those preempted for it."""
        preempted: list[Sequence] = []
        size = self.pool.block_size
        for sequence in list(self.running):
            if len(sequence.blocks) * size > sequence.num_computed:
                continue
            if sequence.state is not State.RUNNING or not sequence.decoding:
                continue
            while not self.pool.available and sequence.state is State.RUNNING:
                preempted.append(self._preempt(choose_victim(self.running)))
            if sequence.state is State.RUNNING:
                self.blocks.grow(sequence)
        return preempted

    def _preempt(self, victim: Sequence) -> Sequence:
        self.running.remove(victim)
        victim.preemptions += 1
        terms = self.step_time.terms
        token_s = terms.token_s if terms else None
        self.preemption.set_aside(victim, self.pool.block_size, token_s)
        self._requeue(victim)
        self.policy.preempted(self.last_step + 1)
        return victim

    def _requeue(self, sequence: Sequence) -> None:
        """Put it back into the queue, at the place of its arrival."""
        self.blocks.release(sequence)
        insort(self.waiting, sequence, key=attrgetter("rank"))

    # ------------------------------------------------------------- admission

    def _admit_next(
        self, admission: Admission, budget: int, now: float, *, whole: bool
    ) -> Sequence | None:
        """Admit from the queue up to a request that is computed here; return that, else None."""
        while admission.blocked is None and admission.passed < len(self.waiting):
            head = self.waiting[admission.passed]
            if admission.share.spent(head, self.pool.block_size):
                admission.pass_by("pull")
                continue
            hits = self.blocks.prefix_hits(head)
            pull = not head.swapped and should_pull(head, len(hits), self.pool.block_size)
            here = pull and self._is_short(head, len(hits), budget)
            pull = pull and not here
            if self._no_place(pulls=pull):
                admission.blocked = "pull" if pull else "batch"
                break
            if not pull and budget < self._needs(head, len(hits), whole=whole):
                admission.blocked = "tokens"  # a pull computes nothing in this step
                break
            admission.blocked = self._blocked_by_blocks(head, hits)
            if admission.blocked is not None:
                break
            if not (pull or head.swapped) and self.blocks.gains_by_waiting(
                head, len(hits), self.running
            ):
                admission.pass_by("prefix")
                continue
            del self.waiting[admission.passed]
            computed = head.num_computed
            self.blocks.admit(head, hits)
            if head.swapped:
                self.preemption.bring_back(head, computed)
            head.stamp_admission(now)
            head.handover_saved = here
            if not pull:
                head.state = State.RUNNING
                self.running.append(head)
                return head
            job = self.pulls.start(head, now=now, timeout_s=self.limits.pull_timeout_s)
            admission.pull_jobs.append(job)
            admission.share.add(head)
        return None

    def _needs(self, head: Sequence, hit_blocks: int, *, whole: bool) -> int:
        """Tokens that the step must have left for it."""
        computed = max(head.num_computed, hit_blocks * self.pool.block_size)
        missing = len(head.tokens) - computed
        return missing if whole and missing <= self.limits.max_num_batched_tokens else 1

    def _is_short(self, head: Sequence, hit_blocks: int, budget: int) -> bool:
        """Whether its prompt is computed here, though a peer could; see `short_prompts`."""
        missing = head.n_prompt - hit_blocks * self.pool.block_size
        if self.limits.on_pull_failure != "recompute":
            return False
        if missing > budget or self._no_place(pulls=False):
            return False
        return self.short_prompts.computes_beside(self.running, head, missing)

    def _no_place(self, *, pulls: bool) -> bool:
        """A pull takes no place of the batch. As many may wait for one as the batch has."""
        outside = len(self.pulls) + len(self.arrived)
        return (outside if pulls else len(self.running)) >= self.limits.max_num_seqs

    def _enter_arrived(self, now: float | None = None) -> None:
        """Let those whose KV is here into the batch, before new requests."""
        while self.arrived and not self._no_place(pulls=False):
            sequence = self.arrived.pop(0)
            sequence.join(now)
            self.running.append(sequence)

    def _blocked_by_blocks(self, head: Sequence, hits: list[int]) -> BlockedBy | None:
        """Ask the capacity policy."""
        size, leased = self.pool.block_size, self.leased.values()
        candidate = Candidate(
            prompt_blocks=self.blocks.prompt_blocks(head, hits),
            growth_blocks=self.blocks.growth_of(head),
            preemptions=head.preemptions,
            hold=hold_of(head, -(-len(head.tokens) // size), size, self.max_model_len),
        )
        held = sum(len(sequence.blocks) for sequence in leased) + self.pulls.lost_blocks
        pressure = Pressure(
            available=self.pool.available,
            growth_blocks=self.blocks.growth_blocks,
            admitted=len(self.running) + len(self.pulls) + len(self.arrived),
            step=self.last_step + 1,
            room=self.pool.total - held,
            block_size=size,
            holds=self._holds,
        )
        return blocked_by(self.policy, candidate, pressure, leased)

    def _holds(self) -> list[Hold]:
        admitted = (*self.running, *self.pulls.sequences(), *self.arrived)
        return [
            hold_of(s, len(s.blocks), self.pool.block_size, self.max_model_len) for s in admitted
        ]

    def _plan(self, batch: Batch) -> StepPlan | None:
        self.planned = [sequence for sequence, _ in batch]
        after_idle, self._idle = self._idle, not batch
        if not batch:
            return None
        self.last_step += 1
        return plan_step(self.last_step, batch, self.pool.block_size, after_idle=after_idle)

    # ------------------------------------------------------------- tokens and ends

    def _due_first_tokens(self, batch: Batch, now: float) -> list[Emission]:
        drawing = {sequence.request_id for sequence, count in batch if count == sequence.remaining}
        due = self.first_tokens.due(drawing, now)
        return [self._emit_token(sequence, token_id, now) for sequence, token_id in due]

    def _expire_waiting(self, now: float) -> list[Emission]:
        late = [s for s in self.waiting if s.wait_deadline_s <= now]
        emissions = [self._fail(s, "waited too long for a place in the batch") for s in late]
        for emission in emissions:
            emission.code = "queue_timeout"
        return emissions

    def _abandon_pulls(self, now: float, emissions: list[Emission]) -> list[str]:
        lost = self.pulls.abandon(now)
        for sequence in lost:
            if sequence.reason is not None:
                self._finish(sequence, sequence.reason)
            elif self.limits.on_pull_failure != "recompute" and not has_begun(sequence):
                emissions.append(self._refuse(sequence, LOST))
            else:
                self.preemption.recompute(sequence)
                self._requeue(sequence)
        return [sequence.request_id for sequence in lost]

    def _resume(self, sequence: Sequence, computed: int) -> None:
        """Go on after a pull with the KV of the first `computed` tokens."""
        if sequence.reason is not None:  # it ended while its KV was on the way
            self._finish(sequence, sequence.reason)
            return
        sequence.num_computed = computed
        sequence.state = State.ARRIVED
        self.arrived.append(sequence)
        self._enter_arrived()

    def _emit_token(self, sequence: Sequence, token_id: int, now: float) -> Emission:
        """The emission of a token that was just appended; its last one ends or leases it."""
        gap_s = sequence.stamp_token(now)
        if sequence.request.lease_s is not None:
            self.running.remove(sequence)
            sequence.state = State.LEASED
            self.leased[sequence.request_id] = sequence
            return Emission(sequence, token_id, gap_s, leased=True)
        reason = sequence.finish_reason(token_id, self._eos, self.max_model_len)
        if reason is not None:
            if sequence.state is State.PULLING:
                sequence.reason = reason
            else:
                self._finish(sequence, reason)
        return Emission(sequence, token_id, gap_s, reason)

    def _refuse(self, sequence: Sequence, refusal: PullRefusal) -> Emission:
        emission = self._fail(sequence, refusal.message)
        emission.code = refusal.code
        return emission

    def _fail(self, sequence: Sequence, message: str) -> Emission:
        self._finish(sequence, "error")
        return Emission(sequence, reason="error", message=message)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.reason = reason
        if reason in ("stop", "length"):
            self.policy.finished(sequence.n_output)
        match sequence.state:
            case State.RUNNING:
                self.running.remove(sequence)
                if sequence.request.lease_s is not None:  # the peer may be reading its blocks
                    sequence.state = State.LEASED
                    self.leased[sequence.request_id] = sequence
                    return
            case State.ARRIVED:
                self.arrived.remove(sequence)
            case State.QUEUED | State.PREEMPTED:
                self.waiting.remove(sequence)
                self.preemption.forget(sequence)
            case State.LEASED:
                del self.leased[sequence.request_id]
            case _:
                pass
        self.blocks.release(sequence)
        sequence.state = State.FINISHED
        self.first_tokens.drop(sequence.request_id)
        del self.sequences[sequence.request_id]
