"""DistServe's figure 1: OPT-13B, prompts of 512 and answers of 64 tokens, TTFT 0.4 s, TPOT 40 ms.

Its released profile is of a faster engine than the figure. Two factors are fitted, to what prefill
alone and decode alone do (5.6 and 10 requests per second and GPU); that two prefill and one decode
GPU then do 3.3 per GPU follows. Source: https://arxiv.org/abs/2401.09670, figure 1.
"""

from dataclasses import replace

import pytest

from argosy_operator.sim.world.machine import Replica, Setup
from tests.sim.fleets import played, poisson

OPT = Replica.preset("opt-13b-a100")
PREFILL, DECODE = 1.59, 1.25
"""How much longer the figure's engine takes than the released profile."""


def p90(values: list[float]) -> float:
    return sorted(values)[int(0.9 * len(values))]


def met(rate: float, prefill: int, decode: int, output: int = 64) -> bool:
    """Whether the 90th percentiles of TTFT and TPOT are within their limits."""
    profile = OPT.profile
    fitted = replace(
        profile,
        prefill_base_s=profile.prefill_base_s * PREFILL,
        per_prompt_token_s=profile.per_prompt_token_s * PREFILL,
        per_prompt_token_squared_s=profile.per_prompt_token_squared_s * PREFILL,
        decode_base_s=profile.decode_base_s * DECODE,
        per_sequence_s=profile.per_sequence_s * DECODE,
        per_context_token_s=profile.per_context_token_s * DECODE,
    )
    # one prompt a step: its prefill does not batch
    setup = Setup(replace(OPT, profile=fitted, max_num_batched_tokens=512), 0.4, 0.04)
    requests = poisson(rate, 12_000, 512, output)
    world = played(setup, requests, prefill, decode)
    settled = range(1000, len(requests))
    ttft = p90([world.first[i] - requests.arrival[i] for i in settled])
    tpot = p90([(world.last[i] - world.first[i]) / max(output - 1, 1) for i in settled])
    return ttft <= 0.4 and tpot <= 0.04


@pytest.mark.parametrize(
    ("per_gpu", "gpus", "prefill", "decode", "output", "within"),
    [(5.6, 1, 1, 1, 1, 0.05), (10.0, 1, 12, 1, 64, 0.05), (3.3, 3, 2, 1, 64, 0.06)],
    ids=["prefill alone", "decode alone", "two prefill and one decode"],
)
def test_goodput_per_gpu_is_that_of_the_paper(
    per_gpu: float, gpus: int, prefill: int, decode: int, output: int, within: float
) -> None:
    assert met(per_gpu * gpus * (1 - within), prefill, decode, output)
    assert not met(per_gpu * gpus * (1 + within), prefill, decode, output)
