"""Continuous batching: which tokens of which sequences run in the next step.

The loop feeds it (`add`, `abort`, pull events, freed leases) between steps, asks for a step
(`schedule`), has the plan computed, and tells it the outcome (`update`). Decodes come first, then
prompts under way, then new ones in order of arrival, chunked to what the token budget leaves.
A sequence's whole prompt gets its blocks when it enters, so that two half-computed prompts can
never wait for each other.
"""

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from argosy_engine.core.capacity import Candidate, CapacityPolicy, Pressure
from argosy_engine.core.handover.messages import PullDone, PullFailed, PullJob, PullReady
from argosy_engine.core.handover.pull_share import PullShare
from argosy_engine.core.limits import Limits, Refusal, refuse_shape
from argosy_engine.core.pool import BlockPool
from argosy_engine.core.request import (
    Emission,
    ErrorCode,
    FinishReason,
    NewRequest,
    Sequence,
    State,
    find_finish_reason,
)
from argosy_engine.core.step import BlockedBy, Chunk, SchedulerOutput, StepOutput, StepPlan

__all__ = ["Scheduler"]


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
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.policy = policy
        self.eos = eos
        self.max_model_len = min(max_model_len, pool.total * pool.block_size)
        self.sequences: dict[str, Sequence] = {}  # all unfinished ones
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # in order of admission
        self.pulling: dict[str, Sequence] = {}
        self.leased: dict[str, Sequence] = {}
        self.quarantined: dict[tuple[str, int], list[int]] = {}  # blocks a lost pull may write to
        self.promised = 0  # Σ blocks that those inside may still ask for
        self._arrivals = 0
        self._step = 0
        self._idle = True
        self._planned: list[Sequence] = []

    # ------------------------------------------------------------- intake, between steps

    def refusal(self, request: NewRequest) -> Refusal | None:
        """None when `add` may be called with this request."""
        refusal = refuse_shape(request, self.max_model_len, self.limits.vocab_size)
        if refusal is not None:
            return refusal
        if request.request_id in self.sequences:
            return Refusal("duplicate", f"request {request.request_id} is here already")
        if len(self.waiting) >= self.limits.max_queue:
            return Refusal("queue_full", f"{len(self.waiting)} requests are waiting; retry later")
        return None

    def add(self, request: NewRequest) -> Sequence:
        """Queue a request that `refusal` let pass."""
        self._arrivals += 1
        sequence = Sequence(
            request=request, tokens=list(request.token_ids), arrival_index=self._arrivals
        )
        sequence.wait_deadline_s = request.deadline_s
        self.sequences[request.request_id] = sequence
        insort(self.waiting, sequence, key=attrgetter("rank"))
        return sequence

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request in whatever state; unknown ids are finished ones, and fine."""
        sequence = self.sequences.get(request_id)
        if sequence is None:
            return
        if sequence.state is State.PULLING:
            sequence.reason = reason  # the blocks stay until the service lets go of them
        else:
            self._finish(sequence, reason)

    def pull_ready(self, event: PullReady, now: float) -> list[Emission]:
        """The peer drew the first token: stream it while the KV is still on its way."""
        sequence = self._pull_of(event)
        if sequence is None or sequence.reason is not None or sequence.n_output:
            return []
        sequence.tokens.append(event.first_token)
        return [self._emit_token(sequence, event.first_token, now)]

    def pull_done(self, event: PullDone) -> None:
        """The prompt's KV is here: the sequence decodes from the next step on."""
        self._end_quarantine(event)
        sequence = self._pull_of(event)
        if sequence is not None:
            # without a first token the prompt's last one is computed again, to draw it here
            self._leave_pull(sequence, min(sequence.n_prompt, len(sequence.tokens) - 1))
            if sequence.state is State.RUNNING:
                self._commit(sequence)

    def pull_failed(self, event: PullFailed) -> None:
        """Compute the prompt here instead; a first token that was streamed stays."""
        self._end_quarantine(event)
        sequence = self._pull_of(event)
        if sequence is not None:
            self._leave_pull(sequence, sequence.committed * self.pool.block_size)

    def _leave_pull(self, sequence: Sequence, computed: int) -> None:
        del self.pulling[sequence.request_id]
        if sequence.reason is not None:  # it ended while its KV was on the way
            self._finish(sequence, sequence.reason)
            return
        sequence.state = State.RUNNING
        sequence.num_computed = computed
        self.running.append(sequence)

    def free_lease(self, request_id: str) -> None:
        """The lease is over: its blocks stay findable until they are needed."""
        sequence = self.leased.get(request_id)
        if sequence is not None:
            self._finish(sequence, "stop")

    # ------------------------------------------------------------- a step

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step. Every sequence in the plan must come back through `update`."""
        emissions = self._expire_waiting(now)
        abandoned = self._abandon_pulls(now)
        cancels = self._cancel_pulls(now)
        preempted = self._grow_decodes()
        slots, budget = self.limits.max_num_seqs, self.limits.max_num_batched_tokens
        chunks: list[tuple[Sequence, int]] = [
            (s, 1) for s in self._choose_decodes(min(slots, budget))
        ]
        budget -= len(chunks)
        for sequence in self.running:
            if not sequence.decoding and budget > 0 and len(chunks) < slots:
                budget -= self._schedule_chunk(chunks, sequence, budget)
        pull_jobs: list[PullJob] = []
        blocked: BlockedBy | None = None
        share = PullShare(self.pulling.values(), places=slots, blocks=self.pool.total)
        passed = 0  # requests that wait for their peer's other pulls; those behind them need not
        while passed < len(self.waiting) and not preempted and blocked is None:
            head = self.waiting[passed]
            if share.spent(head, self.pool.block_size):
                passed += 1
                continue
            blocked = self._blocked_by(head, budget)
            if blocked is None:
                del self.waiting[passed]
                job = self._admit(head, now)
                if job is None:
                    budget -= self._schedule_chunk(chunks, head, budget)
                else:
                    share.add(head)
                    pull_jobs.append(job)
        return SchedulerOutput(
            plan=self._plan(chunks),
            pull_jobs=tuple(pull_jobs),
            cancels=tuple(cancels),
            abandoned=tuple(abandoned),
            emissions=tuple(emissions),
            blocked_by="kv" if preempted else blocked or ("pull" if passed else None),
            preempted=tuple(preempted),
        )

    def update(self, plan: StepPlan, out: StepOutput, now: float) -> list[Emission]:
        """Take a step's outcome: KV is computed, tokens are drawn, ends are found, blocks freed."""
        emissions: list[Emission] = []
        drawn = iter(out.token_ids)
        for chunk, sequence in zip(plan.chunks, self._planned, strict=True):
            token = next(drawn) if chunk.samples else None
            if sequence.request_id in out.failed:
                emissions.append(self._fail(sequence, out.failed[sequence.request_id]))
                continue
            sequence.num_computed += chunk.count
            if token is not None:
                sequence.tokens.append(token)
            self._commit(sequence)
            if token is not None:
                emissions.append(self._emit_token(sequence, token, now))
        self._planned = []
        return emissions

    def fail_step(self, message: str) -> list[Emission]:
        """The runner raised: everybody in the step ends, nothing of it is remembered."""
        failed, self._planned = self._planned, []
        return [self._fail(sequence, message) for sequence in failed]

    # ------------------------------------------------------------- numbers for gauges

    @property
    def unfinished(self) -> int:
        """Requests that a client still waits for; leases are counted apart."""
        return len(self.sequences) - len(self.leased)

    def outstanding_prompt_tokens(self) -> int:
        """Prompt tokens queued or under way here, without what the cache is known to hold."""
        here = [*self.waiting, *self.running]
        return sum(s.remaining for s in here if not s.decoding)

    # ------------------------------------------------------------- decodes

    def _grow_decodes(self) -> list[Sequence]:
        """Give each decode the block its next token needs; preempt the last admitted for it."""
        preempted: list[Sequence] = []
        size = self.pool.block_size
        for sequence in list(self.running):
            if sequence.state is not State.RUNNING or not sequence.decoding:
                continue
            if len(sequence.blocks) * size > sequence.num_computed:
                continue
            while not self.pool.available and sequence.state is State.RUNNING:
                preempted.append(self._preempt(self.running[-1]))
            if sequence.state is State.RUNNING:
                sequence.blocks.extend(self.pool.allocate(1))
                self.promised -= 1
        return preempted

    def _preempt(self, victim: Sequence) -> Sequence:
        self.running.remove(victim)
        victim.preemptions += 1
        self._requeue(victim)
        self.policy.preempted(self._step + 1)
        return victim

    def _requeue(self, sequence: Sequence) -> None:
        """To be computed anew; a place in the queue by its arrival."""
        self._drop_blocks(sequence)
        sequence.num_computed = 0
        sequence.state = State.PREEMPTED
        # It was admitted once; dropping it for waiting too long would lose text already streamed.
        sequence.wait_deadline_s = float("inf")
        insort(self.waiting, sequence, key=attrgetter("rank"))

    def _choose_decodes(self, room: int) -> list[Sequence]:
        decodes = [s for s in self.running if s.decoding]
        if len(decodes) > room:  # turns go to those who waited longest
            decodes.sort(key=attrgetter("last_step"))
            del decodes[room:]
        return decodes

    # ------------------------------------------------------------- prompts

    def _schedule_chunk(
        self, chunks: list[tuple[Sequence, int]], sequence: Sequence, budget: int
    ) -> int:
        """Append what fits of this prompt, to a block's edge where that leaves anything."""
        threshold = self.limits.long_prefill_threshold or budget
        remaining, held = sequence.remaining, len(sequence.blocks) * self.pool.block_size
        # a peer's first token may lie beyond the prompt's blocks: as a decode it gets its own
        count = min(remaining, budget, threshold, held - sequence.num_computed)
        if count < remaining:
            end = sequence.num_computed + count
            aligned = end - end % self.pool.block_size - sequence.num_computed
            count = aligned if aligned > 0 else count
        chunks.append((sequence, count))
        return count

    def _blocked_by(self, head: Sequence, budget: int) -> BlockedBy | None:
        inside = len(self.running) + len(self.pulling)
        if inside >= self.limits.max_num_seqs:
            return "batch"
        candidate, needs_pull = self._candidate(head)
        if budget < 1 and not needs_pull:
            return "tokens"
        available = self.pool.available
        held = sum(len(s.blocks) for s in self.leased.values())
        for extra, reason in ((0, "kv"), (held, "lease")):
            pressure = Pressure(
                available=available + extra,
                promised=self.promised,
                inside=inside,
                step=self._step + 1,
            )
            if self.policy.admits(candidate, pressure):
                return None if not extra else "lease"
            if reason == "kv" and not held:
                break
        return "kv"

    def _candidate(self, head: Sequence) -> tuple[Candidate, bool]:
        """What the head needs from the pool, and whether a peer would compute its prompt."""
        hits = self._prefix_hits(head)
        blocks = _ceil_div(len(head.tokens), self.pool.block_size)
        longest = _ceil_div(head.max_total(self.max_model_len), self.pool.block_size)
        candidate = Candidate(
            prompt_blocks=blocks - len(hits) + self.pool.idle_among(hits),
            growth_blocks=max(0, longest - blocks),
            preemptions=head.preemptions,
        )
        return candidate, self._should_pull(head, len(hits))

    def _prefix_hits(self, sequence: Sequence) -> list[int]:
        """Known blocks of its text; the last token is always computed, its logits are needed."""
        size = self.pool.block_size
        return self.pool.match(sequence.hash_up_to((len(sequence.tokens) - 1) // size, size))

    def _should_pull(self, sequence: Sequence, hit_blocks: int) -> bool:
        """A peer computes it, unless nearly all is here or its text began here already."""
        if not sequence.request.candidates or sequence.n_output or sequence.cancelling:
            return False
        missing = sequence.n_prompt - hit_blocks * self.pool.block_size
        return not hit_blocks or missing > self.pool.block_size

    def _admit(self, sequence: Sequence, now: float) -> PullJob | None:
        size = self.pool.block_size
        hits = self._prefix_hits(sequence)
        needs_pull = self._should_pull(sequence, len(hits))
        self.pool.take(hits)
        total = _ceil_div(len(sequence.tokens), size)
        sequence.blocks = hits + self.pool.allocate(total - len(hits))
        longest = _ceil_div(sequence.max_total(self.max_model_len), size)
        self.promised += max(0, longest - total)
        sequence.committed = len(hits)
        sequence.num_computed = len(hits) * size
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now
            sequence.cached_tokens = sequence.num_computed
        if not needs_pull:
            sequence.state = State.RUNNING
            self.running.append(sequence)
            return None
        sequence.state = State.PULLING
        sequence.wait_deadline_s = now + self.limits.pull_timeout_s
        self.pulling[sequence.request_id] = sequence
        return PullJob(
            request_id=sequence.request_id,
            attempt=sequence.request.attempt,
            token_ids=sequence.request.token_ids,
            sampling=sequence.sampling,
            candidates=sequence.request.candidates,
            block_ids=tuple(sequence.blocks),
            have_tokens=sequence.num_computed,
            timeout_s=self.limits.pull_timeout_s,
        )

    # ------------------------------------------------------------- ends

    def _expire_waiting(self, now: float) -> list[Emission]:
        late = [s for s in self.waiting if s.wait_deadline_s <= now]
        message = "waited too long for a place in the batch"
        return [self._fail(s, message, code="queue_timeout") for s in late]

    def _cancel_pulls(self, now: float) -> list[tuple[str, int]]:
        """Pulls nobody needs any more, or that took too long; each is named once."""
        over = [
            s
            for s in self.pulling.values()
            if not s.cancelling and (s.reason is not None or s.wait_deadline_s <= now)
        ]
        for sequence in over:
            sequence.cancelling = True
            sequence.wait_deadline_s = now + self.limits.cancel_timeout_s
        return [(s.request_id, s.request.attempt) for s in over]

    def _abandon_pulls(self, now: float) -> list[str]:
        """Cancelled pulls that the service never confirmed: their requests go on without them.

        What the service may still write to stays out of the pool until it says that it is over;
        prefix hits were never its to write.
        """
        lost = [s for s in self.pulling.values() if s.cancelling and s.wait_deadline_s <= now]
        for sequence in lost:
            del self.pulling[sequence.request_id]
            written = sequence.blocks[sequence.committed :]
            self.pool.take(written)
            self.quarantined[sequence.request_id, sequence.request.attempt] = written
            if sequence.reason is not None:
                self._finish(sequence, sequence.reason)
            else:
                self._requeue(sequence)
        return [s.request_id for s in lost]

    def _end_quarantine(self, event: PullDone | PullFailed) -> None:
        self.pool.release(self.quarantined.pop((event.request_id, event.attempt), []))

    def _pull_of(self, event: PullReady | PullDone | PullFailed) -> Sequence | None:
        sequence = self.pulling.get(event.request_id)
        if sequence is None or sequence.request.attempt != event.attempt:
            return None  # late or doubled: an old attempt
        return sequence

    def _emit_token(self, sequence: Sequence, token_id: int, now: float) -> Emission:
        """Stamp a token that was just appended; finish or lease the sequence if it was the last."""
        last = sequence.last_token_s
        gap_s = None if last is None else now - last
        sequence.last_token_s = now
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        if sequence.request.lease_s is not None:
            self.running.remove(sequence)
            sequence.state = State.LEASED
            self.leased[sequence.request_id] = sequence
            return Emission(sequence, token_id, gap_s, leased=True)
        reason = find_finish_reason(sequence, token_id, self.eos, self.max_model_len)
        if reason is not None:
            if sequence.state is State.PULLING:
                sequence.reason = reason
            else:
                self._finish(sequence, reason)
        return Emission(sequence, token_id, gap_s, reason)

    def _fail(
        self, sequence: Sequence, message: str, *, code: ErrorCode = "internal_error"
    ) -> Emission:
        self._finish(sequence, "error")
        return Emission(sequence, reason="error", message=message, code=code)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        match sequence.state:
            case State.RUNNING:
                self.running.remove(sequence)
            case State.QUEUED | State.PREEMPTED:
                self.waiting.remove(sequence)
            case State.LEASED:
                del self.leased[sequence.request_id]
            case _:
                pass
        self._drop_blocks(sequence)
        sequence.state = State.FINISHED
        sequence.reason = reason
        del self.sequences[sequence.request_id]

    def _drop_blocks(self, sequence: Sequence) -> None:
        if not sequence.blocks:
            return
        longest = _ceil_div(sequence.max_total(self.max_model_len), self.pool.block_size)
        self.promised -= max(0, longest - len(sequence.blocks))
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.committed = 0

    # ------------------------------------------------------------- bookkeeping

    def _commit(self, sequence: Sequence) -> None:
        """Make newly full blocks findable: only now, so that a failed step poisons nothing."""
        full = sequence.num_computed // self.pool.block_size
        if full > sequence.committed:
            hashes = sequence.hash_up_to(full, self.pool.block_size)
            for index in range(sequence.committed, full):
                self.pool.commit(sequence.blocks[index], hashes[index])
            sequence.committed = full

    def _plan(self, chunks: Iterable[tuple[Sequence, int]]) -> StepPlan | None:
        planned: list[Chunk] = []
        prefill_tokens = context = decodes = 0
        self._planned = []
        for sequence, count in chunks:
            decode = sequence.decoding
            planned.append(
                Chunk(
                    request_id=sequence.request_id,
                    tokens=sequence.tokens,
                    block_table=sequence.blocks,
                    start=sequence.num_computed,
                    count=count,
                    samples=count == sequence.remaining,
                    decode=decode,
                    sampling=sequence.sampling,
                )
            )
            self._planned.append(sequence)
            sequence.last_step = self._step + 1
            if decode:
                decodes += 1
                context += len(sequence.tokens)
            else:
                prefill_tokens += count
        after_idle, self._idle = self._idle, not planned
        if not planned:
            return None
        self._step += 1
        return StepPlan(
            index=self._step,
            chunks=tuple(planned),
            block_size=self.pool.block_size,
            prefill_tokens=prefill_tokens,
            prefill_sequences=len(planned) - decodes,
            decode_sequences=decodes,
            decode_context_tokens=context,
            after_idle=after_idle,
        )


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
