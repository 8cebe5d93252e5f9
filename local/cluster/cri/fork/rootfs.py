"""Builds a container's root: directories of its image as overlays, or system directories of the
host and everything else empty.

It runs in the container's own mount namespace, before the program. A container sees `/usr`, `/etc`,
`/opt` and the library directories of the host (copy-on-write), the paths that its image lists
(read-only), and its CRI mounts. It does not see home directories, `/run`, `/var`, `/tmp` and the
rest of the host. A container of an unpacked image sees that image's directories in place of the
host's. Each directory is an overlay of its own, with `userxattr`: that works as root and
as uid 0 of a user namespace, where an overlay of `/` itself is refused.
"""

import os
import shutil
import stat

from local.cluster.cri.fork import linux
from local.cluster.cri.fork.spec import ContainerSpec, MountSpec

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
_EMPTY = ("home", "mnt", "proc", "root", "run", "srv", "sys", "dev", "run/lock")
_VAR = ("var/cache", "var/lib", "var/log", "var/spool")
_COPIED_BYTES = 1 << 20
_NOT_OF_IMAGES = ("dev", "proc", "run", "sys", "tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def resolve_in(root: str, path: str) -> str:
    """Real path of `path` as seen from `root`; absolute links stay below `root`.

    Missing components are kept as they are. ValueError after 40 links.
    """
    pending = [part for part in path.split("/") if part]
    resolved: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            resolved = resolved[:-1]
            continue
        if part == ".":
            continue
        candidate = os.path.join(root, *resolved, part)
        if not os.path.islink(candidate):
            resolved.append(part)
            continue
        links += 1
        if links > 40:
            raise ValueError(f"too many symbolic links in {path}")
        target = os.readlink(candidate)
        if target.startswith("/"):
            resolved = []
        pending = [piece for piece in target.split("/") if piece] + pending
    return os.path.join(root, *resolved)


def _place(root: str, path: str, *, directory: bool) -> str:
    """Create a mount point of the right kind if there is none; returns its real path."""
    target = resolve_in(root, path)
    if directory:
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    return target


def _bind(root: str, source: str, path: str) -> str:
    target = _place(root, path, directory=os.path.isdir(source))
    linux.bind(source, target)
    return target


def build(spec: ContainerSpec) -> str:
    """Assemble the root that `spec` describes; returns its path."""
    root = os.path.join(spec["dir"], "root")
    os.makedirs(root, exist_ok=True)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.bind(root, root)
    _skeleton(root)
    _system(spec, root)
    _devices(spec, root)
    linux.mount(
        "proc",
        f"{root}/proc",
        kind="proc",
        flags=linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC,
    )
    linux.bind("/sys", f"{root}/sys")
    if not spec["privileged"]:
        linux.make_readonly(f"{root}/sys", recursive=True)
    # A volume may hide a path of the image, such as an emptyDir at /tmp over a clone below it. Such
    # a path is bound after the volume, into it.
    hidden = [path for path in spec["paths"] if _below_a_mount(path, spec["mounts"])]
    for path in spec["paths"]:
        if path not in hidden:
            _image_path(root, path)
    _cri_mounts(spec, root)
    for path in hidden:
        _image_path(root, path)
    if spec["cwd"] != "/":
        os.makedirs(resolve_in(root, spec["cwd"]), mode=0o755, exist_ok=True)
    _restrict(spec, root)
    return root


def _skeleton(root: str) -> None:
    os.chmod(root, 0o755)  # noqa: S103
    for name in (*_EMPTY, *_VAR):
        os.makedirs(f"{root}/{name}", mode=0o755, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        os.chmod(f"{root}/{name}", 0o1777)  # noqa: S103 — as /tmp is
    if not os.path.lexists(f"{root}/var/run"):
        os.symlink("/run", f"{root}/var/run")
        os.symlink("/run/lock", f"{root}/var/lock")


def _system(spec: ContainerSpec, root: str) -> None:
    if not spec["image_root"]:
        # Before the mount: a file of the host whose owner is not mapped cannot be overwritten.
        own = os.path.join(spec["dir"], "upper", "etc")
        os.makedirs(own, mode=0o755, exist_ok=True)
        for name in ("passwd", "group"):
            with open(f"{own}/{name}", "w") as file:
                file.write(spec[name])
    for name in _directories(spec):
        source = f"{spec['image_root']}/{name}"
        if os.path.islink(source):
            if not os.path.lexists(f"{root}/{name}"):
                os.symlink(os.readlink(source), f"{root}/{name}")
        elif os.path.isdir(source):
            _overlay(spec, root, name)


def _directories(spec: ContainerSpec) -> list[str]:
    """Return the names at the root that come from the image, or from the host."""
    if not spec["image_root"]:
        return list(_SYSTEM)
    return sorted(set(os.listdir(spec["image_root"])) - set(_NOT_OF_IMAGES))


def _overlay(spec: ContainerSpec, root: str, name: str) -> None:
    upper, work = (os.path.join(spec["dir"], kind, name) for kind in ("upper", "work"))
    target = f"{root}/{name}"
    for directory in (upper, work, target):
        os.makedirs(directory, mode=0o755, exist_ok=True)
    lower = f"{spec['image_root']}/{name}"
    data = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    try:
        linux.mount("overlay", target, kind="overlay", data=data)
    except OSError:
        if not spec["rootless"]:
            raise
        # The host has mounts below this directory, which are locked in a user namespace.
        _piecemeal(spec, root, name)


def _piecemeal(spec: ContainerSpec, root: str, name: str) -> None:
    """Overlay each directory below, copy small files and bind larger ones.

    Files that the user may not read are left out.
    """
    own = os.path.join(spec["dir"], "upper", name)
    shutil.copytree(own, f"{root}/{name}", dirs_exist_ok=True)
    for entry in os.scandir(f"{spec['image_root']}/{name}"):
        target = f"{root}/{name}/{entry.name}"
        if os.path.lexists(target):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif not os.access(entry.path, os.R_OK):
            continue
        elif entry.is_dir():
            _overlay(spec, root, f"{name}/{entry.name}")
        elif entry.is_file() and entry.stat().st_size <= _COPIED_BYTES:
            shutil.copyfile(entry.path, target)
            shutil.copymode(entry.path, target)
        elif entry.is_file():
            _bind(root, entry.path, f"/{name}/{entry.name}")


def _devices(spec: ContainerSpec, root: str) -> None:
    if spec["privileged"]:
        linux.bind("/dev", f"{root}/dev")
    else:
        for name in _DEVICES:
            _bind(root, f"/dev/{name}", f"/dev/{name}")
        for name, target in _DEV_LINKS.items():
            os.symlink(target, f"{root}/dev/{name}")
        os.makedirs(f"{root}/dev/pts", exist_ok=True)
        linux.mount(
            "devpts",
            f"{root}/dev/pts",
            kind="devpts",
            flags=linux.MS_NOSUID | linux.MS_NOEXEC,
            data="newinstance,ptmxmode=0666,mode=0620",
        )
    for source, target in spec["devices"]:
        _bind(root, source, target)
    _bind(root, spec["shm"], "/dev/shm")  # noqa: S108 — the pod's own


def _below_a_mount(path: str, mounts: list[MountSpec]) -> bool:
    return any(path.startswith(m["target"].rstrip("/") + "/") for m in mounts)


def _image_path(root: str, path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"the image lists the path {path}, which does not exist on this machine: "
            "correct the images file"
        )
    for place in dict.fromkeys((path, os.path.realpath(path))):
        linux.make_readonly(_bind(root, path, place), recursive=True)


def _cri_mounts(spec: ContainerSpec, root: str) -> None:
    mounts = sorted(spec["mounts"], key=lambda m: m["target"].rstrip("/").count("/"))
    taken = {m["target"] for m in mounts}
    for path, source in spec["files"].items():
        if path not in taken:
            _bind(root, source, path)
    for m in mounts:
        if not os.path.lexists(m["source"]):
            os.makedirs(m["source"], mode=0o755)
        target = _bind(root, m["source"], m["target"])
        if m["readonly"]:
            linux.make_readonly(target, recursive=m["recursive_readonly"])


def _restrict(spec: ContainerSpec, root: str) -> None:
    if spec["readonly_rootfs"]:
        linux.make_readonly(root, recursive=False)
        for name in _directories(spec):
            if os.path.ismount(f"{root}/{name}"):
                linux.make_readonly(f"{root}/{name}", recursive=False)
    for path in spec["readonly_paths"]:
        target = resolve_in(root, path)
        if os.path.exists(target):
            linux.bind(target, target)
            linux.make_readonly(target, recursive=True)
    for path in spec["masked_paths"]:
        target = resolve_in(root, path)
        if not os.path.lexists(target):
            continue
        if stat.S_ISDIR(os.stat(target).st_mode):
            linux.mount(
                "tmpfs", target, kind="tmpfs", flags=linux.MS_NOSUID, data="size=0,mode=755"
            )
            linux.make_readonly(target, recursive=False)
        else:
            linux.bind("/dev/null", target)
