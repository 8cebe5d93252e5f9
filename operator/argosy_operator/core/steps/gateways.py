"""Step: the plan looks again soon until all gateways use the settings of the spec.

A gateway reads its ConfigMap every five seconds (designs/0028). So an edit of the SLO, of the names
or of the routing is in effect some seconds after it was written, and no pod shows it. Gateways are
asked until `RolledOut` is True of the spec's generation.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1.status import Condition
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, child_key
from argosy_operator.core.snapshot.ownership import applied_at
from argosy_operator.core.snapshot.pods import Pod, gateways_to_ask
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason

UNHEARD_S = 30.0
"""Seconds after the settings were written in which a gateway without an answer holds RolledOut up.
Gateways read them five times in that time, at most 6 s apart. An operator outside of the cluster's
network reaches no gateway, and its fleets must be rolled out, too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gateway that goes on with older settings, because it cannot use those of the spec."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class InUse:
    """The Ready gateways that may not use the settings of the spec, by name of the pod."""

    ready: int = 0
    """Ready gateways, those that use them included."""
    age_s: float | None = None
    """Since when the object has these settings. None: it has not, or does not say since when."""
    pending: tuple[str, ...] = ()
    """They use older ones."""
    refusing: tuple[Refusal, ...] = ()
    unknown: tuple[str, ...] = ()
    """They did not answer, and are waited for."""
    silent: tuple[str, ...] = ()
    """They did not answer, and are not waited for any more."""


def is_rolled_out(before: Iterable[Condition], generation: int) -> bool:
    """The conditions before this round say so of this generation."""
    return any(
        (c.type, c.status) == (ConditionType.ROLLED_OUT, "True")
        and c.observed_generation == generation
        for c in before
    )


def in_use(snapshot: Snapshot) -> InUse:
    """By the answers of this round. A gateway that was not asked, and an older one that does not
    say what it uses, counts as one that uses them."""
    key = ("ConfigMap", names.settings(snapshot.fleet.name))
    rendered = next((obj for obj in snapshot.wanted if child_key(obj) == key), None)
    if rendered is None:  # a fleet without gateways
        return InUse()
    ready = sorted(
        (pod for pod in gateways_to_ask(snapshot.pods) if pod.alive and pod.ready),
        key=lambda pod: pod.name,
    )
    live = snapshot.owned("ConfigMap").get(key[1])
    if live is None or _text(live) != _text(rendered):
        return InUse(len(ready), pending=tuple(pod.name for pod in ready))
    written = applied_at(live)
    age_s = None if written is None else snapshot.now - written
    answers = snapshot.gateway_loads
    asked = [pod for pod in ready if pod.name in answers]
    mute = [p.name for p in asked if answers[p.name] is None and not _is_newer(p, written)]
    waited_for = age_s is None or age_s < UNHEARD_S
    heard = [(pod.name, answer) for pod in asked if (answer := answers[pod.name]) is not None]
    said = [(name, answer.settings) for name, answer in heard if answer.settings is not None]
    digest = _digest(_text(rendered))
    return InUse(
        len(ready),
        age_s,
        pending=tuple(name for name, read in said if read.digest != digest),
        refusing=tuple(
            Refusal(name, read.refused)
            for name, read in said
            if read.digest == digest and read.refused
        ),
        unknown=tuple(mute) if waited_for else (),
        silent=() if waited_for else tuple(mute),
    )


def _is_newer(pod: Pod, written: float | None) -> bool:
    """Whether the pod was made after the settings were written: it was not Ready before it had read
    them."""
    return written is not None and pod.created_at >= written


def _text(settings: Object) -> str:
    """The settings themselves; others may add keys to the object."""
    return str((settings.get("data") or {}).get(names.SETTINGS_KEY))


def _digest(text: str) -> str:
    """As a gateway computes it from what it reads (designs/0001-seams.md)."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
