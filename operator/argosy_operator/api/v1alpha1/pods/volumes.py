"""Volumes of a pod: those that the restricted profile of Pod Security allows."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from argosy_operator.api import cel
from argosy_operator.api.fields import ItemName, LocalName, MountPath, Quantity, SubPath
from argosy_operator.api.model import ApiModel
from argosy_operator.api.refused import Refused
from argosy_operator.api.rule import ValidationRule
from argosy_operator.api.v1alpha1.pods.env import ObjectRef

OWN_VOLUMES = ("tmp", "shm", "weights", "role", "peers", "token", "tls")
"""Names of the volumes that the operator writes."""
OWN_PATHS = ("/tmp", "/dev", "/models", "/etc/argosy", "/var/run", "/run")  # noqa: S108
"""Where the operator and the kubelet mount something. Nothing else is mounted there or below."""
_KERNEL = ("/proc", "/sys")
"""Runtimes refuse a mount there or below, or it hides what a process needs."""
_PROGRAMS = ("/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/local/lib")
"""Where images have their programs. A folder below, which an image lacks, may be mounted."""


class EmptyDir(ApiModel):
    """An empty folder that lives as long as the pod."""

    medium: Literal["Disk", "Memory"] = "Disk"
    """Memory: in memory, which counts for the container's limit. Default Disk: the node's."""
    size_limit: Quantity | None = None
    """The pod is ended when more is written. Default: no limit."""


class Claim(ApiModel):
    """A PersistentVolumeClaim."""

    claim_name: LocalName
    """Name of the claim, in the fleet's namespace."""


class SecretFiles(ApiModel):
    """A Secret's keys as files. The kubelet reads it; the operator never does."""

    secret_name: LocalName
    """Name of the Secret, in the fleet's namespace."""
    optional: bool | None = None
    """True: the pod starts without it. Default: the pod waits for it."""


class Csi(ApiModel):
    """A volume of the pod's own from a CSI driver, such as one that fetches secrets."""

    driver: LocalName
    """Name of the driver."""
    volume_attributes: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=1024)]], Field(max_length=16)
    ] = Field(default_factory=dict)
    """What the driver is told."""


SOURCES = ("emptyDir", "persistentVolumeClaim", "configMap", "secret", "csi")


class Volume(ApiModel):
    """A volume, and where the pod's container sees it."""

    list_key: ClassVar[str | None] = "name"

    name: ItemName
    """The volume's name."""
    mount_path: MountPath
    """Where it is mounted, such as /data."""
    sub_path: SubPath | None = None
    """Folder of the volume that is mounted. Default: its root."""
    read_only: bool | None = None
    """True: it cannot be written. Default: it can, unless it is a configMap or secret."""
    empty_dir: EmptyDir | None = None
    """An empty folder."""
    persistent_volume_claim: Claim | None = None
    """A PersistentVolumeClaim, such as a cache that pods share."""
    config_map: ObjectRef | None = None
    """A ConfigMap's keys as files."""
    secret: SecretFiles | None = None
    """A Secret's keys as files."""
    csi: Csi | None = None
    """A volume from a CSI driver."""
    host_path: Annotated[
        dict[str, Any] | None,
        Refused(
            "restricted Pod Security allows no hostPath: write persistentVolumeClaim for data that "
            "stays, emptyDir for a scratch folder, or csi"
        ),
    ] = None
    """Refused: restricted Pod Security does not allow it."""

    @property
    def sources(self) -> int:
        """How many sources it has."""
        found = (self.empty_dir, self.persistent_volume_claim, self.config_map, self.secret)
        return sum(source is not None for source in (*found, self.csi))

    def has_one_source(self) -> bool:
        return self.sources == 1

    def name_is_free(self) -> bool:
        return self.name not in OWN_VOLUMES

    def path_is_free(self) -> bool:
        path, closed = self.mount_path, (*OWN_PATHS, *_KERNEL)
        below = any(path == own or path.startswith(own + "/") for own in closed)
        hides = any(own == path or own.startswith(path + "/") for own in (*closed, *_PROGRAMS))
        return not below and not hides

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel="["
            + ", ".join(f"has(self.{source})" for source in SOURCES)
            + "].filter(x, x).size() == 1",
            holds=has_one_source,
            message=f"a volume has one source: write one of {', '.join(SOURCES)}; other kinds, "
            "such as nfs, go through a persistentVolumeClaim",
        ),
        ValidationRule(
            field=".name",
            cel=f"!(self.name in {cel.literals(OWN_VOLUMES)})",
            holds=name_is_free,
            message=f"volumes named {', '.join(OWN_VOLUMES)} are Argosy's own: choose another name",
        ),
        ValidationRule(
            field=".mountPath",
            cel=f"!{cel.literals((*OWN_PATHS, *_KERNEL))}"
            ".exists(p, self.mountPath == p || self.mountPath.startsWith(p + '/'))"
            f" && !{cel.literals((*OWN_PATHS, *_KERNEL, *_PROGRAMS))}"
            ".exists(p, p == self.mountPath || p.startsWith(self.mountPath + '/'))",
            holds=path_is_free,
            message="a volume must not hide what the container needs. Argosy and the kubelet mount "
            f"their own at {', '.join(OWN_PATHS)}; programs are in /usr, /bin and /lib: write "
            "another mountPath, such as /data; for the size of /dev/shm write sharedMemory",
        ),
    )
