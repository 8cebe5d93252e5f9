"""Which differences of a child are ours to mend, and who made them."""

from argosy_operator.core.snapshot.objects import (
    changed_by,
    differences,
    owner_of_replicas,
    signed,
)


def paths(wanted: object, live: object) -> list[str]:
    return [".".join(path) for path in differences(wanted, live)]


def test_what_others_add_is_no_difference() -> None:
    wanted = {"spec": {"containers": [{"name": "engine", "image": "a"}]}}
    live = {
        "spec": {
            "containers": [{"name": "engine", "image": "a", "tty": True}, {"name": "sidecar"}],
            "dnsPolicy": "ClusterFirst",
        }
    }
    assert paths(wanted, live) == []


def test_an_item_is_known_by_its_name_wherever_it_stands() -> None:
    wanted = {"containers": [{"name": "engine", "image": "a"}]}
    live = {"containers": [{"name": "sidecar"}, {"name": "engine", "image": "b"}]}
    assert paths(wanted, live) == ["containers.name=engine.image"]


def test_a_missing_item_is_a_difference() -> None:
    wanted = {"env": [{"name": "A", "value": "1"}]}
    assert paths(wanted, {"env": []}) == ["env.name=A"]


def test_lists_that_are_ours_are_compared_whole() -> None:
    assert paths({"args": ["a", "b"]}, {"args": ["b", "a"]}) == ["args"]
    assert paths({"args": ["a"]}, {"args": ["a", "b"]}) == ["args"]


def test_quantities_are_compared_by_what_they_mean() -> None:
    wanted = {"resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}}}
    assert paths(wanted, {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}) == []
    assert paths(wanted, {"resources": {"limits": {"memory": "2Gi", "cpu": "1"}}}) != []


def test_nothing_and_absence_are_the_same() -> None:
    assert paths({"spec": {"paused": False, "list": []}}, {"spec": {}}) == []


def test_a_field_that_we_no_longer_render_changes_the_signature() -> None:
    meta = {"name": "chat"}
    one = signed({"metadata": meta, "spec": {"a": 1, "b": 2}})
    two = signed({"metadata": meta, "spec": {"a": 1}})
    assert paths(two, one) == ["metadata.annotations.serving.argosy.dev/applied"]


def entry(manager: str, fields: object, time: str, subresource: str = "") -> dict[str, object]:
    return {"manager": manager, "fieldsV1": fields, "time": time, "subresource": subresource}


def test_the_last_who_owns_the_field_is_named() -> None:
    replicas = {"f:spec": {"f:replicas": {}}}
    image = {"f:spec": {"f:containers": {'k:{"name":"engine"}': {"f:image": {}}}}}
    live = {
        "metadata": {
            "managedFields": [
                entry("argosy", image, "2026-01-03"),
                entry("alice", image, "2026-01-01"),
                entry("bob", replicas, "2026-01-02"),
            ]
        }
    }
    assert changed_by(live, ("spec", "containers", "name=engine", "image")) == "alice"
    assert changed_by(live, ("spec", "selector")) == "bob"
    assert owner_of_replicas(live) == "bob"


def test_an_object_without_managed_fields_was_changed_by_another_writer() -> None:
    assert changed_by({"metadata": {}}, ("spec",)) == "another writer"
    assert owner_of_replicas({"metadata": {}}) is None
