"""Step: looks again soon while gateways do not use the settings of the spec yet."""

from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.gateways.settings import UNHEARD_S, in_use, is_rolled_out
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason

LOOK_S = 2.0
"""Gateways read their settings every five seconds, and no event says that they have."""


def await_settings(snapshot: Snapshot, draft: Draft) -> Draft:
    """Ends when all gateways use the settings of this generation. They are not asked after that."""
    fleet, found = snapshot.fleet, in_use(snapshot)
    if is_rolled_out(fleet.status.conditions, fleet.metadata.generation):
        return draft.step(StepReason.SETTINGS_IN_USE, "RolledOut is True of this generation")
    age_s = found.age_s or 0.0
    if found.pending:
        # A gateway that has not taken them by then cannot read them, and a person must act.
        draft = draft.within(LOOK_S if age_s < UNHEARD_S else UNHEARD_S)
    if found.unknown:
        draft = draft.within(max(LOOK_S, UNHEARD_S - age_s))
    if found.pending or found.unknown:
        waiting = ", ".join((*found.pending, *found.unknown))
        return draft.step(StepReason.SETTINGS_PENDING, f"waits for {waiting}")
    if found.refusing:
        named = ", ".join(f"{each.pod}: {each.why}" for each in found.refusing)
        return draft.step(StepReason.SETTINGS_REFUSED, named)
    message = f"none of {found.ready} Ready gateways says that it uses others"
    return draft.step(StepReason.SETTINGS_IN_USE, message)
