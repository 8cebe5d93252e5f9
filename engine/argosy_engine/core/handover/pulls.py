"""Pulls that a decode engine has under way, and the blocks that a lost one may still write to.

`Scheduler` starts a pull when it admits a request whose prompt a peer computes, and passes the KV
service's events on. States and their meanings are in `states.py`.

One peer's pulls get at most half of the blocks and of the places of a batch (`PullShare`): a pull
holds its prompt's blocks while the peer computes, and a peer which no longer answers must not stop
this engine.

When no prefill engine handed the prompt over, the option `--kv-on-failure` and what they said
decide (`after_failure`). A request whose first token has left, from here or from an earlier engine,
always goes on here: its client has an answer that must not break off.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullAlive,
    PullDone,
    PullEvent,
    PullFailed,
    PullJob,
    PullReady,
)
from argosy_engine.core.handover.states import PullState, move_pull
from argosy_engine.core.limits import OnPullFailure
from argosy_engine.core.request import Sequence, State

OVERDUE_S = 1.0
"""The KV service gives a pull up by itself and says why. A pull that lasts longer by this is
cancelled."""


def has_begun(sequence: Sequence) -> bool:
    """Whether its client has a part of the answer, from here or from an earlier engine."""
    return bool(sequence.n_output or sequence.sampling.sent)


def may_pull(sequence: Sequence) -> bool:
    """False for text that began here already, and after a pull that was cancelled."""
    return bool(sequence.request.candidates) and not (sequence.n_output or sequence.pull_cancelled)


def should_pull(sequence: Sequence, hit_blocks: int, block_size: int) -> bool:
    """Whether a peer computes the prompt; not worth it for less than a block after a cache hit."""
    if not may_pull(sequence):
        return False
    return not hit_blocks or sequence.n_prompt - hit_blocks * block_size > block_size


@dataclass(slots=True)
class _Pull:
    sequence: Sequence
    deadline_s: float
    """When it is cancelled; once it is, when it is given up as lost."""

    started_s: float

    ready_s: float | None = None
    """From the start to READY."""

    state: PullState = PullState.ASKED

    def move(self, after: PullState) -> None:
        self.state = move_pull(self.state, after)

    def is_over(self, now: float) -> bool:
        """Whether it must be cancelled: its request ended, or it took too long."""
        ended = self.sequence.reason is not None or self.deadline_s <= now
        return ended and self.state is not PullState.CANCELLING

    def is_unconfirmed(self, now: float) -> bool:
        """Whether its cancellation was not confirmed in time."""
        return self.state is PullState.CANCELLING and self.deadline_s <= now


class Pulls:
    """Pulls by request id. The sequences hold blocks meanwhile, and no place in the batch."""

    def __init__(
        self, pool: BlockPool, took: Callable[[int, float], None] = lambda _tokens, _seconds: None
    ) -> None:
        """`took` is told of each pull that is done how many tokens were missing, and the seconds
        from its start to the last byte. Prompts that were computed before do not count."""
        self._pool = pool
        self._took = took
        self._pulls: dict[str, _Pull] = {}
        self._lost: dict[tuple[str, int], list[int]] = {}
        """By (request id, attempt): the blocks that a lost pull may still write to."""

    def __len__(self) -> int:
        return len(self._pulls)

    @property
    def lost_blocks(self) -> int:
        """Blocks that lost pulls may still write to."""
        return sum(len(blocks) for blocks in self._lost.values())

    def sequences(self) -> Iterator[Sequence]:
        """Those of this moment; a scrape reads them on another thread."""
        return (pull.sequence for pull in list(self._pulls.values()))

    def start(self, sequence: Sequence, *, now: float, timeout_s: float) -> PullJob:
        """The job for the KV service. The sequence has the blocks of its whole prompt."""
        sequence.state = State.PULLING
        deadline_s = now + timeout_s + OVERDUE_S
        self._pulls[sequence.request_id] = _Pull(sequence, deadline_s, started_s=now)
        return PullJob(
            request_id=sequence.request_id,
            attempt=sequence.request.attempt,
            token_ids=sequence.request.token_ids,
            sampling=sequence.sampling,
            candidates=sequence.request.candidates,
            block_ids=tuple(sequence.blocks),
            have_tokens=sequence.num_computed,
            timeout_s=timeout_s,
            priority=sequence.request.priority,
            first_has_kv=sequence.request.first_has_kv,
        )

    def renew(self, event: PullAlive | PullReady, now: float) -> None:
        """The service is at work: give it the time that it says, up to the request's own end."""
        pull = self._of(event)
        if pull is not None and isinstance(event, PullReady):
            pull.ready_s = now - pull.started_s
        if pull is not None and pull.state is not PullState.CANCELLING:
            lasts_s = event.lasts_s + OVERDUE_S
            pull.deadline_s = min(now + lasts_s, pull.sequence.request.deadline_s)

    def first_token(self, event: PullReady) -> Sequence | None:
        """Append the peer's token; the sequence if its client still waits for one.

        A request that asks for probabilities has it drawn again here, from the same seed.
        """
        pull = self._of(event)
        if pull is None or pull.sequence.reason is not None or pull.sequence.n_output:
            return None
        if pull.state is PullState.ASKED:
            pull.move(PullState.STREAMING)
        if pull.sequence.sampling.logprobs is not None:
            return None
        pull.sequence.tokens.append(event.first_token)
        pull.sequence.drawn_by_peer = True
        return pull.sequence

    def end(self, event: PullDone | PullFailed) -> Sequence | None:
        """The KV service no longer touches the blocks; the sequence if it still waited for that."""
        after = PullState.DONE if isinstance(event, PullDone) else PullState.FAILED
        written = self._lost.pop((event.request_id, event.attempt), None)
        if written is not None:
            move_pull(PullState.LOST, after)
            self._pool.release(written)
        current = self._of(event)
        if current is None:
            return None
        current.move(after)
        sequence = current.sequence
        # A peer that has the KV shows nothing of how long it takes to compute a prompt.
        if (
            isinstance(event, PullDone)
            and current.ready_s is not None
            and not sequence.request.first_has_kv
        ):
            missing = sequence.n_prompt - sequence.num_computed
            self._took(missing, current.ready_s + event.exposed_s)
        del self._pulls[event.request_id]
        return current.sequence

    def due(self, now: float) -> bool:
        """Whether `cancel` or `abandon` would find one."""
        return any(pull.is_over(now) or pull.is_unconfirmed(now) for pull in self._pulls.values())

    def cancel(self, now: float, confirm_s: float) -> list[tuple[str, int]]:
        """(request id, attempt) of pulls whose request ended or that took too long, each once.

        The KV service has `confirm_s` to confirm.
        """
        over = [pull for pull in self._pulls.values() if pull.is_over(now)]
        for pull in over:
            pull.move(PullState.CANCELLING)
            pull.deadline_s = now + confirm_s
            pull.sequence.pull_cancelled = True
        return [(pull.sequence.request_id, pull.sequence.request.attempt) for pull in over]

    def abandon(self, now: float) -> list[Sequence]:
        """Sequences whose cancelled pull was not confirmed in time; they go on without it.

        The blocks that the service may still write to get one more reference, which keeps them
        out of the pool until `end`. Prefix hits are not among them: the service never writes those.
        """
        late = [pull for pull in self._pulls.values() if pull.is_unconfirmed(now)]
        for pull in late:
            sequence = pull.sequence
            del self._pulls[sequence.request_id]
            written = sequence.blocks[sequence.committed :]
            self._pool.take(written)
            pull.move(PullState.LOST)
            self._lost[sequence.request_id, sequence.request.attempt] = list(written)
        return [pull.sequence for pull in late]

    def _of(self, event: PullEvent) -> _Pull | None:
        """None for an event of an earlier attempt, or one that came twice."""
        pull = self._pulls.get(event.request_id)
        if pull is None or pull.sequence.request.attempt != event.attempt:
            return None
        return pull


@dataclass(frozen=True, slots=True)
class _Held:
    sequence: Sequence
    token_id: int
    since_s: float


class FirstTokens:
    """First tokens that are held until their sequence joins a batch, by request id.

    Sent at once, a token that a peer drew starts the clock of TPOT, and the rest of the transfer
    counts against an answer of few tokens. A request that says how long its first token may wait
    (`first_token_by_s`) has it emitted when the sequence's next token is computed, or at that time.
    This is `slo.firstToken: WithinTarget`.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sequence: Sequence, token_id: int, now: float) -> bool:
        """Keep the token, if the request lets it wait."""
        if now >= sequence.request.first_token_by_s:
            return False
        self._held[sequence.request_id] = _Held(sequence, token_id, now)
        return True

    def drop(self, request_id: str) -> None:
        """The request has ended: its token is not sent any more."""
        self._held.pop(request_id, None)

    def due(self, drawing: Collection[str], now: float) -> list[tuple[Sequence, int]]:
        """Take out the tokens whose time is over, and those of the requests whose next token this
        step draws (`drawing`). The sequence learns how long its token was held."""
        taken = []
        for request_id, held in list(self._held.items()):
            if request_id in drawing or now >= held.sequence.request.first_token_by_s:
                del self._held[request_id]
                held.sequence.first_token_held_s = now - held.since_s
                taken.append((held.sequence, held.token_id))
        return taken

    def next_s(self) -> float | None:
        """The earliest time at which one is due whatever its sequence does; None: none waits."""
        return min((h.sequence.request.first_token_by_s for h in self._held.values()), default=None)


_AT_LEAST = 2
"""Pulls from one peer, in any case: it computes one while it sends another."""


class PullShare:
    """What the pulls from each peer hold during one scheduling round."""

    def __init__(self, pulling: Iterable[Sequence], *, places: int, blocks: int) -> None:
        self._places = max(_AT_LEAST, places // 2)
        self._blocks = blocks // 2
        self._held: dict[str, tuple[int, int]] = {}
        for sequence in pulling:
            self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Count a pull."""
        peer = sequence.request.candidates[0]
        count, blocks = self._held.get(peer, (0, 0))
        self._held[peer] = count + 1, blocks + len(sequence.blocks)

    def spent(self, sequence: Sequence, block_size: int) -> bool:
        """Whether its peer's share is used up. A peer without a pull may always get one."""
        if not may_pull(sequence):
            return False  # computed here
        count, blocks = self._held.get(sequence.request.candidates[0], (0, 0))
        need = -(-sequence.n_prompt // block_size)
        return bool(count) and (count >= self._places or blocks + need > self._blocks)


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
