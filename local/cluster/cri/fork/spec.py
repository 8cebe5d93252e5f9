"""`spec.json`: all that starting one container takes. `launch.py` writes it, `child.py` and
`rootfs.py` read it, at the container's start and again for each exec.
"""

from typing import TypedDict


class MountSpec(TypedDict):
    """One CRI mount: a bind of a host path."""

    source: str
    target: str
    readonly: bool
    recursive_readonly: bool
    """Read-only for the mounts below it too."""


class ContainerSpec(TypedDict):
    """The whole start of one container."""

    dir: str
    """The container's folder on the node's tmpfs; the writable layers lie below it."""
    rootless: bool
    """The node runs as uid 0 of a user namespace: no other uid exists there."""
    image_root: str
    """Host folder of the unpacked image; empty: the host's own system folders."""
    paths: list[str]
    """Absolute host paths that the image brings, read-only."""
    mounts: list[MountSpec]
    devices: list[tuple[str, str]]
    """(host path, container path) of each device that the pod asks for."""
    files: dict[str, str]
    """Container path → host file, for what the runtime writes itself, such as /etc/hosts."""
    shm: str
    """Host folder of the pod's shared memory, mounted at /dev/shm."""
    privileged: bool
    readonly_rootfs: bool
    readonly_paths: list[str]
    masked_paths: list[str]
    passwd: str
    """Content of /etc/passwd."""
    group: str
    """Content of /etc/group."""
    argv: list[str]
    env: dict[str, str]
    cwd: str
    uid: int
    gid: int
    groups: list[int]
    capabilities: list[int]
    """Numbers (capability.h) that a process of uid 0 may have."""
    no_new_privs: bool
    oom_score_adj: int
