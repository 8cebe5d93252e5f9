"""Items of `pods` as users may write them: one with every field, and strategies for any."""

from typing import Any

from hypothesis import strategies as st

from argosy_operator.api.v1alpha1.pods.volumes import OWN_PATHS, OWN_VOLUMES

ALL: dict[str, Any] = {
    "labels": {"team": "search", "cost.example.com/center": "42"},
    "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
    "nodeSelector": {"pool": "llm"},
    "tolerations": [{"key": "pool", "value": "llm", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"team": "search"}},
                }
            ]
        }
    },
    "topologySpread": [
        {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "priorityClassName": "serving",
    "schedulerName": "volcano",
    "runtimeClassName": "nvidia",
    "serviceAccountName": "llm",
    "imagePullSecrets": [{"name": "registry"}],
    "userIds": "Assigned",
    "rootFilesystem": "Writable",
    "resources": {
        "requests": {"cpu": 8, "memory": "64Gi", "ephemeral-storage": "10Gi"},
        "limits": {"cpu": 8, "memory": "64Gi", "rdma/hca": 1},
        "claims": [{"name": "nic", "resourceClaimTemplateName": "one-nic", "request": "nic"}],
    },
    "sharedMemory": "8Gi",
    "env": [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "tuning", "key": "level"}}},
        {"name": "PLAIN", "value": "yes"},
    ],
    "envFrom": [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "c"}, "prefix": "A_"}],
    "volumes": [
        {"name": "cache", "mountPath": "/cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "scratch", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "ram", "mountPath": "/ram", "emptyDir": {"medium": "Memory"}},
        {"name": "ca", "mountPath": "/ca", "configMap": {"name": "ca"}},
        {"name": "hub", "mountPath": "/hub", "secret": {"secretName": "hub", "optional": True}},
        {
            "name": "vault",
            "mountPath": "/vault",
            "readOnly": True,
            "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"class": "llm"}},
        },
    ],
}
"""An item with every field that is taken."""


def some(**fields: Any) -> Any:
    return st.fixed_dictionaries({}, optional=fields)


_names = st.sampled_from(["a", "llm", "x" * 63, "registry"])
_keys = st.sampled_from(
    [
        "team",
        "example.com/x",
        "serving.argosy.dev/role",
        "app.kubernetes.io/name",
        "container.apparmor.security.beta.kubernetes.io/engine",
        "seccomp.security.alpha.kubernetes.io/pod",
    ]
)
_texts = st.dictionaries(_keys, st.sampled_from(["a", "unconfined", ""]), max_size=3)
_amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "rdma/hca", "nvidia.com/gpu", "disk"]),
    st.sampled_from([1, "500m", "4Gi"]),
    max_size=3,
)
_reference = _names.map(lambda name: {"name": name})
_sources = st.sampled_from(
    [
        {"emptyDir": {}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"persistentVolumeClaim": {"claimName": "c"}},
        {"configMap": {"name": "c"}},
        {"secret": {"secretName": "s"}},
        {"csi": {"driver": "d.example.com"}},
        {"hostPath": {"path": "/"}},
        {"nfs": {"server": "s", "path": "/"}},
        {"emptyDir": {}, "secret": {"secretName": "s"}},
        {},
    ]
)
_volumes = st.builds(
    lambda name, path, source: {"name": name, "mountPath": path, **source},
    st.sampled_from(["v", "w", "x" * 63, *OWN_VOLUMES]),
    st.sampled_from(
        ["/data", "/cache", "/data/x", "/", "/a/../b", *OWN_PATHS, "/tmp/x", "/etc", "/usr"]
    ),
    _sources,
)
_variables = st.builds(
    lambda name, value: {"name": name, **value},
    st.sampled_from(["A", "B", "HOME", "POD_IP"]),
    st.sampled_from(
        [{}, {"value": "1"}, {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    ),
)
overlays = some(
    roles=st.lists(st.sampled_from(["prefill", "decode", "colocated", "gateway"]), max_size=2),
    labels=_texts,
    annotations=_texts,
    nodeSelector=_texts,
    tolerations=st.lists(
        st.sampled_from([{"operator": "Exists"}, {"key": "a"}, {"value": "b"}]), max_size=2
    ),
    affinity=st.just(ALL["affinity"]),
    topologySpread=st.just(ALL["topologySpread"]),
    priorityClassName=_names,
    serviceAccountName=_names,
    imagePullSecrets=st.lists(_reference, max_size=2),
    userIds=st.sampled_from(["Fixed", "Assigned", "Any"]),
    rootFilesystem=st.sampled_from(["ReadOnly", "Writable"]),
    resources=some(
        requests=_amounts,
        limits=_amounts,
        claims=st.just(ALL["resources"]["claims"]),
    ),
    sharedMemory=st.sampled_from(["1Gi", 5, "much"]),
    env=st.lists(_variables, max_size=3),
    envFrom=st.just(ALL["envFrom"]),
    volumes=st.lists(_volumes, max_size=2),
    securityContext=st.just({"privileged": True}),
    hostNetwork=st.just(True),
)
"""Items of `pods`, most of them with something that is refused."""


def accepted(item: dict[str, Any]) -> dict[str, Any]:
    """The item without the fields that are refused: what is left is taken, or refused as a whole.

    A field alone shows whether it is the one."""
    from pydantic import ValidationError

    from argosy_operator.api.v1alpha1.pods.section import PodSection

    kept: dict[str, Any] = {}
    for name, value in item.items():
        try:
            PodSection.model_validate({**kept, name: value})
        except ValidationError:
            continue
        kept[name] = value
    return kept
