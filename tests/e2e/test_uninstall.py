"""`helm uninstall` takes the operator away and leaves what it built serving."""

import pytest

from tests.e2e.installed import SYSTEM, complete

pytestmark = pytest.mark.cluster


def test_helm_uninstall_leaves_fleets_serving_and_keeps_their_objects(argosy, install_chart):
    argosy.apply("staying")
    argosy.until_ready("staying")
    argosy.kube.helm("uninstall", "argosy", "-n", SYSTEM, "--wait")
    try:
        argosy.until("the operators are gone", lambda: not argosy.operator_pods())
        assert argosy.fleet("staying")["metadata"]["name"] == "staying"
        assert complete(argosy.url("staying"), "staying").status_code == 200
    finally:
        install_chart()
    argosy.until_ready("staying")
    argosy.kubectl("delete", "sd", "staying", "--wait=false")
