"""Which pods are themselves the reason that handovers fail: from what the gateways saw.

A gateway says which pairs failed, since when, and when a pod had its last whole handover
(`/pairs`, designs/0011). A pod is to blame if at least two partners fail with it for a minute, hand
over with other pods meanwhile, and it hands over with none. A network that is cut between two
halves of the cluster blames nobody: each pod hands over within its half. Where nothing is handed
over at all, no partner is in order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from argosy_operator.core.fleet.pods import FailingPair, Handovers, Pod

HOLD_S = 60.0
"""Least time from the first to the last failure without a success. As long as the longest pause of
the gateways between two attempts with a pod, so it takes several."""
FRESH_S = 120.0
"""What was longer ago says nothing about now: while requests come, gateways try a pod at least each
minute."""
WORKS_S = 30.0
"""A partner is in order if it has handed over so lately. Half of the hold: where nothing is handed
over any more, no partner is in order when the hold is over."""
PARTNERS = 2
"""With one partner, that one may be the reason, or the network between them."""
FAILURES_BESIDE = 2
"""Beside those with the partner that failed most: one may be bad luck, as pods that end break what
they hand over."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A pod with which handovers fail, and the partners that show it."""

    pod: Pod
    partners: tuple[tuple[str, str], ...]
    """Name of each, and the last reason."""
    fails_s: float
    """Between its first and its last failure."""

    def __str__(self) -> str:
        way = "from" if self.pod.role == "prefill" else "to"
        named = ", ".join(f"{name} ({reason})" for name, reason in self.partners)
        return (
            f"{self.pod.role} pod {self.pod.name}: for {self.fails_s:.0f} s no KV cache got {way} "
            f"it. Partners that have handed over with other pods since: {named}"
        )


def poisoned(pods: Iterable[Pod], handovers: Handovers) -> list[Poisoned]:
    """The pods to blame, those with the most partners first. `pods` may all pair with each other;
    only those that serve count."""
    serving = {pod.name: pod for pod in pods if pod.serving}
    rows = _by_pair(handovers.failing, serving)
    found = [_judge(pod, rows, handovers.whole_s) for pod in serving.values()]
    blamed = [one for one in found if one is not None]
    return sorted(blamed, key=lambda one: (-len(one.partners), -one.fails_s, one.pod.name))


def _by_pair(rows: Iterable[FailingPair], serving: Mapping[str, Pod]) -> list[FailingPair]:
    """One row for each pair of serving pods: what all gateways saw of it."""
    pairs = dict[tuple[str, str], FailingPair]()
    for row in sorted(rows, key=lambda row: -row.last_s):
        ends = (serving.get(row.prefill), serving.get(row.decode))
        if [end and end.role for end in ends] != ["prefill", "decode"]:
            continue
        before = pairs.get((row.prefill, row.decode), replace(row, failures=0))
        pairs[row.prefill, row.decode] = replace(
            row,
            since_s=max(row.since_s, before.since_s),
            failures=row.failures + before.failures,
        )
    return list(pairs.values())


def _judge(pod: Pod, rows: Iterable[FailingPair], whole_s: Mapping[str, float]) -> Poisoned | None:
    """A pod that hands over with anyone is not to blame before it has failed for the hold again."""
    last_whole_s = whole_s.get(pod.name, inf)
    own = [
        (row.decode if pod.role == "prefill" else row.prefill, row)
        for row in rows
        if pod.name in (row.prefill, row.decode) and row.last_s < last_whole_s
    ]
    # The partner has handed over since it failed here first, so with another pod.
    sound = [
        (name, row) for name, row in own if whole_s.get(name, inf) <= min(row.since_s, WORKS_S)
    ]
    failures = sorted(row.failures for _, row in sound)
    if len(sound) < PARTNERS or sum(failures[:-1]) < FAILURES_BESIDE:
        return None
    # A failure with a partner that is not in order may be that one's.
    last_s = min(row.last_s for _, row in sound)
    fails_s = min(last_whole_s, max(row.since_s for _, row in sound)) - last_s
    if last_s > FRESH_S or fails_s < HOLD_S:
        return None
    return Poisoned(pod, tuple(sorted((name, row.reason) for name, row in sound)), fails_s)
