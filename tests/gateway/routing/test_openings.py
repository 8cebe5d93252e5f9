"""Which pods a waiting request goes to, where prefill and decode are apart."""

import pytest

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.dispatch import Dispatch
from argosy_gateway.routing.line import Waiting
from argosy_gateway.routing.load import PodLoad
from argosy_gateway.routing.roster import Group, Route
from argosy_gateway.routing.strategies import RoutingRequest

PACE = 1000.0


def pod(name: str, role: Role) -> Endpoint:
    return Endpoint(name, name, "", role, "r", State.SERVING)


P = [pod(f"p{i}", Role.PREFILL) for i in range(4)]
D = [pod(f"d{i}", Role.DECODE) for i in range(2)]
GROUPS = [Group(tuple(D), tuple(P))]


def dispatch(*ones: Waiting, **settings) -> Dispatch:
    made = Dispatch(**settings)
    for one in P:
        for _ in range(4):
            made.pace.observe(one.uid, ahead=2000, own=1000, seconds=2000 / PACE)
    for one in ones:
        one.start_by = one.received_at + one.limit_s - one.request.prompt_tokens / PACE
        made.line.add(one)
    return made


def waiting(tokens: int = 1000, limit_s: float = 9.0, flow: str = "") -> Waiting:
    return Waiting(RoutingRequest("", "m", True, tokens, b""), 0.0, limit_s, flow=flow)


def loads(**prompt_tokens: int) -> dict[str, PodLoad]:
    """Prompts of 1,000 tokens on prefill pods."""
    return {
        uid: PodLoad(tokens // 1000, tokens, tokens // 1000)
        for uid, tokens in prompt_tokens.items()
    }


def route_of(
    made: Dispatch, busy: dict[str, PodLoad], chosen: Route | None = None
) -> list[str] | None:
    grant = made.next(0.0, GROUPS, busy, lambda _request: chosen)
    return grant and [grant.route.head.name, *(p.name for p in grant.route.prefills)]


def test_a_request_goes_to_the_three_prefill_pods_with_the_shortest_backlog_and_a_free_head():
    busy = loads(p0=3000, p1=1000, p3=2000) | {"d0": PodLoad(sequences=5)}
    assert route_of(dispatch(waiting()), busy) == ["d1", "p2", "p1", "p3"]


@pytest.mark.parametrize(("tokens", "taken"), [(8000, True), (9000, False)])
def test_the_strategys_route_is_taken_as_long_as_the_request_meets_its_limit_there(tokens, taken):
    chosen = Route(D[0], (P[3],))
    found = route_of(dispatch(waiting()), loads(p3=tokens), chosen)
    assert (found == ["d0", "p3"]) is taken


def test_without_a_head_that_has_a_place_all_wait():
    busy = {"d0": PodLoad(1), "d1": PodLoad(1)}
    assert route_of(dispatch(waiting(), places=1), busy) is None


def test_a_late_request_takes_the_strategys_route_only_to_a_pod_with_nearly_nothing():
    late = waiting(limit_s=0.5)
    assert route_of(dispatch(late), {}, Route(D[1], (P[3],))) == ["d1", "p3"]
    late = waiting(limit_s=0.5)
    assert route_of(dispatch(late), loads(p3=3000), Route(D[1], (P[3],)))[1] != "p3"


def test_the_time_of_all_that_waits_is_that_of_all_pods_together():
    made = dispatch(waiting(3000), waiting(2000))
    busy = loads(p0=1000) | {"d0": PodLoad(4, 0, 0)}
    assert made.wait_s(GROUPS, busy, 2000) == pytest.approx(8000 / (4 * PACE))
    assert Dispatch().wait_s(GROUPS, busy, 2000) == 0.0


@pytest.mark.parametrize(("limit_s", "fits"), [(2.0, True), (1.99, False)])
def test_an_opening_is_one_where_a_new_request_meets_its_limit(limit_s, fits):
    busy = loads(p0=1000, p1=1000, p2=1000, p3=1000)
    assert dispatch().has_opening(0.0, GROUPS, busy, 1000, limit_s) is fits
    assert not dispatch().has_opening(0.0, [], busy, 1000, limit_s)
