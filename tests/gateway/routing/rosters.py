"""Groups of pods in a test's hands, and the same groups computed anew from all pods."""

from argosy_gateway.pods.endpoints import Directory, Role
from argosy_gateway.pods.health import HEALTHY, SUSPENDED
from argosy_gateway.routing.roster import Group, Roster, most_suspended


def groups_of(pods, health=None, **how):
    """What a roster that has just begun gives for these pods."""
    directory = Directory(health._clock if health else lambda: 0.0)
    directory.replace(pods)
    if health is not None:
        directory.health = health
    return Roster(directory).groups(**how)


def candidates(pods, health, **how):
    """The pods of these groups, prefill pods first."""
    groups = groups_of(pods, health, **how)
    return [p for g in groups for p in g.prefills] + [p for g in groups for p in g.heads]


def rebuilt(directory, tried=(), *, only_healthy=False):
    """The rule in one piece, from all pods at once."""
    health, heads, prefills = directory.health, [], {}
    for pod in sorted(directory.serving(), key=lambda pod: (pod.name, pod.uid)):
        if pod.role is Role.PREFILL:
            prefills.setdefault(pod.revision, []).append(pod)
        elif (rank := health.rank(pod.uid)) is not None:
            heads.append((rank, pod))
    sick = sorted((row for row in heads if row[0] >= SUSPENDED), key=lambda row: row[0])
    kept = sick[: max(0, len(sick) - most_suspended(len(heads)))]
    ranked = [(HEALTHY if row in kept else row[0], row[1]) for row in heads]

    def key(row):
        tried_it = row[1].uid in tried
        return tried_it, row[0], bool(tried) and health.failed_recently(row[1].uid)

    best = min(map(key, ranked), default=None)
    if best is None or (only_healthy and best[:2] != (False, HEALTHY)):
        return []
    chosen = [row[1] for row in ranked if key(row) == best]
    colocated = tuple(pod for pod in chosen if pod.role is Role.COLOCATED)
    decodes = {}
    for pod in chosen:
        if pod.role is Role.DECODE:
            decodes.setdefault(pod.revision, []).append(pod)
    groups = [Group(colocated)] if colocated else []
    groups += [
        Group(tuple(decodes[r]), tuple(prefills[r])) for r in sorted(decodes) if r in prefills
    ]
    return groups or [Group(tuple(decodes[r])) for r in sorted(decodes)]
