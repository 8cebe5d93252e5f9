"""The pure parts of the loss bench: events from a seed, judgement of answers, what is held."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from argosy_bench.cluster.corrupting import Bit, bit_of, damaged
from argosy_bench.cluster.faults import writer
from argosy_bench.cluster.fleet import Leftovers, Wanted, held_connections
from argosy_bench.cluster.judge import Happened, Mark, Outcome, Seen, Verdict, by_kind, judge
from argosy_bench.cluster.loss import Result, Turns, at_once, figures_of, put
from argosy_bench.cluster.requests import ask_of, asks_in
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


def test_the_same_seed_gives_the_same_events_and_another_seed_another_order() -> None:
    assert list(schedule(1, 60)) == list(schedule(1, 60))
    assert list(schedule(1, 60)) != list(schedule(2, 60))


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


def test_without_rights_over_networks_no_event_needs_them() -> None:
    kinds = {found.kind for found in schedule(1, 100, network=False)}
    assert set(Kind) - kinds == {Kind.CUT, Kind.SLOW, Kind.CORRUPT}


def test_a_run_may_be_of_some_kinds_only() -> None:
    kinds = {found.kind for found in schedule(1, 100, only=("cut", "flip"))}
    assert kinds == {Kind.CUT, Kind.FLIP}


# --- requests


def test_requests_differ_in_their_first_word_and_half_of_them_are_streamed() -> None:
    asks = [ask_of(number) for number in range(1000)]
    assert asks == [ask_of(number) for number in range(1000)]
    assert len({ask.prompt.split()[0] for ask in asks}) == 1000
    assert sum(ask.stream for ask in asks) == 500
    assert all(len(ask.prompt.split()) == ask.prompt_tokens for ask in asks)


def test_every_text_is_as_long_as_asked_and_no_other_request_has_it() -> None:
    texts = [ask_of(number).text for number in range(200)]
    assert [len(text.split()) for text in texts] == [ask_of(n).tokens for n in range(200)]
    assert len(set(texts)) == 200


def test_requests_for_real_weights_come_from_a_file_and_begin_again_at_its_end(
    tmp_path: Path,
) -> None:
    known = [
        {"prompt": f"p{n}", "prompt_tokens": 2, "tokens": 3, "text": f"t{n}"} for n in range(3)
    ]
    (tmp_path / "answers.json").write_text(json.dumps(known))
    asks = asks_in(tmp_path / "answers.json")
    assert [asks(n).text for n in (0, 2, 3, 7)] == ["t0", "t2", "t0", "t1"]
    assert [asks(n).stream for n in (0, 3)] == [True, False]
    right_one = Seen(4, 10.0, 12.0, status=200, text="t1")
    assert list(judge([right_one], [], asks).outcomes) == [Outcome.OK]
    assert list(judge([right_one], []).outcomes) == [Outcome.MISMATCH]


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


def test_an_error_event_is_a_loss_also_while_a_gateway_is_killed() -> None:
    failed = right(fault="error event: stream_broken")
    assert outcome(failed, Happened(event(), 11.0, 15.0)) is Outcome.LOST


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


def test_events_are_counted_by_kind_with_what_was_lost_after_them() -> None:
    events = [
        Happened(event(Kind.KILL, "decode", 0), 0.0, 4.0),
        Happened(event(Kind.KILL, "decode", 1), 5.0, 11.0),
        Happened(event(Kind.SCALE, "prefill", 2), 20.0, 140.0, recovered=False),
    ]
    verdict = judge([right(status=503), right(2), right(3, text="other")], events)
    assert by_kind(events, verdict.losses) == [
        {
            "event": "scale_prefill",
            "count": 1,
            "requests_lost": 0,
            "whole_again_s_max": 120.0,
            "unrecovered": 1,
        },
        {
            "event": "sigkill_decode",
            "count": 2,
            "requests_lost": 1,
            "whole_again_s_max": 6.0,
            "unrecovered": 0,
        },
    ]


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


def test_marks_of_events_are_counted() -> None:
    flipped, killed = frozenset({Mark.FLIPPED}), frozenset({Mark.BETWEEN_WRITES})
    happened = [
        Happened(event(), 0.0, 1.0, marks=m) for m in (flipped, killed, killed, frozenset())
    ]
    figures = Figures(figures_of(4), "")
    put(figures, [Result(happened, Verdict(), 0, Leftovers(), [])])
    assert figures.values["roles_flipped"] == 1
    assert figures.values["operators_killed_between_writes"] == 2


# --- several fleets


def test_so_many_events_begin_in_all_and_none_after_a_stop() -> None:
    turns = Turns(3)
    assert [turns.take() for _ in range(5)] == [True, True, True, False, False]
    stopped = Turns(3)
    stopped.stop()
    assert not stopped.take()


def test_a_fleet_with_a_share_waits_until_others_have_had_theirs() -> None:
    turns = Turns(30)
    assert turns.take(own=0, share=0.1)
    assert turns.take(own=1, share=0.1) is None
    assert all(turns.take() for _ in range(8))
    assert turns.take(own=1, share=0.1) is None
    assert turns.take()
    assert turns.take(own=1, share=0.1)
    turns.stop()
    assert turns.take(own=2, share=0.1) is False


def test_the_share_of_time_in_which_events_of_several_fleets_overlap() -> None:
    def of(*spans: tuple[float, float]) -> Result:
        happened = [Happened(event(), began, whole) for began, whole in spans]
        return Result(happened, Verdict(), 0, Leftovers(), [])

    assert at_once([of((0, 4)), of((3, 8))]) == pytest.approx(1 / 8)
    assert at_once([of((0, 4), (4, 8))]) == 0
    assert at_once([of()]) == 0


def test_a_fleet_of_real_weights_mounts_them_and_others_are_simulated() -> None:
    assert Wanted(0).spec["model"] == {"uri": "sim://llama-70b-h100-tp4"}
    assert Wanted(0, Path("weights/tiny")).spec["model"] == {"uri": "pvc://models/tiny"}
    assert [Wanted(n).spec["drain"]["mode"] for n in (0, 1)] == ["finish", "migrate"]


# --- faults


def test_exactly_one_bit_of_a_direction_is_turned_over_wherever_pieces_end() -> None:
    sent = bytes(range(100))
    for size in (1, 7, 100):
        starts = range(0, 100, size)
        got = b"".join(damaged(sent[at : at + size], at, Bit(41, 4)) for at in starts)
        assert [n for n in range(100) if got[n] != sent[n]] == [41]
        assert got[41] == 41 ^ 4
    assert damaged(sent, 0, Bit(100, 1)) == sent


def test_the_bit_is_as_likely_in_a_head_as_far_behind_it() -> None:
    draw = random.Random(1)
    bits = [bit_of(draw) for _ in range(1000)]
    assert {bit.mask for bit in bits} == {1 << n for n in range(8)}
    found = [bit.byte for bit in bits]
    assert min(found) == 0
    assert max(found) < 1 << 17
    assert 400 < sum(n < 362 for n in found) < 600


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
