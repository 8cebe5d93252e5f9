"""Which sequence gives up its KV blocks when a decode needs one, and what becomes of it.

Called by `Scheduler`, which releases the blocks and puts the victim back into the queue.
"""

from argosy_engine.core.request import Sequence, State

__all__ = ["choose_victim", "recompute"]


def choose_victim(running: list[Sequence]) -> Sequence:
    """The last admitted, as in vLLM: those that came before it keep their turn."""
    return running[-1]


def recompute(sequence: Sequence) -> None:
    """Forget the KV and keep the tokens; all of them are computed again after readmission."""
    sequence.num_computed = 0
    sequence.state = State.PREEMPTED
    # It was admitted once: to fail it for waiting would lose text that its client has.
    sequence.wait_deadline_s = float("inf")
