"""Which sequence gives up its KV blocks when a decode needs one, and what becomes of its KV.

    recompute  the KV is forgotten; all tokens are computed again after readmission
    swap       the KV is copied to the host pool, and back at readmission; recompute if that is full
    auto       whichever takes less time, as measured

`Scheduler` calls this, releases the blocks and puts the victim back into the queue. The engine loop
has the runner copy blocks before the step, and reports how long that took.
"""

from typing import Literal

from argosy_engine.core.blocks import HostPool
from argosy_engine.core.request import Sequence, State
from argosy_engine.core.step import Copies

PreemptionMode = Literal["recompute", "swap", "auto"]
"""The option `--preemption-mode`."""


def choose_victim(running: list[Sequence]) -> Sequence:
    """The last admitted of those with the lowest priority, as in vLLM: those that came before it
    keep their turn."""
    lowest = max(sequence.request.priority for sequence in running)
    return next(s for s in reversed(running) if s.request.priority == lowest)


class Preemption:
    """The host pool, what a copy costs, and the copies of one scheduling round."""

    def __init__(self, mode: PreemptionMode = "recompute", host: HostPool | None = None) -> None:
        self.mode = mode
        self.host = host or HostPool(0)
        self._copy_s: float | None = None
        """What one block takes, in one direction."""
        self._outgoing: list[tuple[int, int]] = []
        self._incoming: list[tuple[int, int]] = []
        self._resumed: list[Sequence] = []

    def take_copies(self) -> tuple[Copies, Copies, tuple[Sequence, ...]]:
        """(to the host, from the host, those whose KV comes back) since the last call.

        Those to the host come first: a slot that is read is free for the next round.
        """
        taken = tuple(self._outgoing), tuple(self._incoming), tuple(self._resumed)
        for kept in (self._outgoing, self._incoming, self._resumed):
            kept.clear()
        return taken

    def observe_copy(self, blocks: int, seconds: float) -> None:
        """The newest counts as much as all before it: copies are rare."""
        each = seconds / blocks
        self._copy_s = each if self._copy_s is None else (self._copy_s + each) / 2

    def set_aside(self, victim: Sequence, block_size: int, token_s: float | None) -> None:
        """Before its blocks are released: keep its KV, or forget it.

        `token_s` is what one token takes to compute; None if nobody knows.
        """
        used, computed = -(-victim.num_computed // block_size), victim.num_computed
        self.recompute(victim)
        if used and self._swaps(used, computed, token_s):
            victim.swapped = self.host.allocate(used)
            self._outgoing.extend(zip(victim.blocks, victim.swapped, strict=False))
            victim.num_computed = computed if victim.swapped else 0

    def recompute(self, sequence: Sequence) -> None:
        """Forget the KV and keep the tokens; all of them are computed again after readmission."""
        sequence.num_computed = 0
        sequence.state = State.PREEMPTED
        # It was admitted once: to fail it for waiting would lose text that its client has.
        sequence.wait_deadline_s = float("inf")

    def _swaps(self, blocks: int, tokens: int, token_s: float | None) -> bool:
        if self.mode != "auto":
            return self.mode == "swap"
        if self._copy_s is None or token_s is None:
            return True  # so that a copy is measured
        return 2 * blocks * self._copy_s < tokens * token_s

    def bring_back(self, sequence: Sequence, computed: int) -> None:
        """It has blocks again, the first of them prefix hits: copy the KV of the others.

        `computed` is how many of its tokens had KV when it left.
        """
        hits = sequence.committed
        here = zip(sequence.blocks[hits:], sequence.swapped[hits:], strict=False)
        self._incoming.extend(here)
        self._resumed.append(sequence)
        sequence.num_computed = max(sequence.num_computed, computed)
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Its KV is not needed on the host any more."""
        self.host.release(sequence.swapped)
        sequence.swapped = []
