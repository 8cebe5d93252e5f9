"""Turns what the kubelet asks for into what `child.py` and `rootfs.py` do: pure functions.

The result is written as `spec.json` beside the container's state; see `fork/spec.py`.
"""

import signal
from pathlib import Path

from local.cluster.cri import api_pb2
from local.cluster.cri.fork.linux import CAPABILITIES
from local.cluster.cri.fork.spec import ContainerSpec
from local.cluster.cri.images import Image

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEFAULT_NAMES = (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP "
    "NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
)
_DEFAULT_CAPABILITIES = frozenset(_DEFAULT_NAMES.split())


def user_of(
    image: Image, security: api_pb2.LinuxContainerSecurityContext
) -> tuple[int, int, tuple[int, ...]]:
    """(uid, gid, groups): the pod's if it names them, else the image's. ValueError for a name."""
    if security.run_as_username:
        raise ValueError(
            f"runAsUserName {security.run_as_username!r} is not supported by this runtime: "
            "give the number as runAsUser"
        )
    uid = security.run_as_user.value if security.HasField("run_as_user") else image.user
    gid = security.run_as_group.value if security.HasField("run_as_group") else 0
    return uid, gid, tuple(dict.fromkeys((gid, *security.supplemental_groups)))


def capabilities_of(security: api_pb2.LinuxContainerSecurityContext) -> list[int]:
    """Numbers of the capabilities that a process of uid 0 gets."""
    if security.privileged:
        return list(range(len(CAPABILITIES)))

    def named(names: list[str]) -> set[str]:
        plain = {name.upper().removeprefix("CAP_") for name in names}
        return set(CAPABILITIES) if "ALL" in plain else plain

    wanted = security.capabilities
    keep = set(_DEFAULT_CAPABILITIES)
    if "ALL" in (name.upper() for name in wanted.add_capabilities):
        keep = set(CAPABILITIES)
    keep -= named(list(wanted.drop_capabilities))
    keep |= named(list(wanted.add_capabilities)) & set(CAPABILITIES)
    return sorted(CAPABILITIES.index(name) for name in keep)


def argv_of(image: Image, config: api_pb2.ContainerConfig) -> list[str]:
    """`command` replaces the entrypoint and the image's cmd; `args` replace the cmd."""
    if config.command:
        argv = [*config.command, *config.args]
    else:
        argv = [*image.entrypoint, *(config.args or image.cmd)]
    if not argv:
        raise ValueError(
            f"image {image.name!r} has no entrypoint and the container no command: set one of them"
        )
    return argv


def environment(
    image: Image, config: api_pb2.ContainerConfig, *, hostname: str, uid: int
) -> dict[str, str]:
    """The image's variables over the defaults, and the pod's over both."""
    env = {"PATH": _PATH, "HOSTNAME": hostname, "HOME": "/root" if uid == 0 else "/", **image.env}
    env.update((pair.key, pair.value.decode(errors="surrogateescape")) for pair in config.envs)
    return env


def spec_of(
    image: Image,
    config: api_pb2.ContainerConfig,
    pod: api_pb2.PodSandboxConfig,
    *,
    directory: Path,
    pod_directory: Path,
    rootless: bool,
) -> ContainerSpec:
    """The whole start of one container."""
    security = config.linux.security_context
    uid, gid, groups = user_of(image, security)
    return {
        "dir": str(directory),
        "rootless": rootless,
        "image_root": image.root,
        "paths": list(image.paths),
        "mounts": [
            {
                "source": m.host_path,
                "target": m.container_path,
                "readonly": m.readonly,
                "recursive_readonly": m.recursive_read_only,
            }
            for m in config.mounts
        ],
        "devices": [(d.host_path, d.container_path) for d in config.devices],
        "files": {
            f"/etc/{name}": str(pod_directory / name)
            for name in ("resolv.conf", "hosts", "hostname")
        },
        "shm": str(pod_directory / "shm"),
        "privileged": security.privileged,
        "readonly_rootfs": security.readonly_rootfs,
        "readonly_paths": [] if security.privileged else list(security.readonly_paths),
        "masked_paths": [] if security.privileged else list(security.masked_paths),
        "passwd": _passwd(uid, gid),
        "group": _group(gid),
        "argv": argv_of(image, config),
        "env": environment(image, config, hostname=pod.hostname, uid=uid),
        "cwd": config.working_dir or image.working_dir,
        "uid": uid,
        "gid": gid,
        "groups": list(groups),
        "capabilities": capabilities_of(security),
        "no_new_privs": security.no_new_privs,
        "oom_score_adj": config.linux.resources.oom_score_adj,
    }


def _passwd(uid: int, gid: int) -> str:
    """Programs look up the name of their user (getpass, torch), so it needs one."""
    lines = ["root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"]
    if uid not in (0, 65534):
        lines.append(f"app:x:{uid}:{gid}:app:/:/usr/sbin/nologin")
    return "\n".join(lines) + "\n"


def _group(gid: int) -> str:
    lines = ["root:x:0:", "nogroup:x:65534:"]
    if gid not in (0, 65534):
        lines.append(f"app:x:{gid}:")
    return "\n".join(lines) + "\n"


def signal_number(wanted: int) -> int:
    """A CRI Signal as a number; RUNTIME_DEFAULT is SIGTERM."""
    name = api_pb2.Signal.Name(wanted)
    if name == "RUNTIME_DEFAULT":
        return signal.SIGTERM
    for base, sign, mark in (("SIGRTMIN", 1, "PLUS"), ("SIGRTMAX", -1, "MINUS")):
        if name.startswith(base):
            return signal.Signals[base] + sign * int(name.removeprefix(base + mark) or 0)
    return signal.Signals[{"SIGCLD": "SIGCHLD", "SIGIOT": "SIGABRT"}.get(name, name)]


def resolv_conf(dns: api_pb2.DNSConfig) -> str:
    """Text of /etc/resolv.conf."""
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append("search " + " ".join(dns.searches))
    if dns.options:
        lines.append("options " + " ".join(dns.options))
    return "".join(line + "\n" for line in lines)
