"""Comparisons of load that strategies share.

Of up to sixteen pods all are compared, of more sixteen taken at random: the least loaded of so many
is nearly the best of all, and a pick among a thousand pods costs the same. Ties are broken at
random, so that replicas of the gateway do not all choose the same pod.
"""

import math
import random
from collections.abc import Sequence

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group
from argosy_gateway.routing.strategies.strategy import FleetView

__all__ = [
    "least_loaded_group",
    "least_loaded_head",
    "most_prompt_tokens",
    "most_sequences",
    "some_of",
]

_LOOKED_AT = 16
_BOUND = 1.25
"""A pod that is preferred for its cache gets up to this multiple of the mean load."""


def some_of(pods: Sequence[Endpoint], rng: random.Random) -> Sequence[Endpoint]:
    """All of a few pods, else sixteen different ones taken at random."""
    return pods if len(pods) <= _LOOKED_AT else rng.sample(pods, _LOOKED_AT)


def least_loaded_group(groups: Sequence[Group], view: FleetView, rng: random.Random) -> Group:
    """The group with the fewest sequences per pod; among idle ones each by its share of pods."""

    def pressure(group: Group) -> tuple[float, float]:
        heads = some_of(group.heads, rng)
        sequences = sum(view.load(pod).sequences for pod in heads) * len(group.heads) / len(heads)
        # The random part is weighted by the group's size.
        return sequences / group.size, -(rng.random() ** (1.0 / group.size))

    return groups[0] if len(groups) == 1 else min(groups, key=pressure)


def least_loaded_head(heads: Sequence[Endpoint], view: FleetView, rng: random.Random) -> Endpoint:
    """The head with the fewest sequences, then the fewest prompt tokens."""

    def load(pod: Endpoint) -> tuple[int, int, float]:
        has = view.load(pod)
        return has.sequences, has.prompt_tokens, rng.random()

    return min(some_of(heads, rng), key=load)


def most_sequences(heads: Sequence[Endpoint], view: FleetView, rng: random.Random) -> int:
    """Sequences that a head may have with a new one, so that none has over 1.25 times the mean."""
    looked_at = some_of(heads, rng)
    mean = sum(view.load(pod).sequences for pod in looked_at) / len(looked_at) + 1 / len(heads)
    return math.ceil(_BOUND * mean)


def most_prompt_tokens(
    prefills: Sequence[Endpoint], view: FleetView, rng: random.Random, own: int
) -> float:
    """Prompt tokens that may wait on a prefill pod before a prompt of `own` tokens."""
    looked_at = some_of(prefills, rng)
    waiting = sum(view.load(pod).prompt_tokens for pod in looked_at) / len(looked_at)
    return _BOUND * (waiting + own / len(prefills))
