"""Pods in the order of a key: always that of sorting them all."""

from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.dispatch import PodOrder

PODS = [Endpoint(f"p{i}", f"p{i}", "", Role.PREFILL, "r", State.SERVING) for i in range(6)]
changes = st.tuples(st.sampled_from(range(6)), st.integers(0, 3))
members = st.sets(st.sampled_from(range(6)))


@given(members, st.lists(st.one_of(changes, members, st.integers(0, 6)), max_size=40))
def test_after_any_changes_the_pods_come_as_if_all_were_sorted(first, steps):
    keys = dict.fromkeys((pod.uid for pod in PODS), 0)
    order = PodOrder(lambda uid: keys[uid])
    pods = [PODS[i] for i in sorted(first)]
    order.update(pods)
    for step in steps:
        if isinstance(step, tuple):
            uid = PODS[step[0]].uid
            keys[uid] = step[1]
            order.touch(uid)
        elif isinstance(step, set):
            pods = [PODS[i] for i in sorted(step)]
            order.update(pods)
        else:  # look at some of them only
            looking = order.pods()
            for _ in range(step):
                next(looking, None)
            looking.close()
        right = sorted(pods, key=lambda pod: (keys[pod.uid], pod.uid))
        assert list(order.pods()) == right
        assert order.first() == (right[0] if right else None)
        assert len(order._heap) <= 4 * len(pods) + 64 + len(pods)
