"""The worlds hold every row of the page of conditions. Of two problems the worse one counts."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.core.status import (
    test_conditions_of_gateways,
    test_conditions_of_models,
    test_conditions_of_pods,
    test_conditions_of_problems,
    test_conditions_of_settings,
    test_conditions_of_the_slo,
    test_conditions_of_tls,
    test_conditions_of_trust,
)
from tests.core.status.worlds import (
    AT_REST,
    BUDGET,
    CLAIM,
    GATEWAY,
    HOOK,
    PULL,
    QUOTA,
    World,
    ended,
    refused,
    sick,
    status,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"
ROWS = (
    *test_conditions_of_gateways.ROWS,
    *test_conditions_of_models.ROWS,
    *test_conditions_of_pods.ROWS,
    *test_conditions_of_problems.ROWS,
    *test_conditions_of_settings.ROWS,
    *test_conditions_of_the_slo.ROWS,
    *test_conditions_of_tls.ROWS,
    *test_conditions_of_trust.ROWS,
)


def test_the_tables_have_every_row_of_the_documentation() -> None:
    row = re.compile(r"^\| (\w+) \| (\w+) \| \[?`(\w+)`\]?(?:\([^)]*\))? \|", re.MULTILINE)
    fleets, _, _ = (DOCS / "reference/conditions.md").read_text().partition("## Of a ServingRole")
    documented = set(row.findall(fleets))
    assert len(documented) > 90
    seen = {(type_, *said.split()) for row in ROWS for type_, said in row.says.items()}
    at_rest = {(type_, *said.split()) for type_, said in AT_REST.items()}
    following = {
        (type_, *said.split()) for type_, said in test_conditions_of_the_slo.FOLLOWING.items()
    }
    assert documented - seen - at_rest - following == set()


MOST_SERIOUS_FIRST = (
    ("InvalidSpec", refused(ErrorKind.INVALID, "x", "ServiceAccount/")),
    ("Forbidden", refused(ErrorKind.FORBIDDEN, "x", BUDGET)),
    ("Deleting", refused(ErrorKind.TERMINATING, "x", "Service/")),
    ("ClaimNotFound", sick(unschedulable=CLAIM)),
    ("ImagePullFailed", sick(waiting=("ErrImagePull", PULL))),
    ("ModelNotFound", ended("ModelNotFound", "x")),
    ("WeightsInvalid", ended("WeightsInvalid", "x")),
    ("UnsupportedArchitecture", ended("UnsupportedArchitecture", "x")),
    ("OutOfMemory", ended("OutOfMemory", "x")),
    ("BadArgument", ended("BadArgument", "x")),
    ("ContainerCrashing", sick(waiting=("CrashLoopBackOff", "x"))),
    ("PodNotStarted", sick(creating="ContainerCreating")),
    ("Unschedulable", sick(unschedulable="0/3 nodes")),
    ("QuotaExceeded", World(pods=(GATEWAY,), no_pods=QUOTA)),
    ("ForeignObject", World(pods=(GATEWAY,), taken=("RoleBinding/chat-gateway",))),
    ("WriteFailed", World(pods=(GATEWAY,), fails={"Deployment/chat-gateway": HOOK}, for_s=300.0)),
    ("Starting", World(pods=(GATEWAY,))),
)
"""Each reason with a world that has only this problem, in the order of the page of conditions."""


@pytest.mark.parametrize(
    ("worse", "milder"), list(pairwise(MOST_SERIOUS_FIRST)), ids=lambda problem: problem[0]
)
def test_of_two_problems_status_says_the_more_serious_one(
    worse: tuple[str, World], milder: tuple[str, World]
) -> None:
    (reason, first), (_, second) = worse, milder
    pods = [replace(p, name=f"{p.name}-{n}") for n, w in enumerate((second, first)) for p in w.pods]
    both = World(
        pods=tuple(pods),
        fails={**second.fails, **first.fails},
        taken=first.taken + second.taken,
        no_pods=first.no_pods or second.no_pods,
        for_s=max(first.for_s, second.for_s),
        before={"Servable": "False NoPods"},
    )
    said = {c.type: c.reason for c in status(both).conditions}
    assert {said["Ready"], said["Reconciling"], said["Stalled"]} == {reason}
