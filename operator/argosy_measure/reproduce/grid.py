"""Llama-3.3-70B on four H100 over two limits of a step: D4 to D9.

Prompts and answers have 2,048 tokens, as in TensorRT-LLM's own benchmark: the text's tokens per
request (2,466.8 / 1.2045) say so of the answers. Throughput is that of all requests at once. TTFT
and ITL are those of one request alone: the text's do not change with the load. Nothing is drawn, so
that all seeds are alike.
"""

from functools import cache

from argosy_measure.reproduce.play import Engine, Request, Run, play
from argosy_measure.reproduce.timing import LLAMA_70B_H100

TOKENS = 2048
"""Of a prompt, and of an answer."""
COUNT = 320
"""Requests: three times as many as run at once."""
SEQUENCES, STEP_TOKENS = (64, 512, 2048), (2048, 8192, 16384)
"""The limits that the text tries."""
DEFAULT = (2048, 8192)


@cache
def throughput(max_num_seqs: int, max_num_batched_tokens: int, count: int) -> float:
    """Return the tokens per second of all requests at once."""
    return _run(max_num_seqs, max_num_batched_tokens, count).output_tokens_per_s


@cache
def latency_s(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[float, float]:
    """Return (TTFT, mean ITL) of one request alone."""
    run = _run(max_num_seqs, max_num_batched_tokens, 1)
    return run.ttft_s[0], run.tpot_s[0]


def _run(max_num_seqs: int, max_num_batched_tokens: int, count: int) -> Run:
    engine = Engine("chunked", "GUARANTEED_NO_EVICT", max_num_seqs, max_num_batched_tokens)
    return play(LLAMA_70B_H100, engine, [Request(TOKENS, TOKENS, TOKENS)] * count)


def case(_seed: int) -> dict[str, float]:
    """D5: the figures of the text's tables."""
    ttft_s, itl_s = latency_s(512, 8192)
    rates = {f"throughput_of_{n}_sequences": throughput(n, 8192, COUNT) for n in SEQUENCES}
    return rates | {"ttft_ms_alone": 1000 * ttft_s, "itl_ms_alone": 1000 * itl_s}


def sequences(_seed: int, count: int = COUNT) -> dict[str, float]:
    """D6: throughput and ITL over the sequences in a step."""
    some, best, most = (throughput(n, 8192, count) for n in SEQUENCES)
    return {
        "throughput_of_512_over_64_sequences": best / some,
        "throughput_of_512_over_2048_sequences": best / most,
        "itl_of_512_over_64_sequences": latency_s(512, 8192)[1] / latency_s(64, 8192)[1],
    }


def _search(count: int) -> dict[tuple[int, int], float]:
    return {(n, m): throughput(n, m, count) for n in SEQUENCES for m in STEP_TOKENS}


def default_limits(_seed: int, count: int = COUNT) -> dict[str, float]:
    """D4: the best of the grid over the default, and the tokens of a step that it has."""
    found = _search(count)
    best = max(found, key=found.__getitem__)
    return {"best_over_default_limits": found[best] / found[DEFAULT], "best_step_tokens": best[1]}


def tuned(_seed: int, count: int = COUNT) -> dict[str, float]:
    """D8: the limits that the text found, over the default."""
    return {"tuned_over_default_limits": throughput(512, 2048, count) / throughput(*DEFAULT, count)}


def search(_seed: int, count: int = COUNT) -> dict[str, float]:
    """D9: the best of the grid over the worst."""
    found = _search(count).values()
    return {"best_over_worst_limits": max(found) / min(found)}
