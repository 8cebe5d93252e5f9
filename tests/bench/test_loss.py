"""The pure parts of the loss bench: events from a seed, judgement of answers, what is held."""

import json
from collections import Counter

import pytest

from argosy_bench.cluster.corrupting import Bit, damaged
from argosy_bench.cluster.faults import writer
from argosy_bench.cluster.fleet import Leftovers, held_connections
from argosy_bench.cluster.judge import Happened, Outcome, Seen, Verdict, judge
from argosy_bench.cluster.loss import Result, Turns, figures_of, put
from argosy_bench.cluster.requests import ask_of
from argosy_bench.cluster.schedule import LEAST, MOST, Event, Kind, other_role, schedule
from local.figures import Figures

DECK = 25


def event(kind: Kind = Kind.KILL, role: str = "gateway", number: int = 0) -> Event:
    return Event(number, kind, role, {"prefill": 2, "decode": 2})


def right(number: int = 1, **other: object) -> Seen:
    """The whole answer to a request that was sent at second 10 and ended at second 12."""
    fields = {"sent_s": 10.0, "ended_s": 12.0, "status": 200, "text": ask_of(number).text}
    return Seen(number, **{**fields, **other})  # type: ignore[arg-type]


def outcome(seen: Seen, *events: Happened) -> Outcome:
    (found,) = judge([seen], events).outcomes
    return found


# --- the schedule


def test_each_deck_of_events_has_every_kind() -> None:
    events = list(schedule(7, 3 * DECK))
    counts = [
        Counter((e.kind, e.role) for e in events[start : start + DECK])
        for start in range(0, 3 * DECK, DECK)
    ]
    assert counts[0] == counts[1] == counts[2]
    assert {kind for kind, _ in counts[0]} == set(Kind)
    assert {role for kind, role in counts[0] if kind is Kind.KILL} == {
        "prefill",
        "decode",
        "gateway",
    }


def test_each_change_of_replicas_is_of_one_role_and_stays_within_the_bounds() -> None:
    before = {"prefill": LEAST, "decode": LEAST}
    for found in schedule(3, 400):
        changed = {role for role in before if before[role] != found.replicas[role]}
        scales = found.kind is Kind.SCALE or (found.kind is Kind.OPERATOR and found.role)
        if found.kind is not Kind.FLIP:
            assert changed == ({found.role} if scales else set())
        assert all(LEAST <= number <= MOST for number in found.replicas.values())
        before = found.replicas


def test_a_flip_leaves_room_for_the_pod_in_the_role_that_gives_it_and_in_the_other() -> None:
    """Before it one role has a pod more and the other one less, both within the bounds."""
    flips = [found for found in schedule(3, 400) if found.kind is Kind.FLIP]
    assert {found.role for found in flips} == {"prefill", "decode"}
    for found in flips:
        assert LEAST < found.replicas[found.role] <= MOST
        assert LEAST <= found.replicas[other_role(found.role)] < MOST


# --- requests


def test_every_text_is_as_long_as_asked_and_no_other_request_has_it() -> None:
    texts = [ask_of(number).text for number in range(200)]
    assert [len(text.split()) for text in texts] == [ask_of(n).tokens for n in range(200)]
    assert len(set(texts)) == 200


# --- the judgement


def test_the_exact_text_is_ok_and_a_single_other_token_is_not() -> None:
    assert outcome(right()) is Outcome.OK
    words = ask_of(1).text.split()
    assert outcome(right(text=" ".join([*words[:-1], "tok1 "]))) is Outcome.MISMATCH
    assert outcome(right(2, text=ask_of(1).text)) is Outcome.MISMATCH


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"status": 429, "text": ""}, Outcome.SHED),
        ({"status": 503, "text": ""}, Outcome.LOST),
        ({"status": None, "text": ""}, Outcome.LOST),
        ({"fault": "error event: stream_broken"}, Outcome.LOST),
        ({"broken": True}, Outcome.LOST),
    ],
)
def test_what_is_not_whole_is_lost_and_429_alone_is_shed(
    other: dict[str, object], expected: Outcome
) -> None:
    assert outcome(right(**other)) is expected


@pytest.mark.parametrize(
    ("ended_s", "expected"),
    [
        (10.9, Outcome.LOST),
        (11.0, Outcome.CUT_WITH_GATEWAY),
        (15.0, Outcome.CUT_WITH_GATEWAY),
        (15.1, Outcome.LOST),
    ],
)
def test_a_stream_that_breaks_is_the_gateways_own_end_only_while_one_is_being_killed(
    ended_s: float, expected: Outcome
) -> None:
    cut = right(broken=True, text="tok1 ", ended_s=ended_s)
    assert outcome(cut, Happened(event(), 11.0, 15.0)) is expected
    assert outcome(cut, Happened(event(role="decode"), 11.0, 15.0)) is Outcome.LOST
    assert outcome(cut, Happened(event(Kind.DELETE), 11.0, 15.0)) is Outcome.LOST


def test_a_request_may_be_sent_again_only_when_a_gateway_was_killed_before_it_answered() -> None:
    again = right(unanswered_s=(11.5,))
    assert outcome(again, Happened(event(), 11.0, 15.0)) is Outcome.OK
    assert outcome(again, Happened(event(Kind.DELETE), 11.0, 15.0)) is Outcome.LOST
    assert outcome(again) is Outcome.LOST
    assert judge([again], [Happened(event(), 11.0, 15.0)]).sent_again == 1
    assert judge([right()], []).sent_again == 0


def test_a_loss_names_the_last_event_that_began_before_its_end() -> None:
    events = [
        Happened(event(Kind.SCALE, "prefill", 4), 5.0, 9.0),
        Happened(event(Kind.KILL, "decode", 5), 11.0, 14.0),
        Happened(event(Kind.STOP, "decode", 6), 12.5, 20.0),
    ]
    (loss,) = judge([right(status=503, text="", fault="status 503")], events).losses
    assert (loss.after, loss.event, loss.detail) == ("sigkill_decode", 5, "status 503")
    (early,) = judge([right(status=503, text="", ended_s=4.0)], events).losses
    assert (early.after, early.event) == ("", None)


def test_the_figures_miss_their_targets_for_one_loss_one_leak_or_one_event_too_few() -> None:
    def missed(events: int, verdict: Verdict, held: Leftovers, stuck: int = 0) -> list[str]:
        figures = Figures(figures_of(2), "")
        half = [Happened(event(), 0.0, 1.0)]
        one = Result(half, Verdict(), 0, Leftovers(), [])
        put(figures, [one, Result(half * (events - 1), verdict, stuck, held, [])])
        return figures.missed()

    fine = Verdict(Counter({Outcome.OK: 10, Outcome.SHED: 1, Outcome.CUT_WITH_GATEWAY: 1}))
    assert missed(2, fine, Leftovers()) == []
    assert missed(1, fine, Leftovers()) == ["scale_events"]
    assert missed(2, Verdict(Counter({Outcome.LOST: 1})), Leftovers()) == ["requests_lost"]
    assert missed(2, Verdict(Counter({Outcome.MISMATCH: 1})), Leftovers()) == ["text_mismatches"]
    assert missed(2, fine, Leftovers(1, 1, 1, 1)) == [
        "kv_blocks_leaked",
        "leases_left",
        "requests_left",
        "sockets_left",
    ]
    assert missed(2, fine, Leftovers(), stuck=1) == ["stuck_pods"]


# --- several fleets


def test_so_many_events_begin_in_all_and_none_after_a_stop() -> None:
    turns = Turns(3)
    assert [turns.take() for _ in range(5)] == [True, True, True, False, False]
    stopped = Turns(3)
    stopped.stop()
    assert not stopped.take()


# --- faults


def test_exactly_one_bit_of_a_direction_is_turned_over_wherever_pieces_end() -> None:
    sent = bytes(range(100))
    for size in (1, 7, 100):
        starts = range(0, 100, size)
        got = b"".join(damaged(sent[at : at + size], at, Bit(41, 4)) for at in starts)
        assert [n for n in range(100) if got[n] != sent[n]] == [41]
        assert got[41] == 41 ^ 4
    assert damaged(sent, 0, Bit(100, 1)) == sent


def line_of(**changes: object) -> str:
    entry = {
        "verb": "patch",
        "user": {
            "username": "system:serviceaccount:argosy-system:argosy-operator",
            "extra": {"authentication.kubernetes.io/pod-name": ["argosy-operator-1"]},
        },
        "objectRef": {"resource": "deployments", "namespace": "one", "name": "loss-decode"},
    }
    return json.dumps(entry | changes)


def test_writes_of_the_operator_are_those_of_its_pods_into_the_fleets_namespace() -> None:
    assert writer(line_of(), "one") == "argosy-operator-1"
    assert writer(line_of(), "two") is None
    assert writer(line_of(verb="get"), "one") is None
    assert writer(line_of(user={"username": "admin"}), "one") is None
    assert writer(line_of(objectRef={"resource": "leases", "namespace": "one"}), "one") is None
    assert writer(line_of()[:-9], "one") is None


# --- what is left


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65532
   1: 0201F40A:1F40 0301F40A:D431 01 00000000:00000000 00:00000000 00000000 65532
   2: 0201F40A:1F42 0301F40A:D432 08 00000000:00000000 00:00000000 00000000 65532
   3: 0201F40A:D433 0301F40A:1F42 01 00000000:00000000 00:00000000 00000000 65532
   4: 0201F40A:1F40 0301F40A:D434 06 00000000:00000000 00:00000000 00000000 0
   5: 0201F40A:D435 0301F40A:1F41 01 00000000:00000000 00:00000000 00000000 65532
"""


def test_held_connections_are_those_of_the_ports_that_are_open_at_either_end() -> None:
    """Not the one that listens, the one in TIME_WAIT, or the one of another port."""
    assert held_connections(TCP, (8000, 8002)) == 3
    assert held_connections(TCP, (8002,)) == 2
    assert held_connections("header\n", (8000,)) == 0
