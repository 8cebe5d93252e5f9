"""Steps: what the scaling law has learnt is kept in a ConfigMap and read back after a restart.

`<fleet>-learnt` is read once, by the operator that has just started or begun to lead, and written
about once in half a hold while requests come. designs/0019-restart.md has the reasons.
"""

from collections.abc import Iterable
from dataclasses import replace

from argosy_law.goals import Windows
from argosy_law.record import (
    VERSION,
    Kept,
    UnusableError,
    kept_of,
    resumed,
    text_of,
)
from argosy_law.signals.validity import why_unavailable
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Apply, Event, EventReason, Outcome, key_of, target
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.goals import by_law, goals_of
from argosy_operator.core.steps.targets import MEASURED_STARTS

FILE = "learnt.json"
"""Key in the ConfigMap's data."""
LEAST_S = 30.0
"""The ConfigMap is not written more often, whatever the windows of the spec are."""


def read_learnt(snapshot: Snapshot, draft: Draft) -> Draft:
    """Go on with what an operator kept before, in the first round that has metrics."""
    metrics, windows = snapshot.metrics, goals_of(snapshot.fleet.spec).windows
    wanted = by_law(snapshot.fleet.spec) and not snapshot.memory.learnt_read
    if not wanted or metrics is None or why_unavailable(metrics, windows) is not None:
        return draft.step(StepReason.NOTHING_TO_READ, "the law remembers, or is not due")
    # Not written at once, so that operators that restart in turns do not write in every round.
    memory = replace(draft.memory, learnt_read=True, learnt_at=snapshot.monotonic)
    draft = replace(draft, memory=memory)
    name = names.learnt(snapshot.fleet.name)
    live = snapshot.owned("ConfigMap").get(name)
    if live is None:
        return draft.step(StepReason.NOTHING_TO_READ, f"there is no ConfigMap {name} of this fleet")
    try:
        kept = kept_of(str((live.get("data") or {}).get(FILE, "")))
    except UnusableError as error:
        message = f"ConfigMap {name} is not used: {error}. What replicas can do is measured again"
        draft = draft.event(Event(EventReason.LEARNT_UNREADABLE, message, warning=True))
        return draft.step(StepReason.LEARNT_UNREADABLE, message)
    state = resumed(kept, snapshot.revision, windows, _hold_s(kept, windows), metrics.at)
    starts = {f"kept-{i}": start for i, start in enumerate(kept.starts)} | dict(draft.memory.starts)
    memory = replace(draft.memory, scaling=state, errors=kept.errors, starts=starts)
    draft = replace(draft, memory=memory)
    return draft.step(StepReason.LEARNT_READ, f"from ConfigMap {name}")


def write_learnt(snapshot: Snapshot, draft: Draft) -> Draft:
    """Keep what was learnt, once in half a hold while requests come, and when replicas change."""
    if snapshot.learnt is None or not by_law(snapshot.fleet.spec) or not draft.memory.learnt_read:
        return draft.step(StepReason.LEARNT_KEPT, "there is nothing to keep")
    state, windows = draft.memory.scaling, goals_of(snapshot.fleet.spec).windows
    every_s = max(LEAST_S, windows.down_hold_s / 2)
    since_s = snapshot.monotonic - draft.memory.learnt_at
    # At rest nothing is learnt: a fleet that nobody uses writes nothing from the round on.
    busy = state.busy_at is not None and state.busy_at == state.last_valid_at
    due = (since_s >= every_s and busy) or (since_s >= LEAST_S and draft.scaled)
    if draft.decision is None or not draft.decision.active or not due:
        message = f"written {since_s:.0f} s ago, or read then"
        return draft.step(StepReason.LEARNT_KEPT, message)
    kept = Kept(VERSION, snapshot.revision, state, _starts(draft.memory), draft.memory.errors)
    apply = Apply({**snapshot.learnt, "data": {FILE: text_of(kept)}})
    return draft.act(apply).step(StepReason.WRITING_LEARNT, key_of(apply))


def learn_written(
    snapshot: Snapshot, memory: LoopMemory, outcomes: Iterable[Outcome]
) -> LoopMemory:
    """Note that the ConfigMap was written; until then each decision tries again."""
    name = f"ConfigMap/{names.learnt(snapshot.fleet.name)}"
    if any(target(o.action) == name and o.error is None for o in outcomes):
        return replace(memory, learnt_at=snapshot.monotonic)
    return memory


def _hold_s(kept: Kept, windows: Windows) -> float:
    """The hold before a removal, of the role that starts slowest."""
    cold_s = max((seconds for _, seconds in kept.starts), default=windows.cold_start_s)
    return max(windows.down_hold_s, 2 * cold_s)


def _starts(memory: LoopMemory) -> tuple[tuple[str, float], ...]:
    """The newest measured starts of each role."""
    roles = {role for role, _ in memory.starts.values()}
    return tuple(
        start
        for role in sorted(roles)
        for start in [s for s in memory.starts.values() if s[0] == role][-MEASURED_STARTS:]
    )
