"""The flags that limit a law: what they accept to the last number, and what they say otherwise."""

import pytest

from argosy_law.goals import StepLimits
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.sim import limits
from argosy_law.sim.flags import UsageError

BOTH, ALONE = limits.roles(None), limits.roles("colocated")


def refused(call, *words: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*words)
    return str(caught.value)


def test_without_flags_nothing_is_limited() -> None:
    assert limits.steps(None) == StepLimits()
    assert limits.scale_to_zero(None, 60.0) is None
    assert limits.windows(None, BOTH) == limits.windows("", BOTH) == ()


@pytest.mark.parametrize("text", ["1,1", "1000,1000", "2,3", " 2 , 3 "])
def test_replicas_of_both_roles_are_from_one_to_a_thousand(text: str) -> None:
    prefill, decode = (int(part) for part in text.split(","))
    found = limits.replicas("--policy", "static", text, BOTH)
    assert found == {"prefill": prefill, "decode": decode}


@pytest.mark.parametrize("text", ["0,1", "1,0", "1001,1", "1,1001", "1", "1,2,3", "a,b", ""])
def test_other_replicas_are_refused_with_what_to_write(text: str) -> None:
    assert refused(limits.replicas, "--start", text, text, BOTH) == (
        f"--start {text}: write prefill and decode replicas, each from 1 to 1000, such as 2,3"
    )


@pytest.mark.parametrize("text", ["1", "10", "100"])
def test_a_step_down_is_a_percentage(text: str) -> None:
    assert limits.steps(text) == StepLimits(down_percent=float(text))


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.5", "ten", "²", "٣", ""])
def test_any_other_step_down_is_refused(text: str) -> None:
    assert refused(limits.steps, text) == (f"--step-down {text}: write a percentage from 1 to 100")


def test_a_time_to_zero_that_the_api_refuses_is_refused_with_its_words() -> None:
    for text in ("10", "10m,x"):
        assert refused(limits.scale_to_zero, text, 60.0) == (
            f"--scale-to-zero {text}: write a duration of more than 0, such as 200ms or 15s"
        )


def test_schedules_are_numbered_and_raise_both_roles() -> None:
    first, second = limits.windows("0 8 * * MON-FRI; 10h; 4,6 | 0 20 * * *; 30m; 2,2", BOTH)
    assert first == Window(
        "window-1",
        "0 8 * * MON-FRI",
        36_000.0,
        "UTC",
        (Bounds("prefill", 4, None), Bounds("decode", 6, None)),
    )
    assert (second.name, second.duration_s) == ("window-2", 1800.0)


@pytest.mark.parametrize("text", ["0 8 * * *; 10h", "0 8 * * *; 10h; 4,6; 7"])
def test_a_schedule_of_other_parts_is_refused(text: str) -> None:
    assert refused(limits.windows, text, BOTH) == (
        f"--schedules {text}: write start, duration and replicas, such as "
        "'0 8 * * MON-FRI; 10h; 4,6'"
    )


def test_a_schedule_that_the_api_refuses_is_refused_with_its_words() -> None:
    told = refused(limits.windows, " 61 8 * * *; 10h; 4,6", BOTH)
    assert told.startswith("--schedules 61 8 * * *; 10h; 4,6: ")
    assert "Value error" not in told
    assert refused(limits.windows, " 0 8 * * *; 10h; 0,6", BOTH).startswith(
        "--schedules 0 8 * * *; 10h; 0,6: write prefill and decode replicas"
    )


def test_a_colocated_fleet_has_one_number() -> None:
    assert limits.replicas("--policy", "static:5", "5", ALONE) == {"colocated": 5}
    assert refused(limits.replicas, "--policy", "static:2,3", "2,3", ALONE) == (
        "--policy static:2,3: write replicas, from 1 to 1000, such as 5"
    )
    (window,) = limits.windows("0 8 * * *; 10h; 4", ALONE)
    assert window.bounds == (Bounds("colocated", 4, None),)
    assert refused(limits.windows, "0 8 * * *", ALONE) == (
        "--schedules 0 8 * * *: write start, duration and replicas, such as "
        "'0 8 * * MON-FRI; 10h; 5'"
    )
