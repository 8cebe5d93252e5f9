"""Which pods are to blame for handovers that fail, at every bound of the rule."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.pods import FailingPair, Handovers, Pod
from argosy_operator.core.steps.recycling import Poisoned, poisoned


def pod(name: str, **other: object) -> Pod:
    role = "prefill" if name.startswith("p") else "decode"
    return replace(Pod(name, name, role, "r"), **other)  # type: ignore[arg-type]


PODS = [pod(name) for name in ("p1", "p2", "p3", "d1", "d2", "d3")]


def row(prefill: str, decode: str, **other: float | int | str) -> FailingPair:
    """A pair that failed for as long as the hold, the last time ten seconds ago."""
    lasting = FailingPair(prefill, decode, "silent", 2, since_s=70.0, last_s=10.0)
    return replace(lasting, **other)  # type: ignore[arg-type]


P1_FAILS = (row("p1", "d1"), row("p1", "d2"))
"""The decode pods hand over with the other prefill pods, as `WHOLE` says."""
WHOLE = {"p2": 1.0, "p3": 1.0, "d1": 1.0, "d2": 1.0, "d3": 1.0}


def blamed(
    *rows: FailingPair, whole: dict[str, float] = WHOLE, pods: list[Pod] = PODS
) -> list[str]:
    return [one.pod.name for one in poisoned(pods, Handovers(frozenset(rows), whole))]


def test_a_prefill_pod_that_fails_with_two_decode_pods_for_a_minute_is_to_blame() -> None:
    (one,) = poisoned(PODS, Handovers(frozenset(P1_FAILS), WHOLE))
    assert one == Poisoned(pod("p1"), (("d1", "silent"), ("d2", "silent")), 60.0)
    assert str(one) == (
        "prefill pod p1: for 60 s no KV cache got from it. Partners that have handed over with "
        "other pods since: d1 (silent), d2 (silent)"
    )


def test_one_partner_is_not_enough() -> None:
    assert blamed(row("p1", "d1")) == []
    assert blamed(row("p1", "d1"), row("p1", "d1", failures=7)) == [], "seen by two gateways"


def test_less_than_a_minute_from_the_first_to_the_last_failure_is_not_enough() -> None:
    assert blamed(row("p1", "d1", since_s=69.9), row("p1", "d2", since_s=69.9)) == []
    assert blamed(row("p1", "d1", since_s=20.0), row("p1", "d2")) == ["p1"], "over both pairs"


def test_beside_the_partner_that_failed_most_there_are_two_failures_or_more() -> None:
    assert blamed(row("p1", "d1", failures=7), row("p1", "d2", failures=1)) == []
    assert blamed(row("p1", "d1", failures=7), row("p1", "d2", failures=2)) == ["p1"]
    one_each = [row("p1", d, failures=1) for d in ("d1", "d2", "d3")]
    assert blamed(*one_each) == ["p1"], "a gateway tries it with another partner each time"
    assert blamed(*one_each[1:]) == []


def test_the_last_failure_must_be_at_most_two_minutes_ago() -> None:
    def at(last_s: float, other_s: float) -> list[str]:
        rows = [row("p1", "d1", last_s=last_s), row("p1", "d2", last_s=other_s)]
        return blamed(*(replace(one, since_s=500.0) for one in rows))

    assert at(120.0, 130.0) == ["p1"], "it is tried with one partner at a time"
    assert at(120.1, 130.0) == []


def test_a_pod_that_has_handed_over_since_its_failures_is_not_to_blame() -> None:
    assert blamed(*P1_FAILS, whole={**WHOLE, "p1": 9.9}) == []
    assert blamed(*P1_FAILS, whole={**WHOLE, "p1": 10.0}) == [], "in the same answer"


def test_a_partner_must_have_handed_over_within_half_a_minute() -> None:
    assert blamed(*P1_FAILS, whole={**WHOLE, "d2": 30.0}) == ["p1"]
    assert blamed(*P1_FAILS, whole={**WHOLE, "d2": 30.1}) == []
    assert blamed(*P1_FAILS, whole={**WHOLE, "d2": inf}) == []


def test_a_partner_must_have_handed_over_since_it_first_failed_with_the_pod() -> None:
    rows = (row("p1", "d1"), row("p1", "d2", since_s=20.0))
    assert blamed(*rows, whole={**WHOLE, "d2": 20.0}) == ["p1"], "in the same answer"
    assert blamed(*rows, whole={**WHOLE, "d2": 20.1}) == []


def test_where_all_fail_with_all_no_pod_is_to_blame() -> None:
    rows = [row(p, d) for p in ("p1", "p2", "p3") for d in ("d1", "d2", "d3")]
    assert blamed(*rows, whole={}) == []
    before = dict.fromkeys(("p1", "p2", "p3", "d1", "d2", "d3"), 70.0)
    assert blamed(*rows, whole=before) == [], "what was before the failures says nothing"


def test_two_halves_that_hand_over_within_themselves_blame_nobody() -> None:
    """p1 and d1 stand in one zone, the others in another."""
    rows = [row("p1", "d2"), row("p1", "d3"), row("p2", "d1"), row("p3", "d1")]
    assert blamed(*rows, whole={**WHOLE, "p1": 1.0}) == []


@pytest.mark.parametrize(
    "change", [{"ready": False}, {"draining": True}, {"terminating": True}, {"role": "decode"}]
)
def test_only_pods_that_serve_in_their_role_count(change: dict[str, object]) -> None:
    rest = [one for one in PODS if one.name != "p1"]
    assert blamed(*P1_FAILS, pods=[pod("p1", **change), *rest]) == []
    rest = [one for one in PODS if one.name != "d1"]
    assert blamed(*P1_FAILS, pods=[pod("d1", **{**change, "role": "prefill"}), *rest]) == []


def test_gateways_add_up_and_a_success_at_one_of_them_counts_for_all() -> None:
    one = Handovers(frozenset({row("p1", "d1", since_s=30.0, last_s=10.0)}), {"d1": 90.0})
    other = Handovers(
        frozenset({row("p1", "d2", since_s=70.0, last_s=20.0)}), {"d1": 5.0, "d2": 6.0}
    )
    (found,) = poisoned(PODS, one.join(other))
    assert (found.pod.name, found.fails_s) == ("p1", 60.0)
    saw_it_work = Handovers(whole_s={"p1": 9.0})
    assert poisoned(PODS, one.join(other).join(saw_it_work)) == []


AGES = st.floats(0, 200) | st.just(inf)


@given(
    st.lists(
        st.builds(
            FailingPair,
            st.sampled_from(["p1", "p2", "p3", "x"]),
            st.sampled_from(["d1", "d2", "d3", "x"]),
            st.just("silent"),
            st.integers(0, 7),
            st.floats(0, 200),
            AGES,
        )
    ),
    st.dictionaries(st.sampled_from(["p1", "p2", "p3", "d1", "d2", "d3", "x"]), AGES),
)
def test_who_is_to_blame_has_failed_since_its_last_success_with_partners_that_have_not(
    rows: list[FailingPair], whole: dict[str, float]
) -> None:
    for one in poisoned(PODS, Handovers(frozenset(rows), whole)):
        name = one.pod.name
        last_s = min(r.last_s for r in rows if name in (r.prefill, r.decode))
        assert last_s < whole.get(name, inf)
        assert len({partner for partner, _ in one.partners}) >= 2
        assert all(whole[partner] < whole.get(name, inf) for partner, _ in one.partners)
        assert all(whole[partner] <= 30 for partner, _ in one.partners)
        assert one.fails_s >= 60
