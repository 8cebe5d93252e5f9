"""Who gets which GPUs of a shared budget: one row for each rule, with caps by hand."""

from collections.abc import Mapping

import pytest

from argosy_operator.core.budgets import Bid, Fleet
from tests.core.test_gpu_budget import allocate

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


@pytest.mark.parametrize(
    ("rule", "budget", "bids", "caps"),
    [
        ("no fleet", 10, {}, {}),
        ("a fleet alone gets what it wants", 10, {A: Bid(1, 8, 1)}, {A: 8}),
        ("but no more than there is", 5, {A: Bid(1, 8, 1)}, {A: 5}),
        ("and its minimum in any case", 0, {A: Bid(2, 8, 2)}, {A: 2}),
        (
            "minimums stand where the budget is smaller",
            5,
            {A: Bid(3, 5, 3), B: Bid(4, 6, 4)},
            {A: 3, B: 4},
        ),
        ("equal needs get equal shares", 10, {A: Bid(0, 10, 0), B: Bid(0, 10, 0)}, {A: 5, B: 5}),
        (
            "the odd one goes to the first name",
            11,
            {B: Bid(0, 10, 0), A: Bid(0, 10, 0)},
            {A: 6, B: 5},
        ),
        (
            "the namespace comes before the name",
            1,
            {("x", "b"): Bid(0, 1, 0), ("y", "a"): Bid(0, 1, 0)},
            {("x", "b"): 1, ("y", "a"): 0},
        ),
        (
            "what one does not want goes to the others",
            10,
            {A: Bid(0, 2, 0), B: Bid(0, 10, 0), C: Bid(0, 3, 0)},
            {A: 2, B: 5, C: 3},
        ),
        (
            "shares are equal beyond the minimums",
            10,
            {A: Bid(4, 10, 4), B: Bid(0, 10, 0)},
            {A: 7, B: 3},
        ),
        (
            "who grows waits until another has given back",
            10,
            {A: Bid(0, 10, 10), B: Bid(0, 10, 0)},
            {A: 5, B: 0},
        ),
        (
            "and grows by what was given back",
            10,
            {A: Bid(0, 10, 7), B: Bid(0, 10, 0)},
            {A: 5, B: 3},
        ),
        (
            "GPUs that are held and not wanted are not free yet",
            10,
            {A: Bid(0, 2, 6), B: Bid(0, 10, 0)},
            {A: 2, B: 4},
        ),
        (
            "a minimum that has no pods yet is not free",
            10,
            {A: Bid(4, 4, 0), B: Bid(0, 10, 0)},
            {A: 4, B: 6},
        ),
        (
            "a fleet keeps what it holds within its share while another holds too much",
            10,
            {A: Bid(0, 5, 9), B: Bid(0, 5, 3)},
            {A: 5, B: 3},
        ),
        (
            "fewer GPUs than a replica has are of no use",
            11,
            {A: Bid(0, 8, 0, unit=4), B: Bid(0, 8, 0, unit=4)},
            {A: 4, B: 4},
        ),
        (
            "a fleet with smaller replicas uses what is left",
            11,
            {A: Bid(0, 8, 0, unit=4), B: Bid(0, 8, 0, unit=1)},
            {A: 4, B: 7},
        ),
        ("the last step may be smaller than a replica", 6, {A: Bid(0, 6, 0, unit=4)}, {A: 6}),
        ("but it is not cut", 5, {A: Bid(0, 6, 0, unit=4)}, {A: 4}),
        (
            "the next replica goes where it makes the smallest share",
            8,
            {A: Bid(0, 8, 0, unit=4), B: Bid(0, 6, 0, unit=2)},
            {A: 4, B: 4},
        ),
        (
            "fleets that grow share what is free in turn",
            12,
            {A: Bid(0, 12, 6), B: Bid(0, 12, 0), C: Bid(0, 12, 3)},
            {A: 4, B: 2, C: 4},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gpus_are_shared(
    rule: str, budget: int, bids: Mapping[Fleet, Bid], caps: Mapping[Fleet, int]
) -> None:
    assert allocate(bids, budget) == caps, rule
