"""Plays laws on recorded traces, with their thresholds changed or not, and keeps the results."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from argosy_bench.laws.changes import changed, goals_with
from argosy_bench.laws.kept import Kept, code
from argosy_bench.scaling.runs import COLD_S, PROFILE
from argosy_bench.scaling.traces import Recording
from argosy_operator.core.scaling.goals import RoleGoal
from argosy_operator.sim import cli, figures
from argosy_operator.sim.laws import LAWS
from argosy_operator.sim.reference import hindsight
from argosy_operator.sim.replay import ROLES, Replicas, Run, replay
from argosy_operator.sim.traces import Trace

GOAL, SHORTFALL = 0.9, 12.0
"""What a missing share of attainment costs, in logarithms of GPU-hours: 0.01 as much as 13 %."""
MOST_OF_STATIC = 2
"""Replicas of a role that a rival may have, in those of the best constant fleet: as an owner would
bound it."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law as it is played."""

    policy: str = "goodput"
    """As `argosy simulate --policy` takes it."""
    setting: Mapping[str, float] = field(default_factory=dict)
    """A rival's thresholds; empty: those that were chosen for it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of our law, as `laws.changes` names them."""
    flags: tuple[str, ...] = ()
    """Further ones of `argosy simulate`."""

    @property
    def key(self) -> tuple[object, ...]:
        """All that a result depends on, beside the code and the trace."""
        changes = [(n, getattr(v, "__name__", v)) for n, v in sorted(self.changes.items())]
        return self.policy, sorted(self.setting.items()), changes, self.flags


@dataclass(frozen=True, slots=True)
class Point:
    """What one run of a law reached."""

    attainment: float
    gpu_hours: float
    static: float
    """GPU-hours of the smallest constant fleet that meets the goal: FIFO, first tokens at once."""
    reversals: float

    @property
    def cost(self) -> float:
        return self.gpu_hours / self.static

    @property
    def score(self) -> float:
        """What a choice of thresholds minimises."""
        return log(self.cost) + SHORTFALL * max(0.0, GOAL - self.attainment)


class Player:
    """Plays on the traces of a folder.

    `flags` of `argosy simulate` are those of all runs; a law's own win over them.
    """

    def __init__(self, folder: Path, scratch: Path, flags: tuple[str, ...] = ()) -> None:
        self._folder, self._scratch, self._flags = folder, scratch, flags
        self._kept = Kept(scratch / "laws.jsonl")
        self._digests: dict[str, str] = {}
        self._trace = lru_cache(maxsize=2)(self._read)

    def play(self, recording: Recording, seed: int, law: Law) -> Point:
        """One run, or what is known of it. SystemExit if no constant fleet meets the goal."""
        best, static = self.constant(recording, seed)
        what = f"{recording.name} {seed} {law.policy} {law.key}"
        key = (code(law.policy), self._given(recording, seed), tuple(best.items()), law.key)
        found = self._kept.of(key, what, lambda: self._played(recording, seed, law, best))
        return Point(found["attainment"], found["gpu_hours"], static, found["reversals_per_hour"])

    def points(self, recording: Recording, seeds: int, law: Law) -> list[Point]:
        """One for each seed."""
        return [self.play(recording, seed, law) for seed in range(seeds)]

    def constant(self, recording: Recording, seed: int) -> tuple[Replicas, float]:
        """The smallest constant fleet, and its GPU-hours."""

        def search() -> Any:
            options = self._options(recording, seed, Law(flags=("--order", "fifo")))
            trace = self._trace(recording, seed)
            fleet = hindsight.smallest(
                options.setup, trace, warmup_s=options.warmup_s, goal=options.goal
            )
            if fleet is None:
                raise SystemExit(f"{recording.name}: no constant fleet meets the goal")
            gpus = sum(fleet.values()) * options.setup.replica.machine.gpus
            return dict(fleet), gpus * (trace.end - options.warmup_s) / 3600

        key = (code("static"), self._given(recording, seed))
        fleet, hours = self._kept.of(key, f"{recording.name} {seed} constant fleet", search)
        return fleet, hours

    def _given(self, recording: Recording, seed: int) -> tuple[object, ...]:
        """All that a constant fleet depends on beside the code."""
        if recording.name not in self._digests:
            content = sha256()
            for path in recording.files(self._folder):
                content.update(path.read_bytes())
            self._digests[recording.name] = content.hexdigest()
        return self._digests[recording.name], recording, seed, COLD_S, PROFILE, self._flags

    def _options(self, recording: Recording, seed: int, law: Law) -> cli.Options:
        scratch = self._scratch
        return cli.parse([
            *recording.flags(self._folder, scratch), "--profile", PROFILE, "--cold", str(COLD_S),
            "--policy", law.policy, "--seed", str(seed), "--out", str(scratch / "x.json"),
            *self._flags, *law.flags,
        ])  # fmt: skip

    def _read(self, recording: Recording, seed: int) -> Trace:
        return cli.trace_of(self._options(recording, seed, Law()))

    def _played(
        self, recording: Recording, seed: int, law: Law, best: Replicas
    ) -> dict[str, float]:
        options, trace = self._options(recording, seed, law), self._trace(recording, seed)
        with changed(law.changes):
            run = _run(options, trace, law, best)
        return {
            **figures.attainment(run.world, options.warmup_s),
            "gpu_hours": figures.gpu_hours(run.world, options.warmup_s, trace.end),
            "reversals_per_hour": figures.reversals_per_hour(run, options.warmup_s, trace.end),
        }


def _run(options: cli.Options, trace: Trace, law: Law, best: Replicas) -> Run:
    if law.policy == cli.ORACLE:
        return cli.play(options, trace, best)
    goals = goals_with(law.changes, options.goals)
    if law.policy != "goodput":
        roles = tuple(RoleGoal(role, 1, MOST_OF_STATIC * best[role]) for role in ROLES)
        goals = replace(goals, roles=roles)
    made: Any = replace(LAWS[law.policy], **law.setting)  # type: ignore[type-var]
    return replay(options.setup, trace, made, goals, best)


def mean_score(points: list[Point]) -> float:
    """Of one law on many traces and seeds."""
    return fmean(point.score for point in points)
