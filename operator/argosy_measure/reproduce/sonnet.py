"""Dynamic-Sonnet on Llama-3.1-8B and one A100: what lengths do to a scheduler (B1 to B12).

All requests come at once. `trt` is TensorRT-LLM as the text ran it: whole prompts beside decodes,
and a reservation of `max_tokens` for each answer. `max` is the same with MAX_UTILIZATION. `vllm` is
vLLM 0.6: prompts in steps of their own, and MAX_UTILIZATION.

Prompts have the means and the maxima that the text prints for 1K and 8K; those between are on the
line of their logarithms. The text does not print the lengths of answers. Here each token ends the
answer with the same chance, as a period does, so that answers have ANSWER tokens in the mean, and
their clients allow MOST. A fixed twin has both means as its lengths, and its clients allow exactly
the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from statistics import mean
from typing import Literal

from argosy_measure.reproduce.play import Engine, Request, play
from argosy_measure.reproduce.timing import LLAMA_8B_A100

ANSWER = 256
"""Mean tokens of an answer: a guess, a quarter of the smallest `max_tokens` of the text."""
MOST = 2048
"""`max_tokens` where the text names none: the middle of the 1K to 4K that it names elsewhere."""
THOUSANDS = (1, 2, 4)
"""`max_tokens` of the second experiment, in 1,024 tokens."""


@dataclass(frozen=True, slots=True)
class Subset:
    """How long the prompts of a subset are: normal, at most `longest`."""

    mean: float
    longest: int
    count: int
    """Requests. The data set has 1,024 of each; half of those of 8K do, since its batches are
    small."""

    @property
    def deviation(self) -> float:
        """Return the standard deviation of which the longest of 1,024 draws is `longest`."""
        return (self.longest - self.mean) / 3.24


SUBSETS: Mapping[str, Subset] = {
    "1k": Subset(512, 773, 1024),
    "2k": Subset(1234, 1665, 1024),
    "4k": Subset(2971, 3583, 1024),
    "8k": Subset(7153, 7709, 512),
}
"""1K and 8K as the text has them. 512·(7153/512)^(1/3) = 1,234 and so on."""
ENGINES: Mapping[str, Engine] = {
    "trt": Engine("mixed", "GUARANTEED_NO_EVICT", 256, 16384),
    "max": Engine("mixed", "MAX_UTILIZATION", 256, 16384),
    "vllm": Engine("prefill_first", "MAX_UTILIZATION", 256, 16384),
}
Lengths = Literal["dynamic", "fixed", "prompts", "answers"]
"""Which lengths vary: both, none, or one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A subset, or a twin of it."""

    subset: str
    seed: int
    lengths: Lengths = "dynamic"
    most: int = MOST
    """`max_tokens`."""
    answer: int = ANSWER
    """Mean tokens of an answer."""
    count: int = 0
    """Requests; 0: those of the subset."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is said of a run."""

    throughput: float
    """Tokens of answers per second."""
    decodes: float
    """Mean batch over the steps with decodes."""
    batch: float
    """Mean batch over all steps."""
    tpot_s: float
    preemptions: float
    """Per request."""


def draw(load: Load) -> list[Request]:
    """Return the requests of a load."""
    of = SUBSETS[load.subset]
    rng = Random(f"{load.subset} {load.seed}")  # noqa: S311 (a load, not a secret)
    count = load.count or of.count
    prompts = [
        min(max(round(rng.gauss(of.mean, of.deviation)), 1), of.longest) for _ in range(count)
    ]
    answers = [min(1 + int(rng.expovariate(1 / load.answer)), load.most) for _ in range(count)]
    allowed = [load.most] * count
    if load.lengths in ("fixed", "answers"):
        prompts = [round(mean(prompts))] * count
    if load.lengths in ("fixed", "prompts"):
        answers = allowed = [round(mean(answers))] * count
    return [Request(*each) for each in zip(prompts, answers, allowed, strict=True)]


@cache
def serve(engine: Engine, load: Load) -> Served:
    """Serve a load. Several items ask for the same one: it is played once."""
    run = play(LLAMA_8B_A100, engine, draw(load))
    return Served(
        run.output_tokens_per_s,
        run.batch_of_decodes,
        run.batch_of_all,
        mean(run.tpot_s),
        run.preemptions / len(run.sequences),
    )


def _fixed_over_dynamic(engine: str, what: str, seed: int, subset: str, count: int = 0) -> float:
    """Return a field of `Served` for the fixed twin, over that of the subset."""
    dynamic = Load(subset=subset, seed=seed, count=count)
    fixed = replace(dynamic, lengths="fixed")
    ends = [getattr(serve(ENGINES[engine], load), what) for load in (fixed, dynamic)]
    return float(ends[0] / ends[1])


def policies_differ(seed: int, count: int = 0) -> dict[str, float]:
    """B1: 2K, and what MAX_UTILIZATION gains over GUARANTEED_NO_EVICT with each kind of lengths."""

    def gain(lengths: Lengths) -> float:
        load = Load(subset="2k", seed=seed, lengths=lengths, count=count)
        found = [serve(ENGINES[name], load).throughput for name in ("max", "trt")]
        return found[0] / found[1]

    return {"policies_on_dynamic": gain("dynamic"), "policies_on_fixed": gain("fixed")}


def subsets(seed: int) -> dict[str, float]:
    """B2: means and maxima of the prompts."""
    found: dict[str, float] = {}
    for name in SUBSETS:
        prompts = [one.prompt for one in draw(Load(subset=name, seed=seed, count=1024))]
        found |= {f"{name}_prompt_mean": mean(prompts), f"{name}_prompt_longest": max(prompts)}
    return found


def twins(seed: int) -> dict[str, float]:
    """B3: tokens of the fixed twin over those of the subset, for the subset that differs most."""
    off = {}
    for name in SUBSETS:
        dynamic, fixed = (
            sum(one.prompt + one.output for one in draw(Load(subset=name, seed=seed, lengths=way)))
            for way in ("dynamic", "fixed")
        )
        off[abs(fixed / dynamic - 1)] = fixed / dynamic
    return {"twin_tokens": off[max(off)]}


def throughput(seed: int, count: int = 0) -> dict[str, float]:
    """B4: throughput of the twin over that of the subset."""
    return {
        f"{name}_{engine}_fixed_throughput": _fixed_over_dynamic(
            engine, "throughput", seed, name, count
        )
        for name in SUBSETS
        for engine in ("trt", "vllm")
    }


def reservations(seed: int, count: int = 0) -> dict[str, float]:
    """B5: batch of decodes of the twin, whose reservation is exact, over that of the subset."""
    return {
        f"{name}_trt_fixed_batch": _fixed_over_dynamic("trt", "decodes", seed, name, count)
        for name in ("1k", "8k")
    }


def batches(seed: int, count: int = 0) -> dict[str, float]:
    """B6: batches of the twin over those of the subset, in steps of decodes and in all steps.

    `mixed_over_prompts_first`: throughput on the subset, with the same policy.
    """
    load = Load(subset="1k", seed=seed, count=count)
    mixed, first = (serve(ENGINES[name], load).throughput for name in ("max", "vllm"))
    decodes, every = (
        _fixed_over_dynamic("vllm", what, seed, "1k", count) for what in ("decodes", "batch")
    )
    return {
        "1k_vllm_fixed_batch": decodes,
        "1k_vllm_fixed_batch_of_all_over_decodes": every / decodes,
        "1k_mixed_over_prompts_first": mixed / first,
    }


def paces(seed: int, count: int = 0) -> dict[str, float]:
    """B8: TPOT and batch of 8K over those of 1K, and TPOT of the twin over that of the subset."""
    found: dict[str, float] = {}
    for engine in ("trt", "vllm"):
        long, short = (
            serve(ENGINES[engine], Load(subset=name, seed=seed, count=count))
            for name in ("8k", "1k")
        )
        found |= {
            f"{engine}_tpot_of_8k": long.tpot_s / short.tpot_s,
            f"{engine}_batch_of_8k": long.decodes / short.decodes,
            f"1k_{engine}_fixed_tpot": _fixed_over_dynamic(engine, "tpot_s", seed, "1k", count),
        }
    return found


def allowances(seed: int, count: int = 0) -> dict[str, float]:
    """B10: 4K, and what MAX_UTILIZATION gains while `max_tokens` grows; batches likewise."""
    found: dict[str, float] = {}
    for thousand in THOUSANDS:
        load = Load(subset="4k", seed=seed, most=1024 * thousand, count=count)
        most, guaranteed = (serve(ENGINES[name], load) for name in ("max", "trt"))
        found |= {
            f"policies_at_{thousand}k": most.throughput / guaranteed.throughput,
            f"policies_batch_at_{thousand}k": most.decodes / guaranteed.decodes,
        }
    found["policies_at_4k_over_1k"] = found["policies_at_4k"] / found["policies_at_1k"]
    return found


def preemptions(seed: int, count: int = 512) -> dict[str, float]:
    """B11: 2K with answers of 1,024 tokens, all of them as long as allowed.

    MAX_UTILIZATION admits more than will fit, and GUARANTEED_NO_EVICT does not. With `swap` the KV
    of preempted requests is kept on the host.
    """
    load = Load(subset="2k", seed=seed, lengths="prompts", answer=1024, count=count)
    guaranteed = serve(ENGINES["trt"], load)
    recompute = serve(ENGINES["max"], load)
    swap = serve(replace(ENGINES["max"], swaps=True), load)
    return {
        "preempting_over_guaranteed": recompute.throughput / guaranteed.throughput,
        "preempting_batch_over_guaranteed": recompute.decodes / guaranteed.decodes,
        "swapping_over_recomputing": swap.throughput / recompute.throughput,
        "preemptions_per_request": recompute.preemptions,
    }


def varying(seed: int, count: int = 0) -> dict[str, float]:
    """B12: throughput where only prompts vary, over that where only answers do; and that of
    TensorRT-LLM over vLLM's.

    Mixed steps lift vLLM's to that of `max`, and the other policy lifts TensorRT-LLM's to the same:
    the former gain is the larger one where TensorRT-LLM is ahead.
    """
    load = Load(subset="1k", seed=seed, count=count)
    prompts, answers, trt = (
        serve(ENGINES["trt"], replace(load, lengths=way)).throughput
        for way in ("prompts", "answers", "dynamic")
    )
    return {
        "varying_prompts_over_varying_answers": prompts / answers,
        "1k_trt_over_vllm": trt / serve(ENGINES["vllm"], load).throughput,
    }
