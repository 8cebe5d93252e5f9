"""Actions that depend on each other: no engine is ordered to drain without its pod's mark."""

from collections.abc import Mapping

import pytest

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import AnnotatePod, ErrorKind, HastenDrain, TakeWorkAgain
from argosy_operator.shell.execute import execute
from tests.support.model import fleet

MARK = {"serving.argosy.dev/drain": "2026-01-01T00:00:00Z"}


class Refusing:
    """A cluster whose pods cannot be annotated."""

    def __init__(self, error_kind: ErrorKind) -> None:
        self.error_kind = error_kind

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, values: Mapping[str, str | None]
    ) -> None:
        raise ClusterError(self.error_kind, f"annotate {kind} {name}", "no")


class Engines:
    def __init__(self) -> None:
        self.draining: set[str] = set()
        self.recalled: set[str] = set()

    async def drain(self, ip: str, fleet: object, uid: str) -> bool:
        self.draining.add(ip)
        return True

    async def take_work_again(self, ip: str, fleet: object, uid: str) -> bool:
        self.recalled.add(ip)
        return True


@pytest.mark.parametrize(
    "error_kind", [ErrorKind.FORBIDDEN, ErrorKind.INVALID, ErrorKind.CONFLICT, ErrorKind.NOT_FOUND]
)
async def test_an_engine_whose_pod_could_not_be_marked_serves_on(error_kind: ErrorKind) -> None:
    """The mark is what the gateway sees, and what lets the pod be called back."""
    engines = Engines()
    actions = (
        AnnotatePod("a", "u", MARK),
        HastenDrain("a", "10.0.0.1"),
        HastenDrain("b", "10.0.0.2"),  # marked in an earlier round
    )
    await execute(Refusing(error_kind), engines, fleet(), actions)  # type: ignore[arg-type]
    assert engines.draining == {"10.0.0.2"}


async def test_a_pod_whose_mark_stays_is_not_told_to_take_work_again() -> None:
    engines = Engines()
    unmark = AnnotatePod("a", "u", dict.fromkeys(MARK))
    actions = (unmark, TakeWorkAgain("a", "10.0.0.1"), TakeWorkAgain("b", "10.0.0.2"))
    await execute(Refusing(ErrorKind.FORBIDDEN), engines, fleet(), actions)  # type: ignore[arg-type]
    assert engines.recalled == {"10.0.0.2"}
