"""Requests through the engine's scheduler in virtual time, and the command that plays the texts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_measure.reproduce import chunks, cli
from argosy_measure.reproduce.items import ITEMS
from argosy_measure.reproduce.play import Engine, Request, play
from argosy_measure.reproduce.timing import LLAMA_8B, LLAMA_8B_A100, LLAMA_70B_H100, OPT_13B_A100

GUARANTEED = Engine("mixed", "GUARANTEED_NO_EVICT")


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 40), st.floats(0, 5)), max_size=12),
    st.sampled_from(["chunked", "mixed", "prefill_first"]),
    st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]),
)
def test_every_answer_has_its_tokens_and_none_comes_before_its_request(
    drawn: list[tuple[int, int, float]], batching: str, policy: str
) -> None:
    requests = [Request(prompt, output, 64, at) for prompt, output, at in drawn]
    run = play(LLAMA_8B_A100, Engine(batching, policy), requests)
    by_arrival = sorted(requests, key=lambda one: one.at_s)
    assert [one.n_output for one in run.sequences] == [one.output for one in by_arrival]
    assert all(seconds > 0 for seconds in run.ttft_s)
    assert len(run.gaps_s) == sum(one.output - 1 for one in requests)


def test_a_step_takes_what_the_fit_says_for_one_prompt_and_for_its_decodes() -> None:
    run = play(OPT_13B_A100, Engine("chunked", "GUARANTEED_NO_EVICT"), [Request(1000, 2, 2)])
    of = OPT_13B_A100.profile
    assert run.ttft_s == [pytest.approx(of.prefill_s(1000))]
    assert run.gaps_s == [pytest.approx(of.step_s(1, 1001))]


def test_llama_on_an_a100_has_the_worked_numbers() -> None:
    of = LLAMA_8B_A100.profile
    assert of.decode_base_s == pytest.approx(12.5e-3, rel=0.01)
    assert of.per_prompt_token_s == pytest.approx(0.0637e-3, rel=0.01)
    assert of.per_context_token_s == pytest.approx(0.1e-6, rel=0.01)
    assert 2 * LLAMA_8B.parameters / of.per_prompt_token_s == pytest.approx(252e12, rel=0.01)
    assert LLAMA_8B_A100.kv_tokens(256, 16384) == pytest.approx(415_000, rel=0.001)


def test_larger_limits_leave_less_room_for_kv() -> None:
    room = LLAMA_70B_H100.kv_tokens
    assert room(512, 2048) > room(512, 16384)
    assert room(64, 8192) > room(2048, 8192)


def test_a_request_that_never_fits_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="larger than the pool"):
        play(LLAMA_8B_A100, GUARANTEED, [Request(10**6, 10, 10)])


@pytest.mark.parametrize("seed", range(3))
def test_smaller_chunks_delay_first_tokens_and_shorten_gaps(seed: int) -> None:
    assert chunks.small_chunks(seed, count=5)["ttft_of_half_chunks"] > 1
    found = chunks.step_tokens(seed, count=100)
    assert found["itl_p99_of_512"] < 1 < found["ttft_of_512"]


def test_reads_of_chunks_grow_with_the_square_of_their_number() -> None:
    found = chunks.read_again(0, most_chunks=32)
    assert found["power_of_reads"] == pytest.approx(2, rel=0.05)
    assert found["power_of_reads_of_one_prompt"] == pytest.approx(1, rel=0.05)


def test_figures_of_a_run_are_written_for_the_page(tmp_path: Path) -> None:
    file = tmp_path / "new" / "figures.json"
    assert cli.main(["A22", "--seeds", "2", "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    assert run["command"].startswith("argosy reproduce A22")
    assert run["figures"].keys() == run["ranges"].keys() == chunks.read_again(0).keys()
    assert run["environment"].keys() == {"date", "processor", "cores"}


def test_the_list_has_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ITEMS)


@pytest.mark.parametrize("argv", [["Z9"], ["A22", "Z9"], [], ["A22", "--seeds", "0"]])
def test_wrong_arguments_end_with_2_and_say_what_to_write(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "write" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_ends_with_1(tmp_path: Path) -> None:
    assert cli.main(["A22", "--json", str(tmp_path)]) == 1
