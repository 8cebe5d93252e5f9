"""Which study shows which claim of the four texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy_measure.reproduce import chunks, grid, sonnet

Study = Callable[[int], dict[str, float]]
"""A seed → named figures."""


@dataclass(frozen=True, slots=True)
class Item:
    """One claim."""

    says: str
    """What the text says."""
    study: Study
    kind: str = "virtual time"
    """What it needs. So far no study needs a GPU or weights."""


ITEMS: Mapping[str, Item] = {
    "A21": Item(
        "chunks of half the length that saturates the GPU double TTFT of longer prompts",
        chunks.small_chunks,
    ),
    "A22": Item(
        "each chunk reads the KV of those before it: reads grow with the square of their number",
        chunks.read_again,
    ),
    "B1": Item(
        "fixed lengths hide what a scheduler does; dynamic ones must be measured",
        sonnet.policies_differ,
    ),
    "B2": Item(
        "Dynamic-Sonnet: prompts in four subsets, of at most 1K to 8K tokens", sonnet.subsets
    ),
    "B3": Item(
        "Llama-3.1-8B on an A100, all requests at once, random twins of fixed length", sonnet.twins
    ),
    "B4": Item(
        "with short prompts, fixed lengths give far more throughput than dynamic ones",
        sonnet.throughput,
    ),
    "B5": Item(
        "`GUARANTEED_NO_EVICT` reserves `max_tokens`, which is wasted when answers end early",
        sonnet.reservations,
    ),
    "B6": Item(
        "without mixed steps vLLM has smaller batches of decodes under dynamic lengths",
        sonnet.batches,
    ),
    "B8": Item("TPOT grows with the length of prompts though the batch shrinks", sonnet.paces),
    "B10": Item("the larger `max_tokens` is, the more `MAX_UTILIZATION` wins", sonnet.allowances),
    "B11": Item("too many preemptions lower the throughput", sonnet.preemptions),
    "B12": Item(
        "dynamic answers cost more than dynamic prompts; mixed steps help most", sonnet.varying
    ),
    "C6": Item(
        "small steps shorten gaps between tokens, large ones TTFT; 512 or 2,048 tokens",
        chunks.step_tokens,
    ),
    "D4": Item(
        "2,048 requests and 8,192 tokens by default; search the grid of both", grid.default_limits
    ),
    "D5": Item("Llama-3.3-70B on four H100: throughput and latency over both limits", grid.case),
    "D6": Item(
        "64 requests in a step are a bottleneck, 512 are best, latency stays", grid.sequences
    ),
    "D8": Item("tuned limits give 21 % more throughput, 58 % more than the baseline", grid.tuned),
    "D9": Item("the limits are found by measurement", grid.search),
}
"""The id of `docs/explanation/sources.md` → its claim."""
