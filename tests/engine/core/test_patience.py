"""How long decode waits for a prompt and for its bytes, and whose KV fits together."""

import pytest

from argosy_engine.core.handover.messages import refuse_tp
from argosy_engine.core.handover.patience import Pace, transfer_s


def test_the_wait_is_three_times_what_a_prompt_of_that_length_takes():
    pace = Pace()
    pace.observe(1000, 2.0)
    assert pace.patience_s(2000) == pytest.approx(12.0)
    assert pace.patience_s(1000) == pytest.approx(6.0)


def test_later_prompts_count_a_fifth_each():
    pace = Pace()
    pace.observe(1000, 10.0)
    pace.observe(1000, 20.0)
    assert pace.patience_s(1000) == pytest.approx(3 * 12.0)
    pace.observe(1000, 2.0)
    assert pace.patience_s(1000) == pytest.approx(3 * 10.0)


@pytest.mark.parametrize(
    ("size", "rate", "seconds"), [(0, 8e6, 2.0), (8_000_000, 8e6, 3.0), (47_185_920, 1e6, 49.18592)]
)
def test_bytes_have_the_time_of_the_minimum_rate_and_two_seconds(size, rate, seconds):
    assert transfer_s(size, rate) == pytest.approx(seconds)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 8), (8, 1), (2, 4), (6, 3)])
def test_t37_sizes_of_which_one_divides_the_other_fit(sizes):
    assert refuse_tp(prefill=sizes[0], decode=sizes[1]) is None


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (4, 6)])
def test_t37_other_sizes_are_refused_with_both_numbers(sizes):
    why = refuse_tp(prefill=sizes[0], decode=sizes[1])
    assert f"over {sizes[0]} ranks and decode over {sizes[1]}" in why
    assert why.endswith("use sizes of which one divides the other")
