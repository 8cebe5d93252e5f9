"""Parts of matrices put together again, and rope's frequencies by Hugging Face's formulas."""

import math

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy.model_config import Rope  # noqa: E402
from argosy_engine.model.share import Joined, Summed  # noqa: E402
from argosy_engine.model.trunk import frequencies, rotation_table  # noqa: E402


class Ranks:
    """The other ranks have these parts; every `x` of theirs is 1 where it is summed."""

    def __init__(self, *parts):
        self.parts = parts
        self.asked = 0

    def sum_(self, x):
        x += 1

    def gather(self, x):
        self.asked += 1
        return [x, *self.parts] if self.parts else []


def test_a_matrix_that_is_cut_by_columns_adds_what_all_ranks_have():
    summed = Summed(lambda x: 2 * x, Ranks())
    assert summed(torch.tensor([[1.0, 2.0]])).tolist() == [[3.0, 5.0]]


def test_rank_0_has_the_logits_of_all_ranks_without_the_rows_of_no_token():
    own, other = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[3.0, 4.0, 9.0]])
    head = Joined(lambda _: own, Ranks(other), 5)
    assert head(torch.ones(1, 4)).tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]]
    many = Joined(lambda _: own[:, :1], Ranks(*[other[:, :1]] * 7), 3)
    assert many(torch.ones(1, 4)).tolist() == [[0.0, 3.0, 3.0]]
    assert Joined(lambda _: own, Ranks(), 5)(torch.ones(1, 4)) is own  # not rank 0


def by_the_formula(rope, dim):
    """Each pair's frequency as Hugging Face's modeling_rope_utils computes it."""

    def pair_of(turns):
        wave = rope.original_positions / (turns * 2 * math.pi)
        return dim * math.log(wave) / (2 * math.log(rope.theta))

    found = []
    for at in range(dim // 2):
        plain = rope.theta ** (-2 * at / dim)
        slow = plain / rope.factor
        if rope.kind == "linear":
            found.append(slow)
            continue
        if rope.kind == "llama3":
            turns = rope.original_positions * plain / (2 * math.pi)
            kept = (turns - rope.slow_turns) / (rope.fast_turns - rope.slow_turns)
        else:
            first, last = pair_of(rope.fast_turns), pair_of(rope.slow_turns)
            if rope.whole_pairs:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dim - 1)
            kept = 1 - (at - first) / (last - first if last != first else 0.001)
        kept = min(max(kept, 0), 1)
        found.append(plain * kept + slow * (1 - kept))
    return found


YARN = {"theta": 1e4, "kind": "yarn", "factor": 4.0, "fast_turns": 32.0}
ROPES = [
    Rope(theta=1e4),
    Rope(theta=5e5, factor=2.0),
    Rope(theta=5e5, kind="llama3", factor=8.0, original_positions=8192),
    Rope(**YARN, original_positions=4096),
    Rope(**YARN, original_positions=4096, whole_pairs=False, slow_turns=2.0),
    Rope(**YARN, original_positions=64),  # the first pair would be below 0
    Rope(**YARN, original_positions=10**9),  # the last one above the head
]


@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_frequencies_are_those_of_the_formula(rope, dim):
    found = frequencies(rope, dim)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(by_the_formula(rope, dim), rel=1e-12)


def test_a_table_turns_each_position_by_its_frequencies():
    rope = Rope(theta=1e4, kind="yarn", factor=1.0, original_positions=64, length=1.5)
    table = rotation_table(rope, 8, 5, torch.device("cpu"))
    assert table.shape == (5, 1, 4)
    assert table.dtype == torch.complex64
    for position in range(5):
        for pair, each in enumerate(frequencies(rope, 8).tolist()):
            turned = complex(table[position, 0, pair])
            right = 1.5 * complex(math.cos(position * each), math.sin(position * each))
            assert turned == pytest.approx(right, abs=1e-6)
