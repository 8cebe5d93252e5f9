"""What one scheduling round asks of the engine loop. Made by `Scheduler.schedule`."""

from dataclasses import dataclass
from typing import Literal

from argosy_engine.core.handover.messages import PullJob
from argosy_engine.core.request import Emission, Sequence
from argosy_engine.core.step import StepPlan

__all__ = ["BlockedBy", "Decision"]

BlockedBy = Literal["batch", "tokens", "kv", "lease", "pull"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One scheduling round. `plan` is None when there is nothing to compute."""

    plan: StepPlan | None
    pull_jobs: tuple[PullJob, ...] = ()
    cancels: tuple[tuple[str, int], ...] = ()  # (request id, attempt) of pulls to stop
    abandoned: tuple[str, ...] = ()  # requests whose pull was not confirmed as stopped in time
    emissions: tuple[Emission, ...] = ()
    blocked_by: BlockedBy | None = None  # why the first waiting request stayed out
    preempted: tuple[Sequence, ...] = ()
