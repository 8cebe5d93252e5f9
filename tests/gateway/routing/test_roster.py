"""The roster is at any time what a rebuild from all pods would be."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.health import Health
from argosy_gateway.routing.roster import Roster, most_suspended
from tests.gateway.routing.rosters import candidates, rebuilt
from tests.support.stateful import run_sequences

UIDS = st.sampled_from("abcdefg")


class Changes(RuleBasedStateMachine):
    """Pods come, change and go, succeed and fail, and time passes."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.directory = Directory(lambda: self.now)
        self.roster = Roster(self.directory)
        self.began_at = 100.0

    pods = st.builds(
        lambda uid, role, revision, state: Endpoint(uid, f"pod-{uid}", "", role, revision, state),
        UIDS,
        st.sampled_from(Role),
        st.sampled_from(["r1", "r2"]),
        st.sampled_from([State.SERVING, State.SERVING, State.SERVING, State.DRAINING]),
    )

    @rule(pod=pods)
    def put(self, pod):
        self.directory.put(pod)

    @rule(pods=st.lists(pods, max_size=7, unique_by=lambda pod: pod.uid))
    def replace(self, pods):
        self.directory.replace(pods)

    @rule(uid=UIDS)
    def remove(self, uid):
        self.directory.remove(uid)

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.25, 1.0, 31.0]))
    def wait(self, seconds):
        self.began_at, self.now = self.now, self.now + seconds

    @rule(
        uid=UIDS,
        what=st.sampled_from(
            [
                "begin",
                "mark_reached",
                "mark_wrong_pod",
                "mark_identified",
                "mark_draining",
                "mark_busy",
                "forget",
            ]
        ),
    )
    def report(self, uid, what):
        getattr(self.directory.health, what)(uid)

    @rule(
        uid=UIDS,
        what=st.sampled_from(["count_failure"] * 3 + ["mark_unreachable", "count_success"]),
        late=st.booleans(),
    )
    def end(self, uid, what, late):
        getattr(self.directory.health, what)(uid, self.began_at if late else self.now)

    @rule(tried=st.sets(UIDS), only_healthy=st.booleans())
    def retry(self, tried, only_healthy):
        given = self.roster.groups(tried, only_healthy=only_healthy)
        assert given == rebuilt(self.directory, tried, only_healthy=only_healthy)

    @invariant()
    def first_attempts_see_what_a_rebuild_would_give(self):
        assert self.roster.groups() == rebuilt(self.directory)

    @invariant()
    def roles_are_counted(self):
        for role in Role:
            assert self.directory.has(role) == any(e.role is role for e in self.directory.all())


def test_after_any_changes_the_roster_equals_a_rebuild():
    run_sequences(Changes, examples=60, steps=40)


def pod(name, role=Role.COLOCATED, revision="r"):
    return Endpoint(name, name, "10.0.0.1", role, revision, State.SERVING)


@pytest.mark.parametrize(
    ("heads", "most"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (1000, 500)]
)
def test_at_most_half_of_the_heads_are_suspended_and_never_all(heads, most):
    assert most_suspended(heads) == most


def revisions(*pods: tuple[str, Role, str]) -> tuple[Directory, Roster]:
    directory = Directory(lambda: 100.0)
    directory.replace(Endpoint(n, n, "", role, rev, State.SERVING) for n, role, rev in pods)
    return directory, Roster(directory)


def heads(roster: Roster, *tried: str, revision: str) -> list[list[str]]:
    groups = roster.groups(tried, revision=revision)
    return [[pod.name for pod in (*group.heads, *group.prefills)] for group in groups]


def test_a_stream_goes_on_only_at_pods_of_its_revision():
    _, roster = revisions(
        ("c1", Role.COLOCATED, "old"), ("c2", Role.COLOCATED, "new"),
        ("p1", Role.PREFILL, "old"), ("d1", Role.DECODE, "old"), ("d2", Role.DECODE, "new"),
    )  # fmt: skip
    assert heads(roster, revision="old") == [["c1"], ["d1", "p1"]]
    assert heads(roster, revision="new") == [["c2"]]
    assert heads(roster, revision="none") == []


def test_only_a_retry_prefers_pods_without_recent_failures():
    health = Health(lambda: 100.0)
    health.count_failure("a", 100.0)
    pods = [pod(name) for name in "abc"]
    assert [p.uid for p in candidates(pods, health, only_healthy=True)] == ["a", "b", "c"]
    assert [p.uid for p in candidates(pods, health, tried={"c"})] == ["b"]
    assert [p.uid for p in candidates(pods, health, tried={"b", "c"})] == ["a"]
