"""What a fleet leaves for its next round is its own, and not that of the next fleet of its name."""

from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.support.model import Model, fleet


def test_a_memory_lasts_from_round_to_round_and_ends_with_its_fleet() -> None:
    model = Model(fleet())
    model.memory = LoopMemory().of("fleet-1")
    model.converge()
    assert model.memory.starts, "it measured how long pods take to start"
    assert model.memory.of("fleet-1") is model.memory
    assert model.memory.of("fleet-2") == LoopMemory("fleet-2")
