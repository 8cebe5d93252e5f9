"""A canary: whether the new revision may take the place of the old one, by the verdicts of both.

Part of the step `roll_out`. `argosy_law/canary.py` compares; `shell/gather.py` has Prometheus
asked while a canary serves. When it began is in `status.rollout.canary`, and that it is over in
`status.promoted`: a revision is promoted there first, and the rollout goes on when that is read
again, so the operator may die at any write.
"""

from dataclasses import dataclass, field, replace

from argosy_law.canary import (
    BIN_S,
    Comparison,
    Tally,
    Verdict,
    compare,
    counts_by_revision,
    describe,
    read_bins,
)
from argosy_law.rollout import RolloutState, Split
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.routing import Canary
from argosy_operator.api.v1alpha1.status import CanaryStatus
from argosy_operator.core.snapshot.objects import rfc3339, seconds
from argosy_operator.core.snapshot.snapshot import Snapshot

OLD_GATEWAYS = (
    "the gateways do not count verdicts by revision, as those of older releases do not: let them "
    "be replaced"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of a canary in this round."""

    since: str
    """When its pods served for the first time."""
    verdict: Verdict = Verdict.UNDECIDED
    new: Tally = field(default_factory=Tally)
    old: Tally = field(default_factory=Tally)


def canary_of(fleet: ServingDeployment, revision: str) -> Canary | None:
    """Return the canary that this revision must win; None for one that has won, or that ran before
    and comes back."""
    canary, status = fleet.spec.rollout.canary, fleet.status
    if fleet.spec.rollout.strategy == "Recreate" or status.promoted == revision:
        return None
    if status.refused is not None and status.refused.runs == revision:  # a rollback
        return None
    if status.promoted is None and status.rollout is not None:
        came_before = {one.revision for one in status.rollout.old}
        return None if revision in came_before else canary
    return canary


def serves_since(fleet: ServingDeployment) -> float | None:
    """Return since when the canary of the last round serves; None without one."""
    rollout = fleet.status.rollout
    if fleet.spec.rollout.canary is None or rollout is None or rollout.canary is None:
        return None
    return seconds(rollout.canary.since)


def promoted_revision(snapshot: Snapshot, trial: Trial | None, *, alone: bool) -> str | None:
    """Return what `status.promoted` is to say: the revision that has won, or runs alone."""
    if snapshot.fleet.spec.rollout.canary is None:
        return None
    won = trial is not None and trial.verdict is Verdict.WON
    back = canary_of(snapshot.fleet, snapshot.revision) is None
    return snapshot.revision if alone or won or back else snapshot.fleet.status.promoted


def judge(snapshot: Snapshot, canary: Canary, split: Split) -> tuple[Split, Trial | None]:
    """Return the split with the state of the canary; no Trial before its pods have served."""
    written = _written(snapshot)
    if written is None and split.state != RolloutState.CANARY_SERVES:
        return split, None
    since = rfc3339(snapshot.now) if written is None else written.since
    began = seconds(since) or snapshot.now
    ended = snapshot.now - began >= canary.for_.seconds
    found = _compare(snapshot, canary, began, ended=ended)
    if isinstance(found, str):
        trial, says = _repeat(since, written), f"the verdicts of both revisions: {found}"
    else:
        trial = Trial(since, found.verdict, found.new, found.old)
        says = f"more verdicts: {found.message}"
    if split.state == RolloutState.ROLLOUT_PAUSED:
        return split, replace(trial, verdict=Verdict.UNDECIDED)
    if trial.verdict is Verdict.LOST:
        return replace(split, state=RolloutState.CANARY_LOST, message=_lost(snapshot, trial)), trial
    if split.state != RolloutState.CANARY_SERVES:
        return split, replace(trial, verdict=Verdict.UNDECIDED)
    if trial.verdict is Verdict.WON:
        return replace(split, message="status.promoted to be written"), trial
    if ended:
        return replace(split, state=RolloutState.CANARY_UNDECIDED, message=says), trial
    until = rfc3339(began + canary.for_.seconds)
    message = says if isinstance(found, str) else f"{until}, or until the canary is lost"
    return replace(split, message=message), trial


def _written(snapshot: Snapshot) -> CanaryStatus | None:
    """Return what status says of the canary of this revision."""
    rollout = snapshot.fleet.status.rollout
    if rollout is None or rollout.new.revision != snapshot.revision:
        return None
    return rollout.canary


def _compare(snapshot: Snapshot, canary: Canary, began: float, *, ended: bool) -> Comparison | str:
    """Return the comparison, or why there is none."""
    read, spec = snapshot.memory.verdicts, snapshot.fleet.spec
    if spec.slo is None:
        return "none are counted without spec.slo. Set it, or leave rollout.canary out"
    if read is None:
        return "Prometheus is asked for them"
    if read.problem:
        return read.problem
    if read.series and not counts_by_revision(read.series):
        return OLD_GATEWAYS
    bin_s = max(BIN_S, spec.metrics.scrape_interval.seconds)
    bins = read_bins(read.series, snapshot.revision, since=began, bin_s=bin_s)
    return compare(bins, level=canary.level.fraction, ended=ended)


def _repeat(since: str, written: CanaryStatus | None) -> Trial:
    """Return the last figures, which say nothing now."""
    if written is None:
        return Trial(since)
    new, old = (Tally(one.met, one.missed) for one in (written.new, written.old))
    return Trial(since, Verdict.UNDECIDED, new, old)


def _lost(snapshot: Snapshot, trial: Trial) -> str:
    return (
        f"a change of the spec: the canary is lost. {describe(trial.new, trial.old)}. Put the spec "
        "back, or promote it all the same with kubectl argosy rollout promote "
        f"{snapshot.fleet.name}"
    )
