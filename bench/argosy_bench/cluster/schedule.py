"""Which events a run has, in which order, from a seed; nothing is carried out here."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

LEAST, MOST = 2, 4
"""Replicas of each role between which a fleet is scaled."""


class Kind(StrEnum):
    """What happens to a fleet."""

    SCALE = "scale"
    DELETE = "delete"
    KILL = "sigkill"
    STOP = "sigstop"
    CUT = "cut"
    SLOW = "slow"
    CORRUPT = "corrupt"
    RECALL = "recall"
    ROLLOUT = "rollout"
    MODE = "mode_change"
    FLIP = "flip"
    OPERATOR = "operator_killed"


@dataclass(frozen=True, slots=True)
class Event:
    """One disturbance of a fleet in mode disaggregated; after it the fleet is whole again."""

    number: int
    kind: Kind
    role: str
    """Of the pod that it happens to, of the replicas that change, or that gets a flipped pod;
    empty: the whole fleet."""
    replicas: dict[str, int]
    """Of each role, once the fleet is whole again."""

    @property
    def name(self) -> str:
        """Its kind and role, as the figures count them."""
        return f"{self.kind}_{self.role}" if self.role else str(self.kind)


_ENGINES = ("prefill", "decode")
_PODS = (*_ENGINES, "gateway")
_DECK = (
    *((Kind.SCALE, role) for role in _ENGINES * 2),
    *((kind, role) for kind in (Kind.DELETE, Kind.KILL, Kind.STOP) for role in _PODS),
    *((Kind.RECALL, role) for role in _ENGINES),
    (Kind.CUT, "prefill"),
    (Kind.CUT, "decode"),
    (Kind.SLOW, "prefill"),
    (Kind.CORRUPT, "prefill"),
    (Kind.ROLLOUT, ""),
    (Kind.MODE, ""),
    *((Kind.FLIP, role) for role in _ENGINES),
    (Kind.OPERATOR, "decode"),
    (Kind.OPERATOR, ""),
)
"""Each kind of event, as often as it occurs in a run of so many events."""

_OF_THE_NETWORK = (Kind.CUT, Kind.SLOW, Kind.CORRUPT)


NAMES = tuple(dict.fromkeys(str(kind) for kind, _ in _DECK))
"""Kinds of events, as `only` takes them."""


def schedule(
    seed: int, count: int, *, network: bool = True, only: Collection[str] = ()
) -> Iterator[Event]:
    """`count` events: one deck after the other, each in an order of its own, so that a short run
    has every kind. `network` False leaves out those that need rights over a pod's network; `only`
    leaves out all other kinds, if it names any."""
    draw = random.Random(seed)  # noqa: S311 - repeatable
    deck = [
        (kind, role)
        for kind, role in _DECK
        if (network or kind not in _OF_THE_NETWORK) and (not only or str(kind) in only)
    ]
    replicas = dict.fromkeys(_ENGINES, LEAST)
    hand: list[tuple[Kind, str]] = []
    for number in range(count):
        if not hand:
            hand = draw.sample(deck, len(deck))
        kind, role = hand.pop()
        if kind is Kind.FLIP:
            giver = other_role(role)
            replicas[giver] = max(LEAST, replicas[giver] - 1)
            replicas[role] = min(MOST, replicas[role] + 1)
        elif kind is Kind.SCALE or (kind is Kind.OPERATOR and role):
            replicas[role] = _another(draw, replicas[role])
        yield Event(number, kind, role, dict(replicas))


def other_role(role: str) -> str:
    """Decode for prefill and prefill for decode."""
    prefill, decode = _ENGINES
    return decode if role == prefill else prefill


def _another(draw: random.Random, now: int) -> int:
    return draw.choice([n for n in range(LEAST, MOST + 1) if n != now])
