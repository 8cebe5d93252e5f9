"""Requests leave draining pods a few at a time, in the order in which they asked."""

import pytest

from argosy_gateway.relay.gateway import Moves


class Leaving:
    """Moves on a clock of the test's, and what left."""

    def __init__(self, most: int = 2) -> None:
        self.now, self.most = 100.0, most
        self.left: list[str] = []
        self.nowhere_to_go: set[str] = set()
        self.moves = Moves(lambda: self.now, lambda: self.most)

    def ask(self, *requests: str) -> list[str]:
        for request in requests:
            self.moves.ask(request, lambda request=request: self._leave(request))
        return self.left

    def _leave(self, request: str) -> bool:
        if request in self.nowhere_to_go:
            return False
        self.left.append(request)
        return True


@pytest.fixture
def leaving() -> Leaving:
    return Leaving()


def test_so_many_leave_at_once_and_the_next_when_one_goes_on(leaving: Leaving) -> None:
    assert leaving.ask("a", "b", "c", "d") == ["a", "b"]
    leaving.moves.end("b")
    assert leaving.left == ["a", "b", "c"]
    leaving.moves.end("a")
    assert leaving.left == ["a", "b", "c", "d"]


def test_one_that_has_nowhere_to_go_takes_no_place(leaving: Leaving) -> None:
    leaving.nowhere_to_go = {"a", "b"}
    assert leaving.ask("a", "b", "c", "d", "e") == ["c", "d"]
    leaving.nowhere_to_go = set()
    leaving.moves.end("c")
    assert leaving.ask("a") == ["c", "d", "e"]
    leaving.moves.end("d")
    assert leaving.left == ["c", "d", "e", "a"]


def test_a_move_that_takes_long_gives_its_place_to_the_next(leaving: Leaving) -> None:
    leaving.ask("a", "b", "c")
    leaving.now += 4.9
    assert leaving.ask("c") == ["a", "b"]
    leaving.now += 0.1
    assert leaving.ask("c") == ["a", "b", "c"]
