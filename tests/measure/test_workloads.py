"""Workloads: lengths have their means, arrivals are the same ones at every rate."""

from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_measure.workloads import WORKLOADS, WorkloadError, read


@pytest.mark.parametrize("name", WORKLOADS)
def test_lengths_of_a_named_workload_have_its_means(name: str) -> None:
    of = read(name, 10**6)
    drawn = of.requests(1.0, 4000, 0)
    assert mean(drawn.prompt) == pytest.approx(of.prompt, rel=0.05)
    assert mean(drawn.output) == pytest.approx(of.output, rel=0.05)
    assert max(p + o for p, o in zip(drawn.prompt, drawn.output, strict=True)) <= 2048


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.floats(0, 2), st.integers(0, 99))
def test_no_request_is_empty_or_longer_than_a_pod_holds(
    prompt: int, output: int, spread: float, seed: int
) -> None:
    most = 2 * (prompt + output)
    drawn = read(f"{prompt},{output},{spread:.3f}", most).requests(1.0, 20, seed)
    assert min(drawn.prompt) >= 1
    assert min(drawn.output) >= 1
    assert max(p + o for p, o in zip(drawn.prompt, drawn.output, strict=True)) <= most


@given(st.integers(0, 99), st.floats(0.1, 100))
def test_at_another_rate_the_same_requests_come(seed: int, rate: float) -> None:
    of = WORKLOADS["code"]
    slow, fast = of.requests(rate, 30, seed), of.requests(10 * rate, 30, seed)
    assert (slow.prompt, slow.output) == (fast.prompt, fast.output)
    assert slow.arrival == pytest.approx([10 * at for at in fast.arrival])


def test_recorded_lengths_stay_together_and_keep_what_is_cached(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text(
        "arrival_s,prompt_tokens,output_tokens,cached_prefix_tokens\n0,10,1,5\n1,30,3,15\n"
    )
    of = read(str(file), 1000)
    drawn = of.requests(2.0, 50, 0)
    assert {*zip(drawn.prompt, drawn.output, drawn.cached, strict=True)} == {
        (10, 1, 5),
        (30, 3, 15),
    }
    assert (of.prompt, of.output) == (20, 2)


@pytest.mark.parametrize(
    "text", ["chat", "5", "1,2,3,4", "0,5", "5,0", "5,5,-1", "5,5,3", "nan,5", "900,200", "", ","]
)
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        read(text, 2000)


def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,x\n")
    with pytest.raises(WorkloadError, match="line 2"):
        read(str(file), 1000)
