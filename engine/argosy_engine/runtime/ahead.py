"""How the loop has its steps computed: one at a time, or each launched while the last one runs."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from argosy_engine.core.ahead import Following, follow
from argosy_engine.core.runner import Launched, Launcher
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput, StepPlan

log = logging.getLogger(__name__)


class Steps(Protocol):
    """Computes plans for the loop, on its thread."""

    @property
    def next(self) -> Following | None:
        """The step that was launched already. No scheduling round may come before it."""
        ...

    def compute(self, plan: StepPlan, *, go_on: bool = True) -> tuple[StepPlan, StepOutput]:
        """A scheduled plan, or that of `next`, computed: what `Scheduler.update` takes of it.

        Without `go_on` nothing runs afterwards. After an exception nothing runs, either.
        """
        ...

    def drop(self) -> None:
        """Wait for the launched step and discard its outcome."""
        ...


class OneByOne:
    """Each step is computed while the loop waits."""

    next: Following | None = None

    def __init__(self, execute: Callable[[StepPlan], StepOutput]) -> None:
        self._execute = execute

    def compute(self, plan: StepPlan, *, go_on: bool = True) -> tuple[StepPlan, StepOutput]:  # noqa: ARG002
        return plan, self._execute(plan)

    def drop(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True, slots=True)
class _Running:
    step: Following
    launched: Launched


class Ahead:
    """Launches the step that follows before the tokens of the one that runs are read."""

    def __init__(
        self,
        scheduler: Scheduler,
        launcher: Launcher,
        *,
        may_go_on: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`may_go_on`: nothing new has come that the next step should know of."""
        self._scheduler = scheduler
        self._launcher = launcher
        self._may_go_on = may_go_on
        self._clock = clock
        self._next: _Running | None = None

    @property
    def next(self) -> Following | None:
        return None if self._next is None else self._next.step

    def compute(self, plan: StepPlan, *, go_on: bool = True) -> tuple[StepPlan, StepOutput]:
        running = self._begin(plan)
        try:
            if go_on and self._may_go_on():
                self._launch_what_follows(running)
            out = running.launched.result()
        except BaseException:
            self.drop()
            raise
        finally:
            self._scheduler.pool.release(running.step.written)
        return running.step.without_the_ended(out)

    def drop(self) -> None:
        running, self._next = self._next, None
        if running is not None:
            with contextlib.suppress(Exception):
                running.launched.result()
            self._scheduler.pool.release(running.step.written)

    def _begin(self, plan: StepPlan) -> _Running:
        running, self._next = self._next, None
        scheduler = self._scheduler
        if running is None:
            step = Following(plan=plan, sequences=scheduler.planned, written=[])
            return _Running(step, self._launcher.launch(plan, None))
        scheduler.planned = running.step.unfinished
        return running

    def _launch_what_follows(self, running: _Running) -> None:
        before, step = running.step, None
        try:
            step = follow(self._scheduler, before.plan, before.sequences, self._clock())
            if step is not None:
                launched = self._launcher.launch(step.plan, running.launched)
                self._next = _Running(step, launched)
        except Exception:  # its requests lose nothing: a scheduling round plans the step again
            log.exception("the step after step %d could not be launched ahead", before.plan.index)
            if step is not None:
                self._scheduler.pool.release(step.written)
