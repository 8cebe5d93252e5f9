"""The figures of one run: attainment, GPU-hours, and how steady the replicas were.

Requests count if they arrive from the end of the warm-up on; GPU-hours are taken from there to the
last arrival, the same time for every policy. `cli` writes them to `result.json`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor, isnan

from argosy_law.sim.replay import Run
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import PoolName, World
from argosy_law.sim.world.machine import Setup

REVERSAL_S = 600.0
"""A move and the next one of the pool, in the other direction, within this are a reversal."""

Verdict = tuple[float, bool, bool]
"""(arrival, TTFT met, TPOT met) of a request."""


def verdicts(world: World, warmup_s: float) -> Iterator[Verdict]:
    """Of each request that counts. A killed one has met neither limit."""
    trace, setup = world.trace, world.setup
    for arrival, output, first, last in zip(
        trace.arrival, trace.output, world.first, world.last, strict=True
    ):
        if arrival < warmup_s:
            continue
        ended = not isnan(last)
        ttft = ended and first - arrival <= setup.ttft_s
        tpot = ended and (output <= 1 or last - first <= setup.tpot_s * (output - 1))
        yield arrival, ttft, tpot


def attainment(world: World, warmup_s: float) -> dict[str, float]:
    """Shares of the requests that met both limits, TTFT, and TPOT."""
    count = both = first = pace = 0
    for _, ttft, tpot in verdicts(world, warmup_s):
        count += 1
        both += ttft and tpot
        first += ttft
        pace += tpot
    return {
        "attainment": both / count,
        "attainment_ttft": first / count,
        "attainment_tpot": pace / count,
    }


def attainment_between(world: World, begin: float, end: float) -> float | None:
    """Share within both limits of the requests that came from `begin` to `end`; None: none came."""
    met = [ttft and tpot for arrival, ttft, tpot in verdicts(world, begin) if arrival <= end]
    return sum(met) / len(met) if met else None


def ttft_longest_s(world: World, warmup_s: float) -> float | None:
    """The longest time to first token of the answered requests that count; None if there is none.

    The prompt of a request that went on elsewhere was computed before."""
    waits = (
        first - arrival
        for arrival, first, last in zip(world.trace.arrival, world.first, world.last, strict=True)
        if arrival >= warmup_s and not isnan(last)
    )
    return max(waits, default=None)


def violation_minutes(world: World, warmup_s: float, goal: float) -> int:
    """Minutes of arrival in which fewer than `goal` of the requests met both limits."""
    met: dict[int, list[bool]] = {}
    for arrival, ttft, tpot in verdicts(world, warmup_s):
        met.setdefault(floor(arrival / 60), []).append(ttft and tpot)
    return sum(sum(ok) < goal * len(ok) for ok in met.values())


def gpu_hours(world: World, start: float, end: float) -> float:
    """GPUs of all pods from creation to deletion, as far as that is between start and end."""
    pod_seconds = sum(
        max(min(pod.gone_at, end) - max(pod.created_at, start), 0.0)
        for role in world.roles
        for pod in world.pods[role]
    )
    return pod_seconds * world.setup.replica.machine.gpus / 3600


def reversals_per_hour(run: Run, start: float, end: float) -> float:
    """Moves within 10 minutes of an opposite one, per pool and hour, from start to end."""
    found = 0
    for role in run.world.roles:
        moves = [(at, by) for at, of, by in run.moves if of == role and start <= at <= end]
        found += sum(
            (a > 0) != (b > 0) and after - before <= REVERSAL_S
            for (before, a), (after, b) in pairwise(moves)
        )
    return found / len(run.world.roles) / ((end - start) / 3600)


def physical_gpu_hours(
    trace: Trace, setup: Setup, warmup_s: float, roles: Sequence[PoolName]
) -> float:
    """What the work takes without any waiting, idling or starting: no fleet can do with less."""
    least = physical_pod_seconds(trace, setup, warmup_s)
    return sum(least[role] for role in roles) * setup.replica.machine.gpus / 3600


def physical_pod_seconds(trace: Trace, setup: Setup, warmup_s: float) -> dict[PoolName, float]:
    """The least time of pods of each role; colocated ones do the work of both others.

    Prompts are computed in full steps at a utilisation of 1; answers are generated in the largest
    batch that meets the TPOT limit at the mean context of a token. A colocated step with prompts
    and answers costs the longer one of two bases, and not both.
    """
    replica, profile, work = setup.replica, setup.replica.profile, trace.computed_tokens()
    base = profile.prefill_base_s / replica.max_num_batched_tokens
    prefill = context = 0.0
    computed = tokens = 0
    for index, arrival in enumerate(trace.arrival):
        if arrival < warmup_s:
            continue
        prompt, steps = trace.prompt[index], trace.output[index] - 1
        begin = prompt - work[index]
        prefill += (base + profile.per_prompt_token_s) * work[index]
        prefill += profile.per_prompt_token_squared_s * (prompt**2 - begin**2)
        computed += work[index]
        tokens += steps
        context += steps * (prompt + trace.output[index] / 2)
    if not tokens:
        return {"prefill": prefill, "decode": 0.0, "colocated": prefill}
    sequence = profile.per_sequence_s + profile.per_context_token_s * context / tokens
    batch = (setup.tpot_s - profile.decode_base_s) / sequence
    batch = max(min(batch, profile.kv_tokens * tokens / context, replica.max_num_seqs), 1.0)
    decode = tokens * (profile.decode_base_s / batch + sequence)
    once = min(base * computed, tokens * profile.decode_base_s / batch)
    return {"prefill": prefill, "decode": decode, "colocated": prefill + decode - once}
