"""DistServe's first figure: how much more two prefill GPUs and one decode GPU serve than one does.

OPT-13B on A100, prompts of 512 and answers of 64 tokens, TTFT 0.4 s and TPOT 40 ms, each at its
90th percentile. The released profile is of a faster engine than the figure's, so two factors are
fitted to what the figure has for prefill alone and for decode alone (5.6 and 10 requests per second
and GPU). The rest follows: 3.3 per GPU apart, 1.6 together, 2.1 times as much. `parts` puts these
figures.

Source: https://arxiv.org/abs/2401.09670, figure 1.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from argosy_law.sim.replay import Replicas, static
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import Replica, Setup
from local.figures import Figure, Figures, Target

TTFT_S, TPOT_S, SHARE = 0.4, 0.04, 0.9
PROMPT, OUTPUT = 512, 64
PREFILL, DECODE = 1.59, 1.25
"""How much longer the figure's engine takes than the released profile."""
APART: Replicas = {"prefill": 2, "decode": 1}
TOGETHER: Replicas = {"colocated": 1}
REQUESTS, SETTLED = 12_000, 1000
CLOSE = 1.005
"""Ratio of two rates between which a goodput is known."""
PAPER = {"distserve_together": 1.6, "distserve_apart": 3.3, "distserve_apart_over_together": 2.1}
WITHIN = {"distserve_together": 0.05, "distserve_apart": 0.06,
          "distserve_apart_over_together": 0.05}  # fmt: skip

FIGURES = (
    Figure("distserve_prefill_alone", "1/s"),
    Figure("distserve_decode_alone", "1/s"),
    Figure("distserve_together", "1/s"),
    Figure("distserve_apart", "1/s"),
    Figure("distserve_apart_over_together"),
    *(Figure(f"{name}_off", target=Target("<=", within)) for name, within in WITHIN.items()),
)
"""Requests per second and GPU; `…_off` is the distance from the paper's figure, as a share of it.
The first two are what the factors were fitted to."""


def fitted(step_tokens: int) -> Setup:
    """The figure's engine, with at most so many prompt tokens in a step."""
    replica = Replica.preset("opt-13b-a100")
    of = replica.profile
    profile = replace(
        of,
        prefill_base_s=of.prefill_base_s * PREFILL,
        per_prompt_token_s=of.per_prompt_token_s * PREFILL,
        per_prompt_token_squared_s=of.per_prompt_token_squared_s * PREFILL,
        decode_base_s=of.decode_base_s * DECODE,
        per_sequence_s=of.per_sequence_s * DECODE,
        per_context_token_s=of.per_context_token_s * DECODE,
    )
    replica = replace(replica, profile=profile, max_num_batched_tokens=step_tokens)
    return Setup(replica, TTFT_S, TPOT_S, batching="prefill-first")


def step_tokens(replicas: Replicas) -> int:
    """Prompt tokens in a step: apart one prompt, as in the fit; together as many prompts as wait,
    up to OPT's longest context, because the paper's is vLLM, which does so."""
    return 2048 if "colocated" in replicas else PROMPT


def requests(rate: float, output: int, seed: int = 1) -> Trace:
    """Poisson arrivals of equal prompts and answers."""
    rng, at, trace = Random(seed), 0.0, Trace([], [], [])  # noqa: S311 (a load, not a secret)
    for _ in range(REQUESTS):
        at += rng.expovariate(rate)
        trace.arrival.append(at)
        trace.prompt.append(PROMPT)
        trace.output.append(output)
    return trace


def met(rate: float, replicas: Replicas, output: int = OUTPUT) -> bool:
    """Whether the 90th percentiles of TTFT and TPOT are within their limits at this rate."""
    trace = requests(rate, output)
    world = static(fitted(step_tokens(replicas)), trace, replicas).world
    settled = range(SETTLED, len(trace))
    ttft = [world.first[i] - trace.arrival[i] for i in settled]
    tpot = [(world.last[i] - world.first[i]) / max(output - 1, 1) for i in settled]
    return percentile(ttft) <= TTFT_S and percentile(tpot) <= TPOT_S


def percentile(values: list[float]) -> float:
    """The value below which `SHARE` of them are."""
    return sorted(values)[int(SHARE * len(values))]


def most(met_at: Callable[[float], bool], low: float, high: float) -> float:
    """The highest rate that is met, within `CLOSE`. ValueError if it is not in [low, high)."""
    if not met_at(low) or met_at(high):
        raise ValueError(f"the goodput is not between {low:g} and {high:g} requests per second")
    while high / low > CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if met_at(middle) else (low, middle)
    return low


def per_gpu(replicas: Replicas, counted: int, about: float, output: int = OUTPUT) -> float:
    """Requests per second and GPU, by search within 15 % of `about`; `counted` GPUs."""
    return most(lambda rate: met(rate * counted, replicas, output), 0.85 * about, 1.15 * about)


def measure(figures: Figures) -> None:
    """Put all figures."""
    figures.put("distserve_prefill_alone", per_gpu({"prefill": 1, "decode": 1}, 1, 5.6, output=1))
    figures.put("distserve_decode_alone", per_gpu({"prefill": 12, "decode": 1}, 1, 10.0))
    together, apart = per_gpu(TOGETHER, 1, 1.6), per_gpu(APART, 3, 3.3)
    found = {
        "distserve_together": together,
        "distserve_apart": apart,
        "distserve_apart_over_together": apart / together,
    }
    for name, value in found.items():
        figures.put(name, value)
        figures.put(f"{name}_off", abs(value / PAPER[name] - 1))
