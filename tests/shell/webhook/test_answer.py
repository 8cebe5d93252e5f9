"""Whatever the API server asks, the answer is yes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.shell.webhook.answer import NoReviewError, answer

SLO = {"ttft": {"target": "2ms"}, "tpot": {"target": "50ms"}}
FLEET = {
    "metadata": {"name": "chat", "namespace": "ns"},
    "spec": {"model": {"uri": "sim://opt-13b-a100"}, "slo": SLO},
}


def review(**request: Any) -> dict[str, Any]:
    whole = {"uid": "one", "operation": "CREATE", "object": FLEET, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole}


def test_a_fleet_is_admitted_with_its_warnings() -> None:
    found = answer(review())
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = found["response"]
    assert (response["uid"], response["allowed"]) == ("one", True)
    size, floor = response["warnings"]
    assert size.startswith("spec.roles: 1 to 8 colocated pods")
    assert "below the engine's floor" in floor


def test_an_update_of_labels_is_admitted_without_a_word() -> None:
    response = answer(review(operation="UPDATE", oldObject=FLEET))["response"]
    assert response == {"uid": "one", "allowed": True}
    dry = answer(review(operation="UPDATE", oldObject=FLEET, dryRun=True))["response"]
    assert len(dry["warnings"]) == 2


def test_a_delete_is_admitted_without_a_word() -> None:
    asked = review(operation="DELETE", object=None, oldObject=FLEET)
    assert answer(asked)["response"] == {"uid": "one", "allowed": True}


def test_a_fault_of_ours_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("argosy_operator.shell.webhook.answer.told", faulty)
    assert answer(review())["response"] == {"uid": "one", "allowed": True}


@pytest.mark.parametrize("body", [None, 3, [], {}, {"request": 3}, {"request": {"uid": 3}}])
def test_what_is_no_review_is_named(body: Any) -> None:
    with pytest.raises(NoReviewError, match="AdmissionReview"):
        answer(body)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "metadata", "model", "uri", "slo"]), inner)
    ),
    max_leaves=12,
)


@given(ANY, ANY, ANY, st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT", ""]))
def test_whatever_objects_hold_they_are_admitted(
    new: Any, old: Any, dry_run: Any, operation: str
) -> None:
    asked = review(operation=operation, object=new, oldObject=old, dryRun=dry_run)
    assert answer(asked)["response"]["allowed"] is True
