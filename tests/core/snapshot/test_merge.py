"""Strategic merge: what Kubernetes does with patches, and what holds for every patch."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.template import MERGE_KEYS, SETS, merge, resolve

SCALARS = st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["a", "b"]))
FIELDS = st.sampled_from(["a", "b", "env", "volumes", "tolerations", "containers", "args"])


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of a pod: keyed lists hold items with their key."""

    def filled(drawn: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for name, value in drawn.items():
            items = value if isinstance(value, list) else [value]
            if name in MERGE_KEYS or name in SETS:
                key = MERGE_KEYS.get(name, "key")
                found = [i if isinstance(i, dict) else {} for i in items]
                out[name] = [{**i, key: f"n{at}"} for at, i in enumerate(found[:2])]
            else:
                out[name] = value
        return out

    words = st.fixed_dictionaries({}, optional={"$patch": st.sampled_from(["replace", "delete"])})
    drawn = st.dictionaries(FIELDS, values, max_size=3).map(filled)
    return st.builds(lambda part, word: part | word, drawn, words | st.just({}))


patches = st.recursive(SCALARS, lambda v: maps(v) | st.lists(v, max_size=3), max_leaves=12)
objects = maps(patches)


def shuffled(value: Any) -> Any:
    """The same with the keys of all maps in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(far=objects)
def test_an_empty_patch_changes_nothing(far: Any) -> None:
    far = merge({}, far)
    if "$patch" not in far:
        assert merge(far, {}) == far


@given(far=objects, near=objects)
def test_a_patch_that_is_merged_twice_is_merged_once(far: Any, near: Any) -> None:
    once = merge(far, near)
    assert merge(once, near) == once


@given(far=objects, near=objects)
def test_the_order_of_keys_is_of_no_matter(far: Any, near: Any) -> None:
    assert text(merge(shuffled(far), shuffled(near))) == text(merge(far, near))


@given(base=objects, far=objects, near=objects)
def test_two_patches_may_be_merged_before_they_are_laid_over_an_object(
    base: Any, far: Any, near: Any
) -> None:
    """The revision is made of the merged patches, and pods of what they come to."""
    base = resolve(merge({}, base))
    together = resolve(merge(base, merge(far, near)))
    assert resolve(merge(merge(base, far), near)) == together


@given(value=patches)
def test_what_is_resolved_has_no_words_of_deletion(value: Any) -> None:
    assert "$patch" not in text(resolve(value))
    assert ": null" not in text(resolve(value))


POD: Any = {
    "securityContext": {"runAsUser": 1, "runAsNonRoot": True},
    "containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}], "args": ["a"]}],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "tolerations": [{"key": "gpu"}],
}


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({"schedulerName": "x"}, {"schedulerName": "x"}),
        ({"securityContext": {"runAsUser": None}}, {"securityContext": {"runAsNonRoot": True}}),
        (
            {"securityContext": {"$patch": "replace", "fsGroup": 2}},
            {"securityContext": {"fsGroup": 2}},
        ),
        (
            {"containers": [{"name": "log", "image": "l"}]},
            {"containers": [*POD["containers"], {"name": "log", "image": "l"}]},
        ),
        (
            {"containers": [{"name": "engine", "args": ["b"]}]},
            {"containers": [{**POD["containers"][0], "args": ["b"]}]},
        ),
        ({"volumes": [{"name": "tmp", "$patch": "delete"}]}, {"volumes": []}),
        (
            {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]},
        ),
        (
            {"volumes": [{"name": "tmp", "csi": {"driver": "d"}}]},
            {"volumes": [{"name": "tmp", "csi": {"driver": "d"}}]},
        ),
        (
            {"volumes": [{"$patch": "replace"}, {"name": "a", "emptyDir": {}}]},
            {"volumes": [{"name": "a", "emptyDir": {}}]},
        ),
        (
            {"tolerations": [{"key": "gpu"}, {"key": "pool"}]},
            {"tolerations": [{"key": "gpu"}, {"key": "pool"}]},
        ),
    ],
)
def test_a_patch_does_what_it_does_in_kubernetes(patch: Any, changed: Any) -> None:
    assert resolve(merge(POD, patch)) == {**POD, **changed}


def test_a_variable_with_another_source_replaces_the_old_one() -> None:
    source = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    merged = resolve(merge(POD, {"containers": [{"name": "engine", "env": [source]}]}))
    assert merged["containers"][0]["env"] == [source]
