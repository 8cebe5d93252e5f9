"""Small fleets and traces for the tests of the simulator."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Literal

from argosy_law.estimate.capacity import Machine
from argosy_law.goals import Profile
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import ColdStart, Programs, Replica, Setup
from argosy_law.sim.world.pods import DecodePod, PrefillPod

ROUND = Profile(
    prefill_base_s=0.1,
    per_prompt_token_s=0.001,
    decode_base_s=0.01,
    per_sequence_s=0.001,
    per_context_token_s=1e-5,
    kv_tokens=10_000,
)
"""Constants with which times can be worked out by hand."""
MACHINE = Machine(gpus=2, kv_bytes_per_token=1, transfer_bytes_per_s=1000.0)
"""A token of KV takes a millisecond."""
AT_ONCE = Machine(gpus=2, kv_bytes_per_token=0, transfer_bytes_per_s=1.0)
"""KV is moved in no time."""


def setup(
    profile: Profile = ROUND,
    machine: Machine = AT_ONCE,
    *,
    cold_s: float = 5.0,
    sigma: float = 0.0,
    drain_s: float = 300.0,
    ttft_s: float = 1.0,
    tpot_s: float = 0.05,
    step_tokens: int = 2048,
    sequences: int = 256,
    seed: int = 0,
    order: Literal["fifo", "deadline"] = "fifo",
    held: bool = False,
    scrape_loss: float = 0.0,
    outage: tuple[float, float] = (inf, inf),
    batching: Literal["chunked", "prefill-first"] = "chunked",
    resumes: bool = False,
    queue_timeout_s: float = inf,
    programs: Programs | None = None,
    migrates: bool = False,
) -> Setup:
    replica = Replica(profile, machine, sequences, step_tokens)
    cold = ColdStart(cold_s, sigma)
    return Setup(
        replica, ttft_s, tpot_s, cold, drain_s, seed, order, held, resumes, batching, scrape_loss,
        outage, queue_timeout_s=queue_timeout_s, programs=programs, migrates=migrates,
    )  # fmt: skip


def trace(rows: Sequence[tuple[float, int, int]]) -> Trace:
    """Of (arrival, prompt, output)."""
    return Trace([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def poisson(rate: float, count: int, prompt: int, output: int, seed: int = 1) -> Trace:
    rng, at, rows = Random(seed), 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate)
        rows.append((at, prompt, output))
    return trace(rows)


def started(of: Setup, requests: Trace, prefill: int = 1, decode: int = 1) -> World:
    """A world whose pods are ready, before the first request."""
    world = World(of, requests)
    world.scale("prefill", prefill, warm=True)
    world.scale("decode", decode, warm=True)
    return world


def played(of: Setup, requests: Trace, prefill: int = 1, decode: int = 1) -> World:
    """The same after the last answer."""
    world = started(of, requests, prefill, decode)
    world.advance(inf)
    return world


def prefill_pod(world: World, index: int = 0) -> PrefillPod:
    pod = world.pods["prefill"][index]
    assert isinstance(pod, PrefillPod)
    return pod


def decode_pod(world: World, index: int = 0) -> DecodePod:
    pod = world.pods["decode"][index]
    assert isinstance(pod, DecodePod)
    return pod
