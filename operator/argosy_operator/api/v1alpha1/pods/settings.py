"""Settings of pods: labels, placement, identity, environment and volumes of pods.

Whatever it asks for, the pods pass the restricted profile of Pod Security: what the profile forbids
has no field here, or one that refuses it with a sentence. designs/0025-pods.md says why.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from argosy_operator.api import cel
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import LabelKey, LabelValue, LocalName, Quantity
from argosy_operator.api.model import ApiModel
from argosy_operator.api.refused import Refused
from argosy_operator.api.rule import ValidationRule
from argosy_operator.api.v1alpha1.pods.env import EnvFrom, PodEnv
from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.volumes import Volume

OWN_LABELS = ("serving.argosy.dev/", "app.kubernetes.io/", "pod-template-hash")
"""What keys of labels begin with that the operator or Kubernetes writes."""
OWN_ANNOTATIONS = (
    "serving.argosy.dev/",
    "prometheus.io/",
    "controller.kubernetes.io/pod-deletion-cost",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
"""Likewise of annotations, and what would take a pod out of the restricted profile."""
MOST_KEY = 317
"""Characters of a label's key: a domain of 253, a slash and 63."""

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


def _free(field: str, own: tuple[str, ...]) -> str:
    return (
        f"!has(self.{field}) || self.{field}.all(k, size(k) <= {MOST_KEY} && "
        + " && ".join(f"!k.startsWith({cel.literal(prefix)})" for prefix in own)
        + ")"
    )


def _once(field: str, key: str) -> str:
    """CEL: no two items of the list have the same key."""
    return (
        f"!has(self.{field}) || self.{field}.all(x, self.{field}.exists_one(y, y.{key} == x.{key}))"
    )


class Toleration(ApiModel):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey | None = None
    """The taint's key. Default: all taints, with operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal: the taint has this value. Exists: it has any value. Default Equal."""
    value: LabelValue | None = None
    """The taint's value."""
    effect: Effect | None = None
    """The taint's effect. Default: all."""
    toleration_seconds: Annotated[int, within("pods[].tolerations[].tolerationSeconds")] | None = (
        None
    )
    """How long a NoExecute taint is tolerated. Default: for ever."""

    def is_whole(self) -> bool:
        return self.operator == "Equal" or self.value is None

    def has_a_key(self) -> bool:
        return self.operator == "Exists" or self.key is not None

    def seconds_are_of_no_execute(self) -> bool:
        return self.toleration_seconds is None or self.effect == "NoExecute"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".value",
            cel="!has(self.operator) || self.operator == 'Equal' || !has(self.value)",
            holds=is_whole,
            message="with operator Exists any value is tolerated: leave value out, or write "
            "operator: Equal",
        ),
        ValidationRule(
            field=".key",
            cel="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            holds=has_a_key,
            message="a toleration without key is of all taints: write operator: Exists, or the key",
        ),
        ValidationRule(
            field=".tolerationSeconds",
            cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            holds=seconds_are_of_no_execute,
            message="tolerationSeconds count for effect NoExecute alone: write it, or leave them "
            "out",
        ),
    )


class TopologySpread(ApiModel):
    """How evenly the pods of a role are spread over nodes, zones or racks."""

    topology_key: LabelKey
    """Label of the nodes whose values are the places, such as topology.kubernetes.io/zone."""
    max_skew: Annotated[int, within("pods[].topologySpread[].maxSkew")] = 1
    """Most pods that a place may have more than another. Default 1."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """Whether a pod that would be too many waits. Default ScheduleAnyway: it does not."""


class PullSecret(ApiModel):
    """A Secret for the images' registry."""

    list_key: ClassVar[str | None] = "name"

    name: LocalName
    """Name of the Secret, in the fleet's namespace."""


Text = Annotated[str, StringConstraints(max_length=4096)]


class PodSettings(ApiModel):
    """How pods are placed and equipped."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    """More labels of the pods."""
    annotations: Annotated[dict[str, Text], Field(max_length=16)] = Field(default_factory=dict)
    """More annotations of the pods."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Labels that a node must have. Those of the role's GPU type count before them."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that the pods tolerate, besides the one of their GPUs' resource."""
    affinity: dict[str, Any] | None = None
    """Kubernetes' affinity, as in a pod. The API server checks it when the pods' Deployment is
    written."""
    topology_spread: Annotated[tuple[TopologySpread, ...], Field(max_length=4)] = ()
    """How the pods of a role are spread. Default: over nodes, where that is possible."""
    priority_class_name: LocalName | None = None
    """PriorityClass of the pods."""
    scheduler_name: LocalName | None = None
    """Scheduler of the pods."""
    runtime_class_name: LocalName | None = None
    """RuntimeClass of the pods, such as nvidia."""
    service_account_name: LocalName | None = None
    """ServiceAccount of the pods, which must exist. Default: accounts that Argosy makes. Who may
    use the account can call the fleet's engines; gateways' accounts may read the namespace's
    pods."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = ()
    """Secrets for the registry of the images."""
    user_ids: Literal["Fixed", "Assigned"] | None = None
    """Fixed: pods run as user and group 65532. Assigned: the platform chooses, as OpenShift does;
    pods name no user. Default Fixed."""
    root_filesystem: Literal["ReadOnly", "Writable"] | None = None
    """Writable: programs may write to the image's folders, which restricted Pod Security allows.
    Default ReadOnly."""
    resources: PodResources = PodResources()
    """What the pods' container asks for besides the role's own resources."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, such as 8Gi. It counts for the memory limit. Default: unbounded for engines
    on several GPUs, and the container runtime's for others."""
    env: Annotated[tuple[PodEnv, ...], Field(max_length=32)] = ()
    """More environment variables."""
    env_from: Annotated[tuple[EnvFrom, ...], Field(max_length=8)] = ()
    """Secrets and ConfigMaps whose keys become variables."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16)] = ()
    """More volumes, each with the path where it is mounted."""
    security_context: Annotated[
        dict[str, Any] | None,
        Refused(
            "Argosy writes the securityContext, so that pods pass restricted Pod Security: leave "
            "it out; privileged pods are not offered; for a platform that assigns user ids write "
            "userIds: Assigned, for programs that write to their image rootFilesystem: Writable"
        ),
    ] = None
    """Refused: Argosy writes it. See userIds and rootFilesystem."""
    host_network: Annotated[
        bool | None,
        Refused(
            "restricted Pod Security allows no hostNetwork: leave it out, and give pods a fast "
            "network by a resource such as rdma/hca or by an annotation of the CNI"
        ),
    ] = None
    """Refused: restricted Pod Security does not allow it."""

    def labels_are_free(self) -> bool:
        return _are_free(self.labels, OWN_LABELS)

    def annotations_are_free(self) -> bool:
        return _are_free(self.annotations, OWN_ANNOTATIONS)

    def names_are_short(self) -> bool:
        return all(len(key) <= MOST_KEY for key in self.node_selector)

    def variables_differ(self) -> bool:
        return len({env.name for env in self.env}) == len(self.env)

    def paths_differ(self) -> bool:
        paths = {volume.mount_path for volume in self.volumes}
        names = {volume.name for volume in self.volumes}
        return len(paths) == len(names) == len(self.volumes)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".labels",
            cel=_free("labels", OWN_LABELS),
            holds=labels_are_free,
            message="labels that begin with serving.argosy.dev/ or app.kubernetes.io/ are written "
            "by Argosy, and pod-template-hash by Kubernetes: choose a domain of your own",
        ),
        ValidationRule(
            field=".annotations",
            cel=_free("annotations", OWN_ANNOTATIONS),
            holds=annotations_are_free,
            message="annotations of serving.argosy.dev and prometheus.io and the deletion cost are "
            "written by Argosy, those of AppArmor and seccomp are not allowed: choose other keys",
        ),
        ValidationRule(
            field=".nodeSelector",
            cel=_free("nodeSelector", ()).replace(f"{MOST_KEY} && ", str(MOST_KEY)),
            holds=names_are_short,
            message="a key of nodeSelector has a domain, a slash and at most 63 characters: write "
            "one as nodes have it, such as topology.kubernetes.io/zone",
        ),
        ValidationRule(
            field=".env",
            cel=_once("env", "name"),
            holds=variables_differ,
            message="env names a variable twice: leave one out",
        ),
        ValidationRule(
            field=".volumes",
            cel=f"({_once('volumes', 'mountPath')}) && ({_once('volumes', 'name')})",
            holds=paths_differ,
            message="two volumes have the same name or mountPath: write another one for one of "
            "them",
        ),
    )


def _are_free(keys: dict[str, str], own: tuple[str, ...]) -> bool:
    return not any(len(key) > MOST_KEY or key.startswith(own) for key in keys)
