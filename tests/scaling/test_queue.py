"""What a queue adds to a role: it counts if it is still there when a new replica is ready."""

from dataclasses import replace

import pytest

from argosy_law.decision import Rule
from argosy_law.observe import RoleSupply
from argosy_law.size.pools import DecodeModel, PrefillModel
from argosy_law.size.sizing import Counts, Horizon, Load, backlog, is_full, size
from argosy_law.size.work import alike
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling.known import goals, metrics, play, times

TENTH = PrefillModel(((0.1, 1.0),), mean_s=0.1, variation=1.0, limit_s=1.0)
"""A tenth of a second for each prompt."""
HORIZON = Horizon(cold_s=90.0, drain_s=60.0, patience_s=1.0)


def supply(ready: int, pending: int = 0) -> RoleSupply:
    return RoleSupply("prefill", ready + pending, ready, pending)


@pytest.mark.parametrize(
    ("queued_s", "rate", "ready", "wanted"),
    [
        (180.0, 10.0, 3, 0),  # 2 replicas more than the load work it off in 90 s
        (181.0, 10.0, 3, 2),  # 1 s of work is left then: 1 + 1/60
        (240.0, 10.0, 3, 2),
        (241.0, 10.0, 3, 3),
        (3.0, 50.0, 3, 0),  # worked off within the TTFT limit
        (3.1, 50.0, 3, 5 + 4),  # grows by 2 replicas' work for 90 s
        (1e9, 10.0, 3, 1 + 4),
        (1e9, 200.0, 3, 20 + 5),
        (1e9, 0.0, 3, 4),
    ],
)
def test_a_queue_adds_what_works_it_off_in_a_minute_once_a_replica_is_ready(
    queued_s: float, rate: float, ready: int, wanted: int
) -> None:
    assert backlog(TENTH, queued_s, rate, supply(ready), HORIZON) == wanted


@pytest.mark.parametrize(
    ("started_s", "wanted"), [(0.0, 5), (30.0, 4), (60.0, 3), (74.0, 3), (76.0, 0), (500.0, 0)]
)
def test_replicas_that_have_been_starting_count_for_the_time_that_they_are_ahead(
    started_s: float, wanted: int
) -> None:
    """60 s of work, 90 s of growth by one replica: 150 s, less 2 s for each second of the start."""
    horizon = replace(HORIZON, started_s=started_s)
    assert backlog(TENTH, 60.0, 20.0, supply(1, pending=2), horizon) == wanted


def test_decode_grows_for_prompts_that_wait_and_says_so() -> None:
    model = DecodeModel(0.03, 0.0003, alike(200), 100.0, 0.06)
    load = Load(rate=5.0, prompt_tokens=1000.0, outstanding_prompt_tokens=2_000_000.0)
    have = replace(supply(1), role="decode")
    found = size(model, load, Counts(1, 1), have, 0.9, HORIZON)
    assert found.rule is Rule.BACKLOG
    work_s = 2000 * model.load(1.0)
    assert found.backlog_s == pytest.approx(work_s)
    assert found.up == backlog(model, work_s, 5.0, have, HORIZON) > 1
    idle = replace(load, outstanding_prompt_tokens=0.0)
    assert size(model, idle, Counts(1, 1), have, 0.9, HORIZON).up == 1


def test_a_queue_at_prefill_grows_both_roles() -> None:
    have: dict[RoleName, int] = {"prefill": 1, "decode": 1}
    seen = metrics(times(1)[0], 5.0, have, outstanding_prompt_tokens=6_000_000.0)
    _, decision = play(goals(), [(seen, have)])
    assert {t.role for t in decision.targets if t.demanded > 4} == {"prefill", "decode"}
    assert {t.rule for t in decision.targets} <= {Rule.BACKLOG, Rule.STEP_LIMIT}


@pytest.mark.parametrize(
    ("running", "ready", "full"),
    [(159.0, 2, False), (160.0, 2, True), (0.0, 0, True), (None, 9, True)],
)
def test_decode_is_full_at_four_fifths_of_the_largest_batch(
    running: float | None, ready: int, full: bool
) -> None:
    """Steps of 0.06 s have a hundred sequences in them."""
    model = DecodeModel(0.03, 0.0003, alike(200), 1000.0, 0.06)
    assert is_full(model, running, ready, 0.9) is full
    assert not is_full(TENTH, running, ready, 0.9)
