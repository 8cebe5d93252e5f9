"""A live fleet goes from colocated to prefill and decode apart, and back, under traffic."""

import pytest

from tests.e2e.installed import traffic

pytestmark = pytest.mark.cluster

ROLES = {"colocated": {"colocated"}, "disaggregated": {"prefill", "decode"}}


def engine_roles(argosy, fleet):
    """Roles of the fleet's engine pods, those that are being deleted apart."""
    label = "serving.argosy.dev/role"
    return {pod["metadata"]["labels"][label] for pod in argosy.pods(fleet)} - {"gateway"}


def test_a_change_of_the_mode_loses_no_request(argosy):
    argosy.apply("moded", mode="colocated")
    argosy.until_ready("moded")
    with traffic(argosy.url("moded"), "moded", per_s=6, tokens=60) as outcomes:
        for mode in ("disaggregated", "colocated"):
            argosy.apply("moded", mode=mode)
            argosy.until(
                f"only pods of mode {mode}",
                lambda mode=mode: engine_roles(argosy, "moded") == ROLES[mode],
                90,
            )
            argosy.until_ready("moded")
    assert len(outcomes) > 20
    assert set(outcomes) == {"ok"}, outcomes
    argosy.kubectl("delete", "sd", "moded", "--wait=false")
