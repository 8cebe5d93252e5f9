"""What a constant fleet attains, as the simulator plays it, and what it lacks when it does not.

`plan` asks. The formulas of `argosy_law.size` say where a search begins (`Formulas`); each answer
is a play of requests in virtual time (`Predictor`), with the gateway's queue and with the time that
programs add around the steps, as a fleet of this project serves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, exp, inf, log, prod
from statistics import median

from argosy_law.goals import SLO
from argosy_law.sim import figures
from argosy_law.sim.replay import ROLES, TOGETHER, Run, static
from argosy_law.sim.world.fleet import PoolName
from argosy_law.sim.world.machine import QUEUE_TIMEOUT_S, Programs, Replica, Setup
from argosy_law.size import work
from argosy_law.size.pools import Limits, Model, model_of
from argosy_law.size.sizing import Demanded, fewest
from argosy_measure.profiles import PodProfile
from argosy_measure.workloads import Workload

CLOSE = 1.02
"""Ratio of two rates between which a goodput is known."""
COUNTED, ANSWERS = 2000, 2
"""Requests that a play counts, and how many times as long as a mean answer they come, at least."""
POINTS = 32
"""Lengths that stand for all of them in the formulas."""
LEAST_RATE = 1e-3
"""Requests per second below which no goodput is looked for."""
ALONE = 0.02
"""Requests in the time of one answer, when hardly any request meets another one."""
HELPS, AS_MUCH = 0.01, 0.9
"""What more of a resource must add to the attainment to count, and to count as much as another."""

Types = tuple[PodProfile, ...]
"""One: its pods serve together. Two: prefill and decode apart, a type for each."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pods of one type that serve together, or prefill and decode apart."""

    types: Types
    replicas: tuple[int, ...]
    """Of each role."""

    @property
    def roles(self) -> tuple[PoolName, ...]:
        return TOGETHER if len(self.types) == 1 else ROLES

    @property
    def gpus(self) -> int:
        return sum(of.gpus * n for of, n in zip(self.types, self.replicas, strict=True))

    @property
    def price(self) -> float | None:
        """Of all GPUs per hour; None if the price of a type is unknown."""
        total = 0.0
        for of, n in zip(self.types, self.replicas, strict=True):
            if of.price is None:
                return None
            total += of.price * of.gpus * n
        return total

    @property
    def replica(self) -> Replica:
        """What the simulator takes for a pod: a prefill pod uses the first type's constants of
        prompts alone, and a decode pod the last type's others alone."""
        first, last = self.types[0].replica, self.types[-1].replica
        link = min(of.machine.transfer_bytes_per_s for of in (first, last))
        profile = replace(
            last.profile,
            prefill_base_s=first.profile.prefill_base_s,
            per_prompt_token_s=first.profile.per_prompt_token_s,
            per_prompt_token_squared_s=first.profile.per_prompt_token_squared_s,
        )
        return Replica(
            profile,
            replace(last.machine, transfer_bytes_per_s=link),
            last.max_num_seqs,
            first.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the requests of a play: within both limits, and within each."""

    both: float
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over the seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Range":
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Resource:
    """What pods may have too little of."""

    name: str
    advice: str
    more: Callable[[Replica], Replica]
    """A pod with clearly more of it."""


def _faster(replica: Replica, *constants: str) -> Replica:
    profile = replica.profile
    halves = {name: getattr(profile, name) / 2 for name in constants}
    return replace(replica, profile=replace(profile, **halves))


def _roomier(replica: Replica) -> Replica:
    profile = replica.profile
    return replace(replica, profile=replace(profile, kv_tokens=4 * profile.kv_tokens))


def _nearer(replica: Replica) -> Replica:
    machine = replica.machine
    speed = 8 * machine.transfer_bytes_per_s
    return replace(replica, machine=replace(machine, transfer_bytes_per_s=speed))


_PROMPTS = "prefill_base_s", "per_prompt_token_s", "per_prompt_token_squared_s"
_STEPS = "decode_base_s", "per_sequence_s", "per_context_token_s"
RESOURCES = (
    Resource(
        "batch limit",
        "raise maxNumSeqs",
        lambda of: replace(of, max_num_seqs=4 * of.max_num_seqs),
    ),
    Resource("KV memory", "take pods with more kvTokens", _roomier),
    Resource(
        "tokens of a step",
        "lower maxNumBatchedTokens, so that prompts delay answers less",
        lambda of: replace(of, max_num_batched_tokens=max(of.max_num_batched_tokens // 4, 64)),
    ),
    Resource("KV transfer", "take a faster link between pods", _nearer),
    Resource(
        "prefill compute",
        "take pods that compute prompts faster",
        lambda of: _faster(of, *_PROMPTS),
    ),
    Resource("decode step", "take pods with shorter decode steps", lambda of: _faster(of, *_STEPS)),
)
"""Of two that help as much, the first is named: shorter steps also help where memory is short."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Which limit is missed more often, and what there is too little of."""

    limit: str
    resource: Resource | None
    """None: more of no single one helps."""

    def __str__(self) -> str:
        return f"{self.limit}: {self.resource.name if self.resource else 'several together'}"


@dataclass(frozen=True, slots=True)
class Alone:
    """What requests attain that never meet another one: no fleet of these pods does better."""

    attainment: float
    ttft_s: float
    tpot_s: float
    """The times within which the share of the goal has its first token, and its others."""
    binding: Binding


class Predictor:
    """Plays a workload on fleets. Equal arguments give equal answers."""

    def __init__(self, slo: SLO, workload: Workload, seeds: int) -> None:
        self.slo, self.workload, self.seeds = slo, workload, seeds
        self._answer_s = slo.ttft_s + workload.output * slo.tpot_s
        """How long a mean answer takes that just meets the SLO."""
        self._shares = cache(self._find_shares)
        self._goodput = cache(self._find_goodput)

    def attainment(self, fleet: Fleet, rate: float) -> Range:
        """Return the share within both limits at `rate` requests per second."""
        return Range.over([self._shares(fleet, rate, seed).both for seed in range(self.seeds)])

    def meets(self, fleet: Fleet, rate: float) -> bool:
        """Whether the goal is met with most of the seeds."""
        met, needed = 0, self.seeds // 2 + 1
        for seed in range(self.seeds):
            met += self._shares(fleet, rate, seed).both >= self.slo.attainment
            if met == needed or seed + 1 - met == needed:
                break
        return met >= needed

    def goodput(self, fleet: Fleet, near: float) -> float:
        """Return the highest rate at which the goal is met with the first seed; 0: below
        `LEAST_RATE`. The search begins at `near`."""
        return self._goodput(fleet, 0, near)

    def goodputs(self, fleet: Fleet, near: float) -> Range:
        """Return the goodput over the seeds."""
        first = self._goodput(fleet, 0, near)
        others = [self._goodput(fleet, seed, first or near) for seed in range(1, self.seeds)]
        return Range.over([first, *others])

    def binding(self, fleet: Fleet, rate: float) -> Binding:
        """Say what the fleet lacks at a rate that is too high for it: what helps most if there is
        more of it."""
        now = self._shares(fleet, rate, 0)
        gains = [self._find_shares(fleet, rate, 0, more).both - now.both for more in RESOURCES]
        least = max(HELPS, AS_MUCH * max(gains))
        best = next((of for of, gain in zip(RESOURCES, gains, strict=True) if gain >= least), None)
        return Binding("TTFT" if now.ttft <= now.tpot else "TPOT", best)

    def alone(self, types: Types) -> Alone:
        """Return what requests attain at next to no load."""
        fleet, rate = Fleet(types, (1,) * len(types)), ALONE / self._answer_s
        world = self._play(fleet, rate, 0).world
        ttft, tpot = [], []
        for at, first, last, tokens in zip(
            world.trace.arrival, world.first, world.last, world.trace.output, strict=True
        ):
            ttft.append(first - at)
            tpot.append((last - first) / max(tokens - 1, 1))
        place = ceil(self.slo.attainment * len(ttft)) - 1
        share = self._shares(fleet, rate, 0).both
        return Alone(share, sorted(ttft)[place], sorted(tpot)[place], self.binding(fleet, rate))

    def _play(self, fleet: Fleet, rate: float, seed: int, more: Resource | None = None) -> Run:
        """`more`: what each pod has more of than it has."""
        count = ceil(rate * self._answer_s + max(COUNTED, ANSWERS * self._answer_s * rate))
        replica = more.more(fleet.replica) if more else fleet.replica
        setup = Setup(
            replica,
            self.slo.ttft_s,
            self.slo.tpot_s,
            order="deadline",
            queue_timeout_s=QUEUE_TIMEOUT_S,
            programs=Programs(),
        )
        trace = self.workload.requests(rate, count, seed)
        return static(setup, trace, dict(zip(fleet.roles, fleet.replicas, strict=True)))

    def _find_shares(
        self, fleet: Fleet, rate: float, seed: int, more: Resource | None = None
    ) -> Shares:
        world = self._play(fleet, rate, seed, more).world
        settled = world.trace.arrival[ceil(rate * self._answer_s) - 1]
        return Shares(*figures.attainment(world, settled).values())

    def _find_goodput(self, fleet: Fleet, seed: int, near: float) -> float:
        goal = self.slo.attainment
        return highest(lambda rate: self._shares(fleet, rate, seed).both >= goal, near)


def highest(met: Callable[[float], bool], near: float) -> float:
    """Return the highest rate that is met, within `CLOSE`; 0 if it is below `LEAST_RATE`.

    `near`: where the search begins. It changes the time, and the answer only within `CLOSE`.
    """
    low = high = max(near, LEAST_RATE)
    step = 1.1
    if met(low):
        while met(high := low * step):
            low, step = high, min(step * step, 4.0)
    else:
        while not met(low := high / step):
            if low < LEAST_RATE:
                return 0.0
            high, step = low, min(step * step, 4.0)
    while high / low > CLOSE:
        middle = exp((log(low) + log(high)) / 2)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


class Formulas:
    """The law's models of pools, from which a search begins."""

    def __init__(self, slo: SLO, workload: Workload) -> None:
        self._slo, self._work = slo, work_of(workload)
        self._models = cache(self._make_models)

    def fewest(self, types: Types, rate: float) -> Fleet:
        """Return about the cheapest fleet at `rate` requests per second."""
        costs = [of.gpus * (of.price or 1.0) for of in types]
        pools = zip(self._models(types), costs, strict=True)
        demanded = tuple(Demanded(model, rate, cost) for model, cost in pools)
        return Fleet(types, fewest(demanded, self._slo.attainment))

    def goodput(self, fleet: Fleet) -> float:
        """Return about the highest rate of a fleet, in requests per second."""
        pools = list(zip(self._models(fleet.types), fleet.replicas, strict=True))
        reach = prod(model.attainment(n, LEAST_RATE) for model, n in pools)
        # Where the formulas say that the goal cannot be met, a play decides.
        goal = min(self._slo.attainment, 0.97 * reach)
        return highest(lambda rate: prod(m.attainment(n, rate) for m, n in pools) >= goal, 1.0)

    def _make_models(self, types: Types) -> tuple[Model, ...]:
        fleet = Fleet(types, (1,) * len(types))
        replica, programs = fleet.replica, Programs()
        profile = replica.profile
        # A request waits for half of a step and for those that are launched.
        way_s = programs.way_s + (0.5 + programs.launched) * profile.decode_base_s
        limits = Limits(
            max(self._slo.ttft_s - way_s, 1e-3),
            self._slo.tpot_s,
            self._slo.attainment,
            replica.transfer_s(round(self._work.prompt)) + programs.transfer_s,
            "deadline",
        )
        pod = work.Replica(
            profile.decode_base_s,
            profile.per_prompt_token_s,
            profile.per_sequence_s,
            profile.per_context_token_s,
            profile.per_prompt_token_squared_s,
            replica.max_num_batched_tokens,
            profile.kv_tokens,
            replica.max_num_seqs,
        )
        first = replace(pod, base_s=profile.prefill_base_s)
        return tuple(
            model_of(role, first if role == "prefill" else pod, self._work, limits)
            for role in fleet.roles
        )


def work_of(workload: Workload) -> work.Work:
    """Return the lengths of a workload as the formulas take them."""
    drawn = workload.requests(inf, 64 * POINTS, 0)
    count, prompts = len(drawn), sum(drawn.prompt)
    steps = sum(o - 1 for o in drawn.output)
    seen = sum((o - 1) * (p + o / 2) for p, o in zip(drawn.prompt, drawn.output, strict=True))
    return work.Work(
        prompts / count,
        sum(p * p for p in drawn.prompt) / count,
        sum(drawn.output) / count,
        seen / steps if steps else None,
        _spread(drawn.prompt),
        _spread(drawn.output),
        1 - sum(drawn.computed_tokens()) / prompts,
    )


def _spread(lengths: Sequence[int]) -> work.Spread:
    """Groups of neighbours, with the mean of each."""
    ordered, size = sorted(lengths), len(lengths) // POINTS
    groups = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return tuple((sum(of) / len(of), len(of) / len(ordered)) for of in groups)
