"""Where a live child differs from the one that was rendered: a table, one row per rule."""

from typing import Any

import pytest

from argosy_operator.core.snapshot.objects import differences, readable, signed


def item(name: str, **more: Any) -> list[Any]:
    return [{"name": name, **more}]


@pytest.mark.parametrize(
    ("wanted", "live", "paths"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="the same"),
        pytest.param({"a": 1}, {"a": 2}, ["a"], id="another value"),
        pytest.param({"a": 1}, {}, ["a"], id="a value that is missing"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 9}}, ["a.b", "a.c"], id="two of them"),
        pytest.param({"a": {"b": 1}}, {"a": "text"}, ["a.b"], id="a text for a map"),
        pytest.param({"a": {"b": 1}}, {"a": None}, ["a.b"], id="null for a map"),
        pytest.param({"a": 1}, {"a": 1, "b": 2}, [], id="what others add"),
        pytest.param(
            {"a": "", "b": None, "c": False, "d": 0, "e": [], "f": {}}, {}, [], id="empty values"
        ),
        pytest.param(
            {"a": "", "b": None, "c": False, "d": 0},
            {"a": "x", "b": 1, "c": True, "d": 2},
            ["a", "b", "c", "d"],
            id="empty values that are set",
        ),
        pytest.param({"args": ["a"]}, {"args": ["a"]}, [], id="the same list"),
        pytest.param({"args": ["a"]}, {}, ["args"], id="a list that is missing"),
        pytest.param({"args": []}, {"args": ["a"]}, ["args"], id="a list that should be empty"),
        pytest.param({"args": ["a"]}, {"args": None}, ["args"], id="null for a list"),
        pytest.param(
            {"rules": [{"verbs": ["get"], "resources": ["pods"]}]},
            {"rules": [{"verbs": ["*"], "resources": ["*"]}]},
            ["rules"],
            id="a list of ours is named once",
        ),
        pytest.param(
            {"rules": [{"verbs": ["get"]}]},
            {"rules": [{"verbs": ["get"], "default": True}]},
            [],
            id="defaults within a list of ours",
        ),
        # Lists to which others may add items.
        pytest.param(
            {"containers": item("a", x=1)},
            {"containers": item("b") + item("a", x=2)},
            ["containers.name=a.x"],
            id="a container",
        ),
        pytest.param(
            {"containers": item("a")}, {}, ["containers.name=a"], id="a container that is missing"
        ),
        pytest.param(
            {"initContainers": item("a")},
            {"initContainers": item("b") + item("a")},
            [],
            id="init containers of others",
        ),
        pytest.param(
            {"env": item("A", value="1") + item("B", value="2")},
            {"env": item("B", value="3")},
            ["env.name=A", "env.name=B.value"],
            id="variables",
        ),
        pytest.param(
            {"volumes": item("tmp", emptyDir={})},
            {"volumes": item("token") + item("tmp", emptyDir={})},
            [],
            id="volumes of others",
        ),
        pytest.param(
            {"volumeMounts": [{"name": "tmp", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "tmp", "mountPath": "/b"}]},
            ["volumeMounts.mountPath=/a"],
            id="a mount is known by its path",
        ),
        pytest.param(
            {"ports": [{"name": "http", "containerPort": 8000}]},
            {"ports": [{"name": "b"}, {"name": "http", "containerPort": 9}]},
            ["ports.name=http.containerPort"],
            id="a port with a name",
        ),
        pytest.param(
            {"ports": [{"containerPort": 8000}]},
            {"ports": [{"containerPort": 1}, {"containerPort": 8000}]},
            [],
            id="a container port without one",
        ),
        pytest.param(
            {"ports": [{"port": 80}]}, {"ports": []}, ["ports.port=80"], id="a port of a Service"
        ),
        pytest.param(
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            {"tolerations": [{"key": "spot"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]},
            [],
            id="tolerations of others",
        ),
        pytest.param(
            {"ownerReferences": [{"uid": "1", "name": "chat", "controller": True}]},
            {"ownerReferences": [{"uid": "2", "name": "chat", "controller": True}]},
            ["ownerReferences.uid=1"],
            id="an owner is known by its uid",
        ),
        # Quantities.
        pytest.param(
            {"resources": {"limits": {"memory": "1024Mi", "cpu": "0.5", "nvidia.com/gpu": "1"}}},
            {"resources": {"limits": {"memory": "1Gi", "cpu": "500m", "nvidia.com/gpu": 1}}},
            [],
            id="the same quantity in another spelling",
        ),
        pytest.param(
            {"resources": {"limits": {"memory": "1024Mi"}}},
            {"resources": {"limits": {"memory": "1G"}}},
            ["resources.limits.memory"],
            id="another quantity",
        ),
        pytest.param(
            {"resources": {"limits": {"memory": "much"}}},
            {"resources": {"limits": {"memory": "more"}}},
            ["resources.limits.memory"],
            id="two texts that are no quantities",
        ),
        pytest.param({"value": "1024Mi"}, {"value": "1Gi"}, ["value"], id="outside of resources"),
    ],
)  # fmt: skip
def test_only_what_was_rendered_is_compared(wanted: Any, live: Any, paths: list[str]) -> None:
    assert [readable(path) for path in differences(wanted, live)] == paths


def test_a_child_carries_the_digest_of_what_was_rendered() -> None:
    """printf of the JSON below, through sha256sum."""
    child = {"kind": "Service", "metadata": {"name": "chat", "annotations": {"a": "1"}}, "spec": {}}
    assert signed(child) == {
        "kind": "Service",
        "metadata": {
            "name": "chat",
            "annotations": {"a": "1", "serving.argosy.dev/applied": "d9b67b1a6b8043b4"},
        },
        "spec": {},
    }
    assert child["metadata"] == {"name": "chat", "annotations": {"a": "1"}}


@pytest.mark.parametrize("metadata", [{}, {"annotations": None}])
def test_a_child_without_annotations_gets_one(metadata: Any) -> None:
    annotations = signed({"metadata": metadata})["metadata"]["annotations"]
    assert list(annotations) == ["serving.argosy.dev/applied"]
