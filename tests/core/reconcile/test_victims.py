"""Which pods leave, in which order, and when the Deployment may shrink."""

from argosy_operator.core.fleet.pods import OUR_COST, Load, Pod
from argosy_operator.core.reconcile.victims import next_step

NOW, TIMEOUT_S = 1000.0, 60.0
IDLE = Load(draining=False, running=0, leases=0)
DRAINED = Load(draining=True, running=0, leases=0)


def pod(name: str, **looks: object) -> Pod:
    return Pod(name, name, "decode", "r", created_at=1.0, ready_at=2.0, **looks)  # type: ignore[arg-type]


def marked(name: str, since: float) -> Pod:
    return pod(name, draining=True, victim=True, cost=int(OUR_COST), drain_at=since)


def names(pods) -> list[str]:
    return [p.name for p in pods]


def test_growing_calls_back_our_victims_and_leaves_those_of_people() -> None:
    by_hand = pod("b", draining=True, drain_at=NOW)
    step = next_step(2, 3, [marked("a", NOW), by_hand], {}, NOW, TIMEOUT_S)
    assert (step.replicas, names(step.recall)) == (3, ["a"])


def test_pods_that_do_not_exist_yet_need_no_drain() -> None:
    step = next_step(4, 2, [pod("a"), pod("b")], {}, NOW, TIMEOUT_S)
    assert (step.replicas, step.mark) == (2, ())


def test_a_choice_among_busy_pods_waits_for_what_their_engines_say() -> None:
    assert next_step(2, 1, [pod("a"), pod("b")], {}, NOW, TIMEOUT_S).ask


def test_the_least_busy_pod_is_chosen_and_nothing_shrinks_yet() -> None:
    loads = {"a": Load(False, 5, 0), "b": Load(False, 1, 1), "c": Load(False, 3, 0)}
    step = next_step(3, 2, [pod("a"), pod("b"), pod("c")], loads, NOW, TIMEOUT_S)
    assert (names(step.mark), step.replicas) == (["b"], None)


def test_an_engine_that_did_not_answer_counts_as_the_busiest() -> None:
    loads = {"a": None, "b": Load(False, 9, 0)}
    assert names(next_step(2, 1, [pod("a"), pod("b")], loads, NOW, TIMEOUT_S).mark) == ["b"]


def test_a_victim_that_finished_leaves() -> None:
    pods = [marked("a", NOW - 1), pod("b")]
    step = next_step(2, 1, pods, {"a": DRAINED, "b": IDLE}, NOW, TIMEOUT_S)
    assert step.replicas == 1


def test_a_victim_with_a_lease_stays_until_its_timeout() -> None:
    busy = {"a": Load(True, 0, 1)}
    waits = next_step(2, 1, [marked("a", NOW - 59), pod("b")], busy, NOW, TIMEOUT_S)
    over = next_step(2, 1, [marked("a", NOW - 60), pod("b")], busy, NOW, TIMEOUT_S)
    assert (waits.replicas, names(waits.leaving)) == (None, ["a"])
    assert over.replicas == 1


def test_a_silent_victim_is_not_taken_for_a_finished_one() -> None:
    pods = [marked("a", NOW - 1), pod("b")]
    assert next_step(2, 1, pods, {"a": None}, NOW, TIMEOUT_S).replicas is None


def test_an_engine_that_was_not_told_yet_is_hastened() -> None:
    pods = [marked("a", NOW - 1), pod("b")]
    assert names(next_step(2, 1, pods, {"a": IDLE}, NOW, TIMEOUT_S).hasten) == ["a"]


def test_a_pending_pod_displaces_a_marked_one() -> None:
    """The ReplicaSet takes Pending pods first at any cost; the marked one serves on."""
    new = pod("new", phase="Pending", started=False, assigned=False, ready=False)
    step = next_step(3, 2, [marked("a", NOW), pod("b"), new], {}, NOW, TIMEOUT_S)
    assert (step.replicas, names(step.recall)) == (2, ["a"])


def test_a_pod_that_drains_by_hand_is_preferred_to_a_serving_one() -> None:
    by_hand = pod("b", draining=True, drain_at=NOW)
    step = next_step(2, 1, [pod("a"), by_hand], {}, NOW, TIMEOUT_S)
    assert (names(step.mark), step.ask) == (["b"], False)


def test_an_order_that_is_about_to_wear_off_is_given_again_before_anything_is_removed() -> None:
    pods = [marked("a", NOW - 1), pod("b")]
    soon = Load(draining=True, running=0, leases=0, expires_in_s=10.0)
    step = next_step(2, 1, pods, {"a": soon}, NOW, TIMEOUT_S)
    assert (names(step.hasten), step.replicas) == (["a"], None)
    later = Load(draining=True, running=0, leases=0, expires_in_s=59.0)
    step = next_step(2, 1, pods, {"a": later}, NOW, TIMEOUT_S)
    assert (names(step.hasten), step.replicas) == ([], 1)
