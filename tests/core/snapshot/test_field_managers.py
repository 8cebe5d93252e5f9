"""Who wrote a field, by `metadata.managedFields` as the API server keeps it."""

from typing import Any

import pytest
import yaml

from argosy_operator.core.snapshot.objects import changed_by, owner_of_replicas

REPLICAS = {"f:spec": {"f:replicas": {}}}
REST = {"f:spec": {".": {}, "f:fleet": {}, "f:role": {}}}
STATUS = {"f:status": {"f:replicas": {}}}


def entry(manager: str, fields: Any, time: str | None, subresource: str | None = None) -> Any:
    whole = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        "subresource": subresource,
    }
    return {key: value for key, value in whole.items() if value is not None}


APPLIED = entry("argosy", REST, "2026-01-02T03:00:00Z")
REPORTED = entry("argosy", STATUS, "2026-01-02T05:00:00Z", "status")


@pytest.mark.parametrize(
    ("entries", "owner"),
    [
        pytest.param(None, None, id="no managedFields"),
        pytest.param([], None, id="managedFields that were cleared"),
        pytest.param([APPLIED, REPORTED], None, id="no manager wrote replicas"),
        pytest.param(
            [APPLIED, entry("argosy", REPLICAS, "2026-01-02T03:10:00Z", "scale"), REPORTED],
            "argosy",
            id="the operator, through /scale",
        ),
        pytest.param(
            [APPLIED, entry("kubectl", REPLICAS, "2026-01-02T03:10:00Z", "scale")],
            "kubectl",
            id="kubectl scale",
        ),
        pytest.param(
            [
                APPLIED,
                entry("kubectl-edit", {"f:spec": {"f:replicas": {}}}, "2026-01-02T03:10:00Z"),
            ],
            "kubectl-edit",
            id="kubectl edit",
        ),
        pytest.param(
            [
                entry("kubectl", REPLICAS, "2026-01-02T03:30:00Z", "scale"),
                entry("argosy", REPLICAS, "2026-01-02T03:40:00Z", "scale"),
            ],
            "argosy",
            id="both wrote the same number: the later",
        ),
        pytest.param(
            [
                entry("kubectl", REPLICAS, "2026-01-02T03:40:00Z", "scale"),
                entry("argosy", REPLICAS, "2026-01-02T03:30:00Z", "scale"),
            ],
            "kubectl",
            id="in either order",
        ),
        pytest.param(
            [
                entry("kubectl", REPLICAS, None, "scale"),
                entry("vpa", REPLICAS, "2026-01-02T03:30:00Z", "scale"),
            ],
            "vpa",
            id="an entry without a time is the oldest",
        ),
        pytest.param(
            [entry("tool", {"f:spec": {}}, "2026-01-02T03:30:00Z")], "tool", id="the whole spec"
        ),
        pytest.param(
            [{"manager": "tool", "time": "2026-01-02T03:30:00Z"}],
            None,
            id="an entry without fields",
        ),
    ],
)
def test_replicas_are_owned_by_the_manager_that_wrote_them_last(
    entries: Any, owner: str | None
) -> None:
    assert owner_of_replicas({"metadata": {"managedFields": entries}}) == owner


DEPLOYMENT = yaml.safe_load("""
metadata:
  managedFields:
    - manager: argosy
      operation: Apply
      time: "2026-01-02T03:50:00Z"
      fieldsV1:
        f:spec:
          f:revisionHistoryLimit: {}
          f:template:
            f:spec:
              f:containers:
                k:{"name":"engine"}: {".": {}, f:name: {}, f:command: {}, f:image: {}}
    - manager: injector
      operation: Update
      time: "2026-01-02T03:05:00Z"
      fieldsV1:
        f:spec:
          f:template:
            f:spec:
              f:tolerations: {}
              f:containers:
                k:{"name":"proxy"}: {".": {}, f:name: {}, f:image: {}}
    - manager: kubectl-edit
      operation: Update
      time: "2026-01-02T03:10:00Z"
      fieldsV1:
        f:spec:
          f:template:
            f:spec:
              f:containers:
                k:{"name":"engine"}:
                  f:image: {}
                  f:ports:
                    k:{"containerPort":8000,"protocol":"TCP"}: {".": {}, f:name: {}}
                  f:volumeMounts:
                    k:{"mountPath":"/data/a=b"}: {f:readOnly: {}}
    - manager: kubectl
      operation: Update
      subresource: scale
      time: "2026-01-02T03:20:00Z"
      fieldsV1:
        f:spec: {f:replicas: {}}
    - manager: helm
      operation: Update
      fieldsV1:
        f:spec: {f:revisionHistoryLimit: {}}
    - manager: kube-controller-manager
      operation: Update
      subresource: status
      time: "2026-01-02T03:59:00Z"
      fieldsV1:
        f:spec: {f:replicas: {}, f:revisionHistoryLimit: {}}
        f:status: {f:replicas: {}}
""")

POD = ("spec", "template", "spec")
ENGINE = (*POD, "containers", "name=engine")


@pytest.mark.parametrize(
    ("path", "manager"),
    [
        pytest.param((*ENGINE, "image"), "kubectl-edit", id="a field of our container"),
        pytest.param((*POD, "containers", "name=proxy", "image"), "injector", id="another item"),
        pytest.param((*POD, "containers", "name=engine"), "kubectl-edit", id="an item as a whole"),
        pytest.param((*POD, "tolerations"), "injector", id="a list that is one field"),
        pytest.param((*POD, "tolerations", "key=nvidia.com/gpu"), "injector", id="an item of it"),
        pytest.param(("spec", "replicas"), "kubectl", id="replicas, through /scale"),
        pytest.param(
            (*ENGINE, "ports", "containerPort=8000", "name"),
            "kubectl-edit",
            id="an item that a number names",
        ),
        pytest.param(
            (*ENGINE, "volumeMounts", "mountPath=/data/a=b", "readOnly"),
            "kubectl-edit",
            id="an item whose name has an equals sign",
        ),
        pytest.param(("spec", "revisionHistoryLimit"), "helm", id="by one without a time"),
        pytest.param((*ENGINE, "command"), "kubectl", id="of no other manager: the last writer"),
        pytest.param((*POD, "volumes", "name=tmp"), "kubectl", id="a field that is in no entry"),
    ],
)
def test_a_change_is_put_down_to_the_other_manager_of_the_field(
    path: tuple[str, ...], manager: str
) -> None:
    assert changed_by(DEPLOYMENT, path) == manager


OURS = entry("argosy", REPLICAS, "2026-01-02T03:00:00Z")


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        pytest.param([OURS], "another writer", id="only the operator is known"),
        pytest.param(
            [OURS, entry("kubelet", REPLICAS, "2026-01-02T03:00:00Z", "status")],
            "another writer",
            id="only status was written",
        ),
        pytest.param(
            [entry("a", REST, "2026-01-02T03:00:00Z", ""), entry("b", REST, None)],
            "a",
            id="the object itself",
        ),
        pytest.param(
            [entry("b", REST, None), entry("0", REST, "")], "b", id="two without a time: the first"
        ),
        pytest.param([{"manager": "tool"}], "tool", id="an entry without fields"),
    ],
)
def test_a_writer_of_status_is_not_blamed(entries: Any, who: str) -> None:
    assert changed_by({"metadata": {"managedFields": entries}}, ("spec", "replicas")) == who
