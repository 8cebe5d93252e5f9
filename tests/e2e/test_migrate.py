"""A pod leaves long before its streams end in mode migrate, and they go on elsewhere."""

import pytest

from tests.e2e.installed import burst

pytestmark = [pytest.mark.cluster, pytest.mark.long]

STREAMS, TOKENS = 8, 1000
"""About 30 s a stream: enough for Kubernetes to end a pod on a busy machine."""


@pytest.fixture
def fleet(argosy):
    argosy.apply(
        "moving",
        drain={"timeout": "120s", "mode": "migrate"},
        autoscaling={"policy": "External"},
        roles={"colocated": {"replicas": {"min": 1, "max": 4}, "resources": {"gpu": 0}}},
    )
    argosy.until_ready("moving")
    scale(argosy, 2)
    argosy.until("two pods serve", lambda: serving(argosy) == 2)
    yield "moving"
    argosy.kubectl("delete", "sd", "moving", "--wait=false")


def scale(argosy, replicas: int) -> None:
    argosy.kubectl("scale", "servingrole/moving-colocated", f"--replicas={replicas}")


def serving(argosy) -> int:
    return argosy.fleet("moving")["status"]["roles"]["colocated"]["serving"]


def pods(argosy) -> list[str]:
    selector = "serving.argosy.dev/fleet=moving,serving.argosy.dev/role=colocated"
    return argosy.kubectl("get", "pods", "-l", selector, "-o", "name").split()


def test_a_pod_leaves_while_its_streams_go_on_elsewhere(argosy, fleet):
    with burst(argosy.url(fleet), fleet, STREAMS, tokens=TOKENS) as answers:
        argosy.until("every answer has begun", lambda: answers.begun == STREAMS)
        scale(argosy, 1)
        argosy.until("one pod", lambda: len(pods(argosy)) == 1, 60)
        assert answers.outcomes == [], "it left by the end of its streams"
    assert answers.outcomes == ["ok"] * STREAMS
