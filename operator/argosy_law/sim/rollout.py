"""A rollout in the simulated fleet: `choose` of the product, round by round.

`replay` calls it. What the product's `choose` reads of pods is read of simulated ones, and its
numbers are carried out on them as the operator does it: pods that leave finish their answers and
hold their GPUs meanwhile, and those that are wanted again are called back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from argosy_law.rollout import Fleet, Group, Split, Strategy, choose
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Revision
from argosy_law.sim.world.supply import PoolName

ROUND_S = 1.0
"""How often the operator looks at pods that drain; it sees no later that a pod is ready."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for, and when."""

    at_s: float
    strategy: Strategy = field(default_factory=Strategy)
    revision: Revision = field(default_factory=Revision)


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of what the rollout does."""

    at: float
    state: str
    message: str


@dataclass(slots=True)
class Rollout:
    """How a rollout goes in one run."""

    plan: Plan
    turns: list[Turn] = field(default_factory=list)
    ended_at: float = inf
    most_over: int = 0
    """Most GPUs over those of the wanted pods, when a pod was added."""
    killed: int = 0
    """Requests that ended with their pod before the rollout ended."""
    _killed_before: int = 0

    @property
    def begun(self) -> bool:
        return bool(self.turns)

    def next_at(self, world: World) -> float:
        """When the next round is due; inf if none is."""
        if not self.begun:
            return max(self.plan.at_s, world.now)
        return world.now + ROUND_S if self.ended_at == inf else inf

    def play(self, world: World, wanted: Mapping[PoolName, int]) -> bool:
        """A round of the operator, for the pods that the law wants; False if it is none of a
        rollout."""
        if not self.begun:
            if world.now < self.plan.at_s:
                return False
            world.edit(self.plan.revision)
            self._killed_before = world.killed
        if self.ended_at < inf:
            return False
        self.killed = world.killed - self._killed_before
        if not world.rolling:
            self._turn(world, "NoOldRevision", "only pods of the new revision are left")
            world.resize(wanted)
            if all(_ready(world, role) >= wanted[role] for role in world.roles):
                self.ended_at = world.now
            return True
        split = choose(self.plan.strategy, fleet_of(world, wanted))
        self._turn(world, split.state, split.message)
        if _carry_out(world, split):
            pods = sum(len(world.living(role)) for role in world.roles)
            over = (pods - sum(wanted.values())) * world.setup.replica.machine.gpus
            self.most_over = max(self.most_over, over)
        return True

    def _turn(self, world: World, state: str, message: str) -> None:
        if not self.turns or self.turns[-1].state != state:
            self.turns.append(Turn(world.now, state, message))


def _ready(world: World, role: PoolName) -> int:
    return sum(pod.ready_at <= world.now for pod in world.wanted(role))


def fleet_of(world: World, wanted: Mapping[PoolName, int]) -> Fleet:
    """What the product's `choose` sees of the simulated fleet."""
    old = sorted({pod.revision for role in world.roles for pod in world.living(role)})
    return Fleet(
        wanted={role: wanted[role] for role in world.roles},
        new={role: _group(world, role, world.newest) for role in world.roles},
        old=tuple(
            _group(world, role, revision)
            for revision in old
            if revision != world.newest
            for role in world.roles
        ),
        former={},
    )


def _group(world: World, role: PoolName, revision: int) -> Group:
    pods = [pod for pod in world.living(role) if pod.revision == revision]
    return Group(
        role=role,
        revision=str(revision),
        gpus=world.setup.replica.machine.gpus,
        written=sum(not pod.gone for pod in pods),
        running=len(pods),
        serving=sum(pod.ready_at <= world.now and not pod.draining for pod in pods),
        failing=sum(pod.fails_at <= world.now for pod in pods),
    )


def _carry_out(world: World, split: Split) -> bool:
    """Write the numbers; whether pods were added."""
    before = sum(len(world.pods[role]) for role in world.roles)
    for (role, revision), replicas in split.old.items():
        world.scale(_pool(world, role), replicas, revision=int(revision))
    for role, replicas in split.new.items():
        world.scale(_pool(world, role), replicas)
    return sum(len(world.pods[role]) for role in world.roles) > before


def _pool(world: World, role: str) -> PoolName:
    return next(of for of in world.roles if of == role)
