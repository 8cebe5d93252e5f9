"""What is written about a fleet and its roles, also about one that this operator cannot read."""

from typing import Any

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.shell.report import read_fleet, write_status
from tests.support.model import converged


class Statuses:
    """Keeps the status that was applied last."""

    def __init__(self) -> None:
        self.cluster = self
        self.status: dict[str, Any] = {}

    async def apply(self, obj: dict[str, Any], uid: str, *, status: bool) -> dict[str, Any]:
        assert status
        self.status = obj["status"]
        return obj

    async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        return []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return None


def raw(**spec: Any) -> dict[str, Any]:
    meta = {"name": "chat", "namespace": "ns", "uid": "u", "generation": 3}
    return {"metadata": meta, "spec": {"model": {"uri": "sim://x"}, **spec}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"autoscaling": {"gpuBudget": {"max": 0}}}, "spec: autoscaling.gpuBudget.max is below"),
        ({"drain": {"timeout": "soon"}}, "spec.drain.timeout: write a duration"),
    ],
)
async def test_the_condition_says_what_the_api_server_would_have_said(
    spec: dict[str, Any], says: str
) -> None:
    sources = Statuses()
    assert await read_fleet(sources, raw(**spec), 1e6) is None  # type: ignore[arg-type]
    stalled = next(c for c in sources.status["conditions"] if c["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert stalled["message"].startswith(says)


async def test_a_fleet_that_a_later_rule_refuses_keeps_the_rest_of_its_status() -> None:
    """Its children stay as they are, too: there is no plan without a fleet."""
    sources = Statuses()
    told = {"url": "http://chat.ns.svc", "revision": "1234"}
    told_in_short = {"columns": {"prefill": "1/1", "reason": "AsSpecified"}}
    fleet = raw(drain={"timeout": "soon"}) | {"status": told | told_in_short}
    assert await read_fleet(sources, fleet, 1e6) is None  # type: ignore[arg-type]
    assert sources.status["columns"] == {"prefill": "1/1", "reason": "InvalidSpec"}
    assert {key: sources.status[key] for key in told} == told
    assert sources.status["observedGeneration"] == 3


async def test_the_role_of_the_other_mode_says_that_it_has_no_pods() -> None:
    wide = {"replicas": {"min": 1, "max": 4}}
    model = converged(
        roles={"prefill": wide, "decode": wide, "colocated": wide},
        autoscaling={"policy": "External"},
    )
    model.scale_role("colocated", 3)
    model.converge()
    model.edit(mode="disaggregated")
    model.converge()
    snapshot = model.snapshot()
    applied: dict[str, Any] = {}

    class Applied(Statuses):
        async def apply(self, obj: dict[str, Any], uid: str, *, status: bool) -> dict[str, Any]:
            applied[obj["metadata"]["name"]] = obj["status"]
            return obj

    await write_status(Applied(), snapshot, plan(snapshot).draft, ())  # type: ignore[arg-type]
    counts = {name: status["readyReplicas"] for name, status in applied.items()}
    assert counts == {"chat-colocated": 0, "chat-prefill": 1, "chat-decode": 1}
    assert model.children["ServingRole", "chat-colocated"]["spec"]["replicas"] == 3


async def test_a_fleet_that_cannot_be_read_and_whose_pods_may_not_be_listed_says_the_latter() -> (
    None
):
    class Forbidden(Statuses):
        async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
            raise ClusterError(ErrorKind.FORBIDDEN, f"list {kind}", "no such right")

    sources = Forbidden()
    with pytest.raises(ClusterError, match="no such right"):
        await read_fleet(sources, raw(drain={"timeout": "soon"}), 1e6)  # type: ignore[arg-type]
    stalled = next(c for c in sources.status["conditions"] if c["type"] == "Stalled")
    assert stalled["reason"] == "Forbidden"
