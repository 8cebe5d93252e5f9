"""What a forked child does before it becomes a program: namespaces, root, ids, exec.

`forkserver.py` calls this after a fork. Each function execs, returns for a plain exit, or raises;
the error pipe carries the error to the runtime.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
from typing import Any

from local.cluster.cri.fork import linux, rootfs
from local.cluster.cri.fork.spec import ContainerSpec


def become_sandbox(message: dict[str, Any], kinds: set[str], ready: int, go: int) -> None:
    """Make the pod's namespaces, wait until they are held, then configure the network."""
    flags = linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
    if "net" in kinds:
        flags |= linux.CLONE_NEWNET
    linux.unshare(flags)
    if message["hostname"]:
        socket.sethostname(message["hostname"])
    os.write(ready, b"1")
    os.read(go, 1)  # end of file: the descriptors are held
    for name, value in message["sysctls"].items():
        path = "/proc/sys/" + name.replace(".", "/")
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(value)
    if "net" in kinds:
        _default_signals()
        ip = shutil.which("ip") or "/usr/sbin/ip"
        os.execv(ip, ["ip", "-batch", message["batch"]])


def become_container(spec_path: str) -> None:
    """As PID 1 of a new PID and mount namespace: build the root, then exec the program."""
    with open(spec_path) as file:
        spec: ContainerSpec = json.load(file)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(spec["oom_score_adj"]))
    linux.enter_root(rootfs.build(spec))
    become_program(spec, spec["argv"])


def become_program(spec: ContainerSpec, argv: list[str]) -> None:
    """Drop ids and capabilities and exec `argv`; the root has been entered before."""
    os.setsid()
    os.umask(0o022)
    for descriptor in (1, 2):
        # /dev/stdout must open for the container's user.
        with contextlib.suppress(OSError):
            os.fchown(descriptor, spec["uid"], spec["gid"])
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(rootfs.resolve_in("/", spec["cwd"]))
    _drop_privileges(spec)
    linux.die_with_parent()  # again: the change of user cleared it
    _default_signals()
    _exec(argv, spec["env"])


def _drop_privileges(spec: ContainerSpec) -> None:
    own = linux.own_capabilities()
    keep = own & frozenset(spec["capabilities"])
    if spec["rootless"] and spec["uid"] != 0:
        keep = frozenset()  # it stays uid 0, and exec gives uid 0 every capability not dropped
    linux.bound_capabilities(keep)
    if not spec["rootless"]:
        os.setgroups(spec["groups"])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    if spec["uid"] == 0 or spec["rootless"]:
        linux.set_capabilities(keep)
    if spec["no_new_privs"]:
        linux.no_new_privileges()


def _default_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and a program would inherit that over exec."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(argv: list[str], env: dict[str, str]) -> None:
    program = argv[0]
    found = program if "/" in program else shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(
            2, f"exec: {program!r}: executable file not found in the container's PATH"
        )
    try:
        os.execve(found, argv, env)
    except OSError as error:
        raise OSError(error.errno, f"exec: {found!r}: {error.strerror}") from None
