"""One round against a cluster that says no: it is reported, and tried again soon enough."""

from typing import Any

import pytest

from argosy_operator.core.fleet.actions import ErrorKind
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import round_of
from tests.core.model import IMAGES

META = {"name": "chat", "namespace": "ns", "uid": "u", "generation": 1}
FLEET = {"metadata": META, "spec": {"model": {"uri": "sim://opt-13b-a100"}}}


class Refusing:
    """Has one fleet and nothing else; refuses every child, takes status."""

    def __init__(self, error_kind: ErrorKind) -> None:
        self.error_kind = error_kind
        self.status: dict[str, Any] = {}

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return FLEET if kind == "ServingDeployment" else None

    async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        return []

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        if obj["kind"] == "Event":
            return obj
        raise ClusterError(self.error_kind, "create", "no")

    async def apply(
        self, obj: dict[str, Any], uid: str | None, *, status: bool = False
    ) -> dict[str, Any]:
        if not status:
            raise ClusterError(self.error_kind, "apply", "no")
        self.status = obj["status"]
        return obj


@pytest.mark.parametrize("error_kind", [ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.INVALID])
async def test_what_was_refused_is_tried_again_within_a_minute(error_kind: ErrorKind) -> None:
    """No event tells that a right was granted or a quota raised."""
    cluster = Refusing(error_kind)
    sources = Sources(cluster, None, None, IMAGES)  # type: ignore[arg-type]
    result = await round_of(sources, ("ns", "chat"), LoopMemory())
    assert result is not None
    assert 10 <= result[1] <= 60
    stalled = next(c for c in cluster.status["conditions"] if c["type"] == "Stalled")
    assert stalled["status"] == "True"
