"""What the demo and the cluster tests read of an object's conditions."""

from local.demo.kube import condition, is_ready


def test_a_list_that_is_still_null_has_no_condition():
    """A CRD has null for an instant after it was created; `kubectl wait` fails on it."""
    new = {"metadata": {"generation": 1}, "status": {"conditions": None}}
    assert condition(new, "Established") == {}
    assert not is_ready(new)
