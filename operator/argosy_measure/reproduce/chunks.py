"""What chunks of prompts cost, and what they are good for: A21, A22 and C6."""

from dataclasses import replace
from math import log2
from statistics import mean, quantiles

from argosy_measure.reproduce.play import Engine, Request, play
from argosy_measure.reproduce.timing import LLAMA_8B_A100, OPT_13B_A100
from argosy_measure.workloads import WORKLOADS

SATURATION = 512
"""Tokens from which a prompt saturates an A100 that serves 13B, as the text says."""
APART_S = 10.0
"""Between two requests: each is served alone."""
CHUNKED = Engine("chunked", "MAX_UTILIZATION")


def small_chunks(seed: int, count: int = 60) -> dict[str, float]:
    """A21: prompts of DistServe's summarization (1,738 tokens), one at a time."""
    prompts = WORKLOADS["summarization"].requests(1.0, count, seed).prompt
    requests = [Request(prompt, 1, 1, APART_S * at) for at, prompt in enumerate(prompts)]
    whole, half = (
        mean(play(OPT_13B_A100, replace(CHUNKED, max_num_batched_tokens=tokens), requests).ttft_s)
        for tokens in (SATURATION, SATURATION // 2)
    )
    return {"ttft_of_half_chunks": half / whole}


def read_again(_seed: int, most_chunks: int = 64) -> dict[str, float]:
    """A22: how much KV chunks read again, for a prompt of twice as many chunks, as a power of two.

    `of_one_prompt`: the same prompt in chunks of half the length.
    """

    def reads(prompt: int, tokens: int) -> int:
        engine = replace(CHUNKED, max_num_batched_tokens=tokens)
        return play(LLAMA_8B_A100, engine, [Request(prompt, 1, 1)]).read_again

    prompt, half = most_chunks * SATURATION, SATURATION // 2
    most = reads(prompt, SATURATION)
    return {
        "power_of_reads": log2(most / reads(prompt // 2, SATURATION)),
        "power_of_reads_of_one_prompt": log2(reads(prompt, half) / most),
    }


def step_tokens(seed: int, count: int = 1000, rate: float = 4.0) -> dict[str, float]:
    """C6: the chatbot's requests on Llama-3.1-8B, four a second; 512 over 2,048 tokens a step."""
    trace = WORKLOADS["chatbot"].requests(rate, count, seed)
    requests = [
        Request(prompt, output, output, at)
        for at, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True)
    ]
    few, many = (
        play(LLAMA_8B_A100, replace(CHUNKED, max_num_batched_tokens=tokens), requests)
        for tokens in (512, 2048)
    )
    return {
        "itl_p99_of_512": quantiles(few.gaps_s, n=100)[98] / quantiles(many.gaps_s, n=100)[98],
        "ttft_of_512": mean(few.ttft_s) / mean(many.ttft_s),
    }
