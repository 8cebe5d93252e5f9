"""What a user's engine costs a step: its constants are found from outside, or refused."""

import asyncio
import sys
from pathlib import Path

import pytest

from argosy_bench.processes import engine
from argosy_law.estimate.capacity import PRESETS
from argosy_measure import profiles
from argosy_measure.about import About, find_kv_tokens
from argosy_measure.client import Answer, Request
from argosy_measure.fit import Fit
from argosy_measure.profile import (
    MeasureError,
    _parser,
    choose_points,
    decode_row,
    main,
    prefill_row,
    warn,
)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4000"} 1.0', 64_000),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ('# TYPE x\nsglang:max_total_num_tokens{model_name="m"} 480000.0\n', 480_000),
        ("sglang:max_total_num_tokens 1.5e5", 150_000),
        ("sglang:max_total_num_tokens -1", None),
        ("up 1", None),
        ("", None),
    ],
)
def test_kv_tokens_are_read_from_the_metrics_of_each_engine(page, tokens):
    assert find_kv_tokens(page) == tokens


def answer(first: float, steps: int, step_s: float, tokens: int | None = None) -> Answer:
    events = [first + step_s * at for at in range(steps)]
    request = Request((1,) * 100, steps)
    return Answer(request, 0.0, events=events, tokens=tokens or steps, prompt_tokens=100)


def test_a_decode_row_is_of_the_time_in_which_the_whole_batch_decodes():
    alone = answer(0.0, 10, 0.001)  # before the other begins, steps are short
    alone.events += [1.0 + 0.02 * at for at in range(40)]
    alone.tokens = 50
    row = decode_row([alone, answer(1.0, 40, 0.02)])
    assert row.seconds == pytest.approx(0.02)
    assert row.amounts[:2] == (1.0, 2.0)
    # 37 steps from the fourth on: 13 and 3 tokens are generated before, and 18 until the middle.
    assert row.amounts[2] == pytest.approx((101 + 13 + 18) + (101 + 3 + 18))


def test_several_tokens_in_one_event_are_as_many_steps():
    assert decode_row([answer(0.0, 40, 0.06, tokens=118)]).seconds == pytest.approx(0.02)


def test_a_batch_that_does_not_decode_together_has_no_row():
    assert decode_row([answer(0.0, 40, 0.02), answer(0.8, 40, 0.02)]) is None


def test_a_prompt_that_takes_no_longer_than_nothing_is_refused():
    assert prefill_row(10, [0.3, 9.0, 0.2], [0.1]).seconds == pytest.approx(0.2)
    with pytest.raises(MeasureError):
        prefill_row(10, [0.3], [0.4])


def test_a_constant_whose_error_is_more_than_half_of_it_is_named():
    prefill = Fit((0.02, 1e-4, 0.0), (0.011, 1e-5, 0.0))
    [sentence] = warn((prefill, Fit((0.02, 1e-4, 1e-7), (0.001, 4e-5, 1e-8))))
    assert "prefill base" in sentence
    assert "--prompts" in sentence


def test_what_the_engine_has_no_room_for_is_left_out():
    given = _parser().parse_args(["http://h", "--batches", "1,8,32", "--contexts", "128,1024"])
    points = choose_points(given, About("m", 1100, 16_000, 16, 512))
    assert max(points.prompts) == 512
    assert points.batches == ((1, 128), (8, 128), (1, 1024))


def test_wrong_flags_are_refused_with_2_and_a_silent_server_with_3(capsys, tmp_path):
    for words in (["localhost"], ["http://h", "--batches", "0"], ["http://h", "--out", "/no/a"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    assert main(["http://127.0.0.1:9", "--out", str(tmp_path / "p")]) == 3
    assert not (tmp_path / "p").exists()
    assert "127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_constants_of_a_simulated_engine_are_found_from_outside(tmp_path: Path):
    async with engine("e") as server:
        words = f"""-m argosy profile {server.url} --admin http://127.0.0.1:{server.admin}
            --prompts 128,256,512,1024,2000 --batches 1,8,32 --contexts 64,1024 --repeats 3
            --name a100 --out {tmp_path / "p.yaml"}"""
        process = await asyncio.create_subprocess_exec(sys.executable, *words.split())
        assert await process.wait() == 0
    [pod] = profiles.read(str(tmp_path / "p.yaml"))
    found, true = pod.replica.profile, PRESETS["opt-13b-a100"]
    assert found.kv_tokens == true.kv_tokens // 32 * 32
    assert (pod.replica.max_num_seqs, pod.replica.max_num_batched_tokens) == (256, 2048)
    # The simulated engine makes up for steps that a busy machine delays, so long times are exact;
    # what a busy machine adds to a first token is in the base of a prefill.
    assert found.decode_base_s == pytest.approx(true.decode_base_s, rel=0.1)
    assert found.per_context_token_s == pytest.approx(true.per_context_token_s, rel=0.15)
    slopes = [
        1500 * of.per_prompt_token_s + of.per_prompt_token_squared_s * (2000**2 - 500**2)
        for of in (found, true)
    ]
    assert slopes[0] == pytest.approx(slopes[1], rel=0.15)
