"""Templates of users: what is used of them, and what is named instead."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.objects import path
from argosy_operator.core.snapshot.template import asked_of, refusals
from argosy_operator.render import workload
from argosy_operator.render.engines import EnginePod
from tests.render.fleets import IMAGES, fleet

BOTH = ("prefill", "decode")


def engine(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **container}]}}


def refused(template: Any, **spec: Any) -> list[str]:
    """The fields of spec.template that are not used."""
    one = fleet(template=template, **spec)
    return [path(one.place).removeprefix("spec.template.") for one in refusals(one.spec)]


FIRST = "spec.containers[0]"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"metadata": {"name": "a"}}, "metadata.name"),
        ({"metadata": {"labels": {"serving.argosy.dev/role": "a"}}}, "metadata.labels."),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "a"}}}, "metadata.labels."),
        ({"metadata": {"annotations": {"prometheus.io/port": "1"}}}, "metadata.annotations."),
        ({"metadata": {"labels": None}}, "metadata.labels"),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
        ({"spec": {"$patch": "replace"}}, "spec.$patch"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"containers": "engine"}}, "spec.containers"),
        ({"spec": {"containers": [{"image": "a"}]}}, "spec.containers"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, FIRST),
        ({"spec": {"volumes": [{"name": "weights", "emptyDir": {}}]}}, "spec.volumes[0]"),
        ({"spec": {"tolerations": [7]}}, "spec.tolerations"),
        (engine(**{"$patch": "delete"}), f"{FIRST}.$patch"),
        (engine(image="a:1"), f"{FIRST}.image"),
        (engine(command=["a"]), f"{FIRST}.command"),
        (engine(args=None), f"{FIRST}.args"),
        (engine(readinessProbe={"periodSeconds": 1}), f"{FIRST}.readinessProbe"),
        (engine(lifecycle={}), f"{FIRST}.lifecycle"),
        (engine(terminationMessagePath="/a"), f"{FIRST}.terminationMessagePath"),
        (engine(env=[{"name": "POD_UID", "value": "a"}]), f"{FIRST}.env[0]"),
        (engine(ports=[{"containerPort": 8000, "name": "a"}]), f"{FIRST}.ports[0]"),
        (engine(volumeMounts=[{"name": "a", "mountPath": "/models"}]), f"{FIRST}.volumeMounts[0]"),
        (engine(resources=None), f"{FIRST}.resources"),
        (engine(resources={"limits": {"nvidia.com/gpu": 1}}), f"{FIRST}.resources.limits."),
    ],
)
def test_what_is_argosys_stays_and_is_named(template: Any, field: str) -> None:
    (found,) = refused(template)
    assert found.startswith(field)
    asked = asked_of(fleet(template=template).spec, "decode")
    assert asked == {}


def test_templates_of_roles_are_refused_where_they_stand() -> None:
    bad = {"spec": {"containers": [{"name": "gateway", "env": []}]}}
    one = fleet(
        roles={"decode": {"template": bad}},
        routing={"template": {"spec": {"automountServiceAccountToken": False}}},
        model={
            "uri": "hf://a/b",
            "fetch": {"size": "1Gi", "template": {"spec": {"serviceAccountName": "a"}}},
        },
    )
    assert [path(found.place) for found in refusals(one.spec)] == [
        "spec.roles.decode.template.spec.containers[0]",
        "spec.routing.template.spec.automountServiceAccountToken",
        "spec.model.fetch.template.spec.serviceAccountName",
    ]


def test_the_nodes_of_gpu_types_are_chosen_by_the_role() -> None:
    kind = {"name": "h100", "costPerHour": "4.10", "nodeSelector": {"gpu": "h100"}}
    types = {"gpuTypes": [kind], "roles": {role: {"gpuTypes": ["h100"]} for role in BOTH}}
    template = {"spec": {"nodeSelector": {"gpu": "any", "pool": "llm"}}}
    assert refused(template, **types) == ["spec.nodeSelector.gpu"]
    asked = asked_of(fleet(template=template, **types).spec, "decode")
    assert asked == {"spec": {"nodeSelector": {"pool": "llm"}}}


def test_gpus_by_claims_need_claims() -> None:
    roles: dict[str, Any] = {r: {"resources": {"gpuFrom": "Claims"}} for r in BOTH}
    found = [path(one.place) for one in refusals(fleet(roles=roles).spec)]
    assert found == [f"spec.roles.{role}.resources.gpuFrom" for role in BOTH]
    claims = [{"name": "a", "resourceClaimTemplateName": "a"}]
    assert refused({"spec": {"resourceClaims": claims}}, roles=roles) == []


def test_pods_that_change_their_role_have_one_template() -> None:
    template = {"spec": {"schedulerName": "a"}}
    one = fleet(roles={"prefill": {"template": template}}, autoscaling={"roleFlip": True})
    assert [path(found.place) for found in refusals(one.spec)] == ["spec.roles.decode.template"]
    assert asked_of(one.spec, "decode") == template


def test_containers_of_argosy_are_of_the_pods_that_have_them() -> None:
    items = [{"name": name, "tty": True} for name in ("engine", "gateway", "fetch", "sidecar")]
    one = fleet(template={"spec": {"containers": items}})

    def names(role: str) -> list[str]:
        return [item["name"] for item in asked_of(one.spec, role)["spec"]["containers"]]

    assert names("prefill") == ["engine", "sidecar"]
    assert names("gateway") == ["gateway", "sidecar"]
    assert names("fetch") == ["fetch"]


def test_the_job_is_placed_as_engines_are_and_uses_no_device() -> None:
    own = {"nodeSelector": {"zone": "a"}, "runtimeClassName": "nvidia", "priorityClassName": "a"}
    claims = {"resourceClaims": [{"name": "a"}], "serviceAccountName": "a"}
    one = fleet(roles={"prefill": {"template": {"spec": own}}}, template={"spec": claims})
    assert asked_of(one.spec, "fetch") == {"spec": {"nodeSelector": {"zone": "a"}}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "env", "resources", "limits", "a", "$patch", "volumes"]),
            v,
            max_size=3,
        )
    ),
    max_leaves=8,
)
FIELDS = ["containers", "volumes", "nodeSelector", "tolerations", "topologySpreadConstraints"]
ITEMS = st.lists(JSON.map(lambda v: {"name": "engine", **(v if isinstance(v, dict) else {})}))
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(st.sampled_from(["labels", "annotations", "name"]), JSON),
        "spec": st.dictionaries(st.sampled_from([*FIELDS, "securityContext"]), JSON | ITEMS),
    },
)


@given(template=TEMPLATES)
def test_whatever_is_written_the_container_stays_argosys(template: Any) -> None:
    def made(**spec: Any) -> Any:
        pod = EnginePod.of(fleet(**spec), "decode", "0" * 8, IMAGES)
        return workload.deployment(pod)["spec"]["template"]

    changed, plain = made(template=template), made()
    ours, before = (one["spec"]["containers"][0] for one in (changed, plain))
    for field in ("name", "image", "command", "args", "readinessProbe", "livenessProbe"):
        assert ours[field] == before[field]
    for items in ("ports", "volumeMounts"):
        assert [one for one in before[items] if one in ours[items]] == before[items]
    assert changed["metadata"]["labels"].items() >= plain["metadata"]["labels"].items()
