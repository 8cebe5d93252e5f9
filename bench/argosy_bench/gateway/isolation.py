"""What bursts of long prompts do to streams, with prefill and decode together and apart.

Two simulated engines stand behind a gateway: two colocated ones, or one for prefill and one for
decode. One open-loop client sends both fleets the same load: short prompts with answers, and every
BURST_EVERY_S a burst of long prompts. The TPOT of the short ones is measured. Fleets take turns;
medians of the runs count.

Source of the question: DistServe (OSDI 2024), section 2: a prompt that joins a batch delays the
tokens of every stream in it.
"""

import statistics
from collections.abc import Sequence

from argosy_bench.client import Answer, Ask, play, quantile
from argosy_bench.processes import fleet
from local.figures import Figure, Figures, Target

FLEETS = {"colocated": ("colocated", "colocated"), "apart": ("prefill", "decode")}
LOAD_S = 24.0
SHORT_EVERY_S, SHORT_TOKENS, OUTPUT_TOKENS = 0.2, 64, 32
BURST_EVERY_S, BURST, LONG_TOKENS = 2.0, 6, 1900
"""A long prompt takes 237 ms on the preset, so bursts keep one prefill engine busy for 0.71 of the
time, and two colocated ones for half of that."""

FIGURES = (
    Figure("tpot_p90_ms_colocated", "ms", digits=1),
    Figure("tpot_p90_ms_apart", "ms", digits=1),
    Figure("tpot_p90_isolation_ratio", target=Target("<=", 0.6), digits=2),
    Figure("ttft_p90_ms_colocated", "ms", digits=0),
    Figure("ttft_p90_ms_apart", "ms", digits=0),
    Figure("isolation_streams_broken", target=Target("==", 0), digits=0),
)


def load() -> list[Ask]:
    """Return every request, in the order in which it is due."""
    short = [
        (SHORT_EVERY_S * n, SHORT_TOKENS, OUTPUT_TOKENS)
        for n in range(round(LOAD_S / SHORT_EVERY_S))
    ]
    long = [
        (BURST_EVERY_S * (n + 0.5), LONG_TOKENS, 2)
        for n in range(round(LOAD_S / BURST_EVERY_S))
        for _ in range(BURST)
    ]
    ordered = sorted([*short, *long])
    return [Ask(n, prompt, tokens, at_s) for n, (at_s, prompt, tokens) in enumerate(ordered)]


def summarise(figures: Figures, runs: dict[str, list[Sequence[Answer]]]) -> None:
    """Put every figure. `runs`: the answers of each run, by fleet."""
    for name, answers in runs.items():
        short = [[one for one in run if one.ask.prompt_tokens == SHORT_TOKENS] for run in answers]
        for what in ("tpot", "ttft"):
            p90_s = [quantile((getattr(one, f"{what}_s") for one in run), 0.9) for run in short]
            figures.put(f"{what}_p90_ms_{name}", 1000 * statistics.median(p90_s))
    ratio = figures.values["tpot_p90_ms_apart"] / figures.values["tpot_p90_ms_colocated"]
    figures.put("tpot_p90_isolation_ratio", ratio)
    everyone = [one for answers in runs.values() for run in answers for one in run]
    figures.put("isolation_streams_broken", sum(not one.whole for one in everyone))


async def measure(figures: Figures, runs: int) -> None:
    """Put every figure; a run of both fleets takes about a minute."""
    figures.declare(FIGURES)
    answers: dict[str, list[Sequence[Answer]]] = {name: [] for name in FLEETS}
    for _ in range(runs):
        for name, roles in FLEETS.items():
            async with fleet(roles) as (front, _engines):
                answers[name].append(await play(front.port, load()))
    summarise(figures, answers)
