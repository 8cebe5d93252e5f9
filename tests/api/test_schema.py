"""The generated CRDs: structural, bounded, described, free of floats, and up to date."""

from pathlib import Path

import pytest
import yaml

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.crd import definitions, serving_deployments
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import (
    ServingDeployment,
    ServingDeploymentSpec,
    ServingDeploymentStatus,
    ServingRoleSpec,
    ServingRoleStatus,
)
from docs.generate import differing
from tests.api.crd_reading import defaulted, schema_of
from tests.api.refused import manifest
from tests.core.status.test_printer_columns import PART

ROOT = Path(__file__).resolve().parents[2]
CRDS = definitions()


def nodes(schema, path=""):
    """Every schema node with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


OURS = [
    (f"{document['spec']['names']['kind']}{path}", node)
    for document in CRDS
    for part in ("spec", "status")
    for path, node in nodes(schema_of(document)["properties"][part], f".{part}")
]


def test_committed_files_are_what_the_models_generate():
    assert differing() == [], "run: python -m docs.generate --write"


def test_every_text_list_and_map_is_bounded_so_that_rules_stay_cheap():
    limits = {"string": "maxLength", "array": "maxItems"}
    unbounded = [
        path
        for path, node in OURS
        if node.get("type") in limits and limits[node["type"]] not in node
    ]
    maps = [p for p, n in OURS if "additionalProperties" in n and "maxProperties" not in n]
    assert unbounded + maps == []


def closed(model, path=""):
    """Path below spec and words of each closed list, as the models have them."""
    document = model.model_json_schema(by_alias=True)
    kinds = document.get("$defs", {})

    def walk(node, path):
        node = kinds[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        for choice in node.get("anyOf", ()):
            yield from walk(choice, path)
        words = node.get("enum") or ([node["const"]] if "const" in node else [])
        if words:
            yield path, words
        for name, child in node.get("properties", {}).items():
            yield from walk(child, f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                yield from walk(node[key], f"{path}[]")

    return dict(walk(document, path))


@pytest.mark.parametrize(
    ("model", "start"),
    [
        (ServingDeploymentSpec, "ServingDeployment.spec"),
        (ServingDeploymentStatus, "ServingDeployment.status"),
        (ServingRoleSpec, "ServingRole.spec"),
        (ServingRoleStatus, "ServingRole.status"),
    ],
)
def test_every_closed_list_is_an_enum_that_editors_and_kubectl_explain_see(model, start):
    by_path = dict(OURS)
    lists = closed(model, start)
    assert {path: by_path[path].get("enum") for path in lists} == lists


def test_unknown_fields_are_kept_only_in_decision_records_and_in_what_is_not_ours_to_type():
    """Templates are Kubernetes' own."""
    open_ended = [p for p, n in OURS if n.get("x-kubernetes-preserve-unknown-fields")]
    of_pods = ("metadata", "spec")
    assert [path for path in open_ended if ".template." in path] == [
        f"ServingDeployment.spec.{of}template.{part}"
        for of in (
            "model.fetch.",
            *(f"roles.{r}." for r in ("prefill", "decode", "colocated")),
            "routing.",
            "",
        )
        for part in of_pods
    ]
    assert [path for path in open_ended if ".template." not in path] == [
        "ServingDeployment.status.autoscaling.lastDecision.record",
        "ServingDeployment.status.autoscaling.history[].record",
    ]


def test_status_has_no_defaults():
    assert [path for path, node in OURS if ".status" in path and "default" in node] == []


def test_defaults_of_the_crd_are_the_models_defaults():
    written = defaulted(schema_of(serving_deployments()), manifest({}))["spec"]
    read = dump(ServingDeployment.model_validate(manifest({})).spec)
    # An empty list and an absent one are equal.
    del read["engine"]["args"], read["engine"]["env"]
    del read["autoscaling"]["schedules"]
    del read["model"]["servedNames"], read["model"]["adapters"]
    for typed in (read, *read["roles"].values()):
        del typed["gpuTypes"]
    assert written == read


def test_nothing_below_a_list_has_a_default_in_the_crd():
    """GitOps tools compare lists as wholes: a field that the API server adds is drift for ever."""
    assert [path for path, node in OURS if "[]" in path and "default" in node] == []


def test_columns_and_scale_read_fields_that_exist():
    for document in CRDS:
        version = document["spec"]["versions"][0]
        schema = schema_of(document)
        paths = [c["jsonPath"] for c in version["additionalPrinterColumns"]]
        paths += version["subresources"].get("scale", {}).values()
        for path in paths:
            node = schema
            for name, condition in PART.findall(path):
                if name == "metadata":
                    break
                node = node["properties"][name]
                if condition:
                    assert condition in {kind.value for kind in ConditionType}
                    node = node["items"]


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda p: p.stem)
def test_files_are_plain_yaml_without_anchors(path):
    text = path.read_text("utf-8")
    assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
    assert "&id" not in text
