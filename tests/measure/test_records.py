"""Records that are written and read again, and those of other clients.

`guidellm.json` (0.8.1) and `aiperf.jsonl` (0.13.0) were measured with a simulated engine; requests
and fields that are not read are cut off.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_measure import records
from argosy_measure.score import Limits, Row, score

HERE = Path(__file__).parent / "records"
LIMITS = Limits(0.2, 0.05, 0.95)
seconds = st.floats(0, 1e6)
row = st.builds(
    Row,
    at_s=seconds,
    ended_s=seconds,
    ttft_s=st.none() | seconds,
    tpot_s=st.none() | seconds,
    tokens=st.integers(0, 10**6),
    prompt_tokens=st.none() | st.integers(1, 10**6),
    late_s=seconds,
    status=st.none() | st.integers(100, 599),
    error=st.none() | st.text(min_size=1),
    id=st.text(),
)


def write(*rows: Row) -> str:
    file = io.StringIO()
    records.begin(file, LIMITS, url="http://x")
    for one in rows:
        records.append(file, one)
    return file.getvalue()


@given(st.lists(row, min_size=1))
def test_rows_are_read_as_they_were_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("records") / "a.jsonl"
    path.write_text(write(*rows))
    got, limits = records.read(path)
    assert sorted(got, key=repr) == sorted(rows, key=repr)
    assert limits == LIMITS


def test_a_last_line_that_a_crash_cut_is_left_out(tmp_path: Path):
    path, one = tmp_path / "a.jsonl", Row(0.0, 1.0, 0.1, 0.02, 9)
    path.write_text(write(one, replace(one, at_s=1.0))[:-7])
    assert records.read(path)[0] == [one]


def test_the_requests_of_guidellm_are_read():
    rows, limits = records.read(HERE / "guidellm.json")
    assert limits is None
    assert [one.error is None for one in rows].count(True) == 3
    (failed,) = (one for one in rows if one.error)
    assert "400 Bad Request" in failed.error
    assert min(one.at_s for one in rows) == 0
    whole = [one for one in rows if not one.error]
    assert {one.tokens for one in whole} == {5}
    for one in whole:
        # Five tokens of the simulated engine, about 20 ms apart.
        assert 0.01 < one.tpot_s < 0.03
        assert one.ended_s - one.at_s == pytest.approx(one.ttft_s + 4 * one.tpot_s, abs=0.01)


def test_the_requests_of_aiperf_are_read_with_the_tokens_that_the_server_counted():
    rows, _ = records.read(HERE / "aiperf.jsonl")
    whole = [one for one in rows if not one.error]
    assert [one.tokens for one in whole] == [10, 10]
    for one in whole:
        assert 0.01 < one.tpot_s < 0.03
        assert one.ended_s - one.at_s == pytest.approx(one.ttft_s + 9 * one.tpot_s, abs=0.01)
    (failed,) = (one for one in rows if one.error)
    assert "no model" in failed.error


def test_the_requests_of_vllm_bench_serve_are_read(tmp_path: Path):
    # The keys that vllm/benchmarks/serve.py saves; a failed request has ttft 0 and a traceback.
    path = tmp_path / "vllm.json"
    saved = {
        "completed": 2,
        "start_times": [100.0, 101.0, 102.0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.02, 0.04], [], []],
        "output_lens": [3, 1, 0],
        "input_lens": [8, 9, 10],
        "errors": ["", "", "Traceback (most recent call last):\n  …\nOSError: refused\n"],
        "generated_texts": ["a", "b", ""],
    }
    path.write_text(json.dumps(saved))
    first, second, third = records.read(path)[0]
    assert (first.at_s, first.ttft_s, first.tokens, first.prompt_tokens) == (0, 0.1, 3, 8)
    assert first.tpot_s == pytest.approx(0.03)
    assert (second.tpot_s, second.error) == (None, None)
    assert (third.ttft_s, third.error) == (None, "OSError: refused")
    assert score([first, second, third], LIMITS).failed == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "[]",
        "{}",
        '{"a": 1}\n{"b": 2}\n',
        '{"benchmarks": []}',
        '{"benchmarks": [{}]}',
        '{"ttfts": [0.1]}',
        '{"argosy_bench": 1}\n',
        '{"argosy_bench": 1, "ttft_s": 1, "tpot_s": 1, "goal": 0.9}\n{"x": 1}\n',
        '{"argosy_bench": 1, "ttft_s": 1, "tpot_s": 1, "goal": 0.9}\n',
    ],
)
def test_a_file_that_is_no_record_is_refused_with_what_can_be_read(tmp_path: Path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(records.RecordError, match="guidellm"):
        records.read(path)
