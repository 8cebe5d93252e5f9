"""How pods of two revisions change places: the state machine alone, on fleets that are made up."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from argosy_law.rollout import Fleet, Group, Split, Strategy, choose

PAIR = {"prefill": 1, "decode": 1}


def rollout(strategy: str = "Paced", surge: int | None = None) -> Strategy:
    return Strategy(strategy, surge)  # type: ignore[arg-type]


def fleet(
    wanted: dict[str, int],
    old: dict[str, int],
    new: dict[str, int] | None = None,
    serving: dict[str, int] | None = None,
    **looks: Any,
) -> Fleet:
    """Old pods serve; of the new ones those in `serving`, by default all."""
    come = new or {}
    up = come if serving is None else serving
    return Fleet(
        wanted,
        {r: Group(r, "new", 1, come.get(r, 0), come.get(r, 0), up.get(r, 0)) for r in wanted},
        tuple(Group(role, "old", 1, n, n, n) for role, n in old.items()),
        looks.pop("former", {}),
        **looks,
    )


def numbers(split: Split) -> tuple[str, dict[str, int], dict[str, int]]:
    """The state, and the replicas of the new and of the old revision."""
    return split.state, dict(split.new), {role: n for (role, _), n in split.old.items()}


BOTH = {"prefill": 4, "decode": 2}
ROWS: dict[str, tuple[Strategy, Fleet, tuple[str, dict[str, int], dict[str, int]]]] = {
    "a first set starts beside the old ones": (
        rollout(), fleet(BOTH, BOTH),
        ("NewPodsStart", {"prefill": 1, "decode": 1}, BOTH),
    ),
    "old pods leave when new ones serve in their place": (
        rollout(), fleet(BOTH, BOTH, PAIR),
        ("OldPodsLeave", {"prefill": 1, "decode": 1}, {"prefill": 3, "decode": 1}),
    ),
    "their GPUs are used when they are gone, by prefill and decode in their ratio": (
        rollout(), fleet(BOTH, {"prefill": 3, "decode": 1}, PAIR),
        ("NewPodsStart", {"prefill": 2, "decode": 1}, {"prefill": 3, "decode": 1}),
    ),
    "with a surge of all the new revision starts at once": (
        rollout(surge=6), fleet(BOTH, BOTH), ("NewPodsStart", BOTH, BOTH),
    ),
    "without a surge an old set leaves first": (
        rollout(surge=0), fleet({"colocated": 2}, {"colocated": 2}),
        ("OldPodsLeave", {"colocated": 0}, {"colocated": 1}),
    ),
    "without a surge a new set starts when the old one is gone": (
        rollout(surge=0), fleet({"colocated": 2}, {"colocated": 1}),
        ("NewPodsStart", {"colocated": 1}, {"colocated": 1}),
    ),
    "without a surge the last old set leaves when a new one serves": (
        rollout(surge=0), fleet({"colocated": 2}, {"colocated": 1}, {"colocated": 1}),
        ("OldPodsLeave", {"colocated": 1}, {"colocated": 0}),
    ),
    "a surge of one pod has no room for a pair": (
        rollout(surge=1), fleet({"prefill": 1, "decode": 1}, PAIR),
        ("SurgeTooSmall", {"prefill": 0, "decode": 0}, PAIR),
    ),
    "until the new revision has shown that it starts the old one grows": (
        rollout(), fleet({"colocated": 4}, {"colocated": 2}, {"colocated": 1}, {}),
        ("NewPodsStart", {"colocated": 1}, {"colocated": 4}),
    ),
    "then the new one grows": (
        rollout(), fleet({"colocated": 4}, {"colocated": 1}, {"colocated": 1}),
        ("NewPodsStart", {"colocated": 4}, {"colocated": 1}),
    ),
    "BlueGreen starts all": (
        rollout("BlueGreen"), fleet(BOTH, BOTH, PAIR), ("NewPodsStart", BOTH, BOTH),
    ),
    "BlueGreen ends when all serve": (
        rollout("BlueGreen"), fleet(BOTH, BOTH, BOTH),
        ("OldPodsLeave", BOTH, {"prefill": 0, "decode": 0}),
    ),
    "Recreate drains all": (
        rollout("Recreate"), fleet(PAIR, PAIR),
        ("OldPodsLeave", {"prefill": 0, "decode": 0}, {"prefill": 0, "decode": 0}),
    ),
    "Recreate starts when none is left": (
        rollout("Recreate"), fleet(PAIR, {"prefill": 0, "decode": 0}),
        ("NewPodsStart", PAIR, {"prefill": 0, "decode": 0}),
    ),
    "no pod leaves for a model that is not fetched yet": (
        rollout("Recreate"), fleet(PAIR, PAIR, startable=False),
        ("FetchingModel", {}, PAIR),
    ),
    "a change of mode goes by sets of both modes": (
        rollout(), fleet(PAIR, {"colocated": 3}, PAIR, former={"colocated": 3}),
        ("OldPodsLeave", PAIR, {"colocated": 0}),
    ),
    "a fleet without requests is only deleted": (
        rollout(), fleet({"colocated": 0}, {"colocated": 2}),
        ("OldPodsLeave", {"colocated": 0}, {"colocated": 0}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "seen", "expected"), ROWS.values(), ids=ROWS)
def test_the_next_numbers_of_a_rollout(
    asked: Strategy, seen: Fleet, expected: tuple[str, dict[str, int], dict[str, int]]
) -> None:
    assert numbers(choose(asked, seen)) == expected


def test_a_rollout_that_cannot_begin_says_how_large_the_surge_must_be() -> None:
    seen = fleet({"prefill": 2, "decode": 1}, {"prefill": 2, "decode": 1})
    blocked = choose(rollout(surge=0), seen)
    assert blocked.state == "SurgeTooSmall"
    assert "maxSurgeGPUs: 1 or more" in blocked.message
    assert choose(rollout(surge=1), seen).state == "OldPodsLeave"


def test_of_two_old_revisions_the_one_that_serves_keeps_its_pods() -> None:
    seen = fleet({"colocated": 2}, {"colocated": 2})
    never_served = Group("colocated", "between", 1, 2, 2, 0, failing=2)
    split = choose(rollout(), replace(seen, old=(never_served, *seen.old)))
    assert split.old == {("colocated", "between"): 0, ("colocated", "old"): 2}


# --- whole rollouts -------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Pods by role and revision: loading ones, and serving ones; and those that drain."""

    wanted: dict[str, int]
    gpus: dict[tuple[str, str], int]
    loading: dict[tuple[str, str], int] = field(default_factory=dict)
    serving: dict[tuple[str, str], int] = field(default_factory=dict)
    draining: dict[tuple[str, str], int] = field(default_factory=dict)
    written: dict[tuple[str, str], int] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    """Revisions whose pods never serve."""
    quota: int = 10_000
    revision: str = "r1"

    def group(self, role: str, revision: str) -> Group:
        key = role, revision
        loads, serves = self.loading.get(key, 0), self.serving.get(key, 0)
        drains = self.draining.get(key, 0)
        return Group(
            role, revision, self.gpus.get(key, 1), self.written.get(key, 0) + drains,
            loads + serves + drains, serves,
            loads if revision in self.broken else 0,
        )  # fmt: skip

    @property
    def fleet(self) -> Fleet:
        old = sorted(key for key in self.written if key[1] != self.revision)
        new = {role: self.group(role, self.revision) for role in self.wanted}
        return Fleet(dict(self.wanted), new, tuple(self.group(*key) for key in old), {})

    def used(self) -> int:
        return sum(
            self.gpus.get(key, 1) * n
            for pods in (self.loading, self.serving, self.draining)
            for key, n in pods.items()
        )

    def sets(self, pods: dict[tuple[str, str], int]) -> int:
        """Sets of one revision that serve."""
        revisions = {revision for _, revision in pods}
        return sum(min(pods.get((role, r), 0) for role in self.wanted) for r in revisions)

    def write(self, split: Split) -> None:
        """Write the numbers; the ReplicaSets follow. Pods that load leave before those that serve,
        which drain. Those that drain are called back before others start."""
        new = {(role, self.revision): n for role, n in split.new.items()}
        for key, n in {**new, **split.old}.items():
            self.written[key] = n
            loads, serves = self.loading.get(key, 0), self.serving.get(key, 0)
            over = max(0, loads + serves - n)
            self.loading[key] = loads - min(loads, over)
            drains = over - min(loads, over)
            self.serving[key] = serves - drains
            back = min(max(0, n - loads - serves), self.draining.get(key, 0))
            self.draining[key] = self.draining.get(key, 0) - back
            self.serving[key] += back
            self.draining[key] += drains
            for _ in range(max(0, n - loads - serves - back)):
                if self.used() + self.gpus.get(key, 1) <= self.quota:
                    self.loading[key] = self.loading.get(key, 0) + 1

    def forget(self) -> None:
        """Deployments of old revisions without pods are deleted."""
        for key in list(self.written):
            gone = not any(p.get(key) for p in (self.loading, self.serving, self.draining))
            if key[1] != self.revision and self.written[key] == 0 and gone:
                del self.written[key]

    def drained(self) -> None:
        self.draining.clear()

    def ready(self, most: int) -> None:
        """So many pods that load serve now."""
        for key, n in self.loading.items():
            up = 0 if key[1] in self.broken else min(n, most)
            most -= up
            self.loading[key] -= up
            self.serving[key] = self.serving.get(key, 0) + up


EVENTS = st.one_of(
    st.tuples(st.just("ready"), st.integers(1, 3)),
    st.tuples(st.just("drained"), st.just(0)),
    st.tuples(st.just("edit"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("scale"), st.integers(1, 4)),
    st.tuples(st.just("quota"), st.integers(0, 3)),
)


@given(
    roles=st.sampled_from([("colocated",), ("prefill", "decode")]),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    gpus=st.lists(st.integers(1, 2), min_size=2, max_size=2),
    surge=st.sampled_from([None, 0, 1, 2, 3, 20]),
    story=st.lists(EVENTS, max_size=25),
)
@example(("prefill", "decode"), [1, 2], [1, 1], 0, [("scale", 1), ("scale", 2)])
@example(("prefill", "decode"), [1, 2], [1, 1], 0, [("edit", 1), ("scale", 1), ("scale", 2)])
def test_no_story_uses_more_gpus_than_allowed_or_drains_the_last_set(
    roles: tuple[str, ...],
    sizes: list[int],
    gpus: list[int],
    surge: int | None,
    story: list[tuple[str, int]],
) -> None:
    wanted = dict(zip(roles, sizes, strict=False))
    per_pod = dict(zip(roles, gpus, strict=False))
    revisions = ("r1", "r2", "r3")
    world = Cluster(wanted, {(role, r): per_pod[role] for role in roles for r in revisions})
    for role, n in wanted.items():
        world.serving[role, "r1"] = world.written[role, "r1"] = n
    spare = sum(per_pod.values()) if surge is None else surge
    most = world.used() + spare
    world.revision = "r2"
    for what, number in (*story, ("end", 0)):
        match what:
            case "ready":
                world.ready(number)
            case "drained":
                world.drained()
            case "edit":
                world.revision = f"r{number}"
            case "crash":
                _lose(world, number)
            case "scale":
                role = roles[number % len(roles)]
                world.wanted[role] = number
                most = max(most, sum(per_pod[r] * n for r, n in world.wanted.items()) + spare)
            case "quota":
                world.quota = most - number if number else 10_000
        alone = not world.fleet.old
        _round(world, rollout(surge=surge))
        if alone:  # no rollout: pods that the law adds do not wait for those that drain
            most = max(most, world.used() + spare)
        assert world.used() <= most
    world.quota = 10_000
    _end(world, rollout(surge=surge))


def _lose(world: Cluster, number: int) -> None:
    """A pod that serves is lost, and its ReplicaSet makes another one."""
    keys = sorted(key for key, n in world.serving.items() if n > 0)
    if keys:
        key = keys[number % len(keys)]
        world.serving[key] -= 1
        world.loading[key] = world.loading.get(key, 0) + 1


def _round(world: Cluster, asked: Strategy) -> None:
    """A round of the operator; what it does leaves a set that serves, where there was one."""
    before = world.sets(world.serving)
    world.forget()
    if world.fleet.old:
        world.write(choose(asked, world.fleet))
    else:
        world.write(Split("NoOldRevision", "", dict(world.wanted), {}))  # type: ignore[arg-type]
        before = min(before, 1)
    assert min(before, 1) <= world.sets(world.serving)


def _end(world: Cluster, asked: Strategy) -> None:
    """Pods start and drains end, until only the new revision is left, or it cannot begin."""
    for _ in range(60):
        world.drained()
        world.ready(100)
        _round(world, asked)
    if world.fleet.old:
        assert choose(asked, world.fleet).state == "SurgeTooSmall"
        return
    serving = {role: world.serving.get((role, world.revision), 0) for role in world.wanted}
    assert serving == world.wanted


@given(
    roles=st.sampled_from([("colocated",), ("prefill", "decode")]),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=2),
)
def test_with_the_default_surge_no_step_lowers_what_serves(
    roles: tuple[str, ...], sizes: list[int]
) -> None:
    wanted = dict(zip(roles, sizes, strict=False))
    world = Cluster(wanted, {})
    for role, n in wanted.items():
        world.serving[role, "r1"] = world.written[role, "r1"] = n
    world.revision = "r2"
    for number in range(80):
        if number % 3 == 0:
            world.drained()
        if number % 4 == 0:
            world.ready(1)
        _round(world, rollout())
        for role, n in wanted.items():
            assert sum(up for (of, _), up in world.serving.items() if of == role) >= n
    assert not world.fleet.old


@pytest.mark.parametrize("surge", [None, 0, 2, 20])
def test_a_revision_that_does_not_start_leaves_the_old_one_to_the_law(surge: int | None) -> None:
    """Without a surge it lacks the one set that the new revision tries to start."""
    world = Cluster({"colocated": 4}, {}, broken=frozenset({"r2"}))
    world.serving["colocated", "r1"] = world.written["colocated", "r1"] = 4
    world.revision = "r2"
    for wanted in (4, 7, 3):
        world.wanted["colocated"] = wanted
        for _ in range(20):
            world.drained()
            world.ready(100)
            _round(world, rollout(surge=surge))
        assert world.serving["colocated", "r1"] == wanted - (surge == 0)


@given(
    roles=st.sampled_from([("colocated",), ("prefill", "decode")]),
    asked=st.sampled_from([rollout(), rollout(surge=0), rollout(surge=20), rollout("BlueGreen")]),
    numbers=st.lists(st.lists(st.integers(1, 6), min_size=2, max_size=2), min_size=2, max_size=4),
    quota=st.integers(0, 2),
)
def test_the_old_revision_follows_the_law_down_while_the_new_one_cannot_start(
    roles: tuple[str, ...], asked: Strategy, numbers: list[list[int]], quota: int
) -> None:
    """The pods of the new one hang, or a quota refuses them. The last set stays."""
    world = Cluster(dict(zip(roles, numbers[0], strict=False)), {}, broken=frozenset({"r2"}))
    for role, n in world.wanted.items():
        world.serving[role, "r1"] = world.written[role, "r1"] = n
    world.revision = "r2"
    for sizes in numbers[1:]:
        world.wanted = dict(zip(roles, sizes, strict=False))
        world.quota = 10_000 if quota == 0 else max(sum(sizes), world.used()) + quota - 1
        for _ in range(12):
            world.drained()
            world.ready(100)
            _round(world, asked)
        serves = {role: world.serving[role, "r1"] for role in roles}
        assert all(1 <= serves[role] <= n for role, n in world.wanted.items())
        if asked.surge == 0:  # the new set has its GPUs
            assert sum(serves.values()) >= sum(world.wanted.values()) - len(roles)
        elif quota == 0:
            assert serves == world.wanted
