"""What a gateway has in flight on each pod: taken at once, given back once."""

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.load import InFlight, PodLoad
from argosy_gateway.routing.roster import Route


def pod(name: str, role: Role) -> Endpoint:
    return Endpoint(name, name, "10.0.0.1", role, "r", State.SERVING)


PREFILL, DECODE, BOTH = (
    pod("p", Role.PREFILL),
    pod("d", Role.DECODE),
    pod("c", Role.COLOCATED),
)


class Watched(InFlight):
    """What was told of changes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.changed = self.said.append
        self.released = lambda: self.said.append("released")


def test_a_pair_has_the_prompt_on_one_pod_and_the_sequence_on_both() -> None:
    in_flight = Watched()
    held = in_flight.reserve(Route(DECODE, (PREFILL,)), 100)
    assert in_flight.loads == {"d": PodLoad(1, 0, 0), "p": PodLoad(1, 100, 1)}
    assert (held.ahead, in_flight.said) == (100, ["d", "p"])
    second = in_flight.reserve(Route(DECODE, (PREFILL,)), 30)
    assert second.ahead == 130
    held.first_token()
    assert in_flight.loads == {"d": PodLoad(2, 0, 0), "p": PodLoad(1, 30, 1)}
    held.end()
    assert in_flight.loads == {"d": PodLoad(1, 0, 0), "p": PodLoad(1, 30, 1)}
    second.end()
    assert in_flight.loads == {}


def test_a_colocated_pod_keeps_the_sequence_after_the_first_token() -> None:
    in_flight = Watched()
    held = in_flight.reserve(Route(BOTH), 100)
    assert in_flight.loads == {"c": PodLoad(1, 100, 1)}
    held.first_token()
    assert in_flight.loads == {"c": PodLoad(1, 0, 0)}
    held.end()
    assert in_flight.loads == {}
    assert in_flight.said == ["c", "c", "released", "c", "released"]
