"""The process that forks every container, exec and pod namespace; one thread, no dependency.

Commands come from the runtime (`spawner.py`) as JSON datagrams over a socket pair, with the
program's stdout, stderr and an error pipe attached. Pids and wait statuses go back the same way.

Why a process of its own: a container must die when the runtime dies. PR_SET_PDEATHSIG follows the
parent *thread*, and forking from a gRPC process with threads is not safe. This process has one
thread, dies with the runtime, and each container's PID 1 dies with it, which ends the container's
PID namespace. Descriptors of this process hold the pod namespaces, so they vanish with it too:
nothing is left to clean up after a crash.
"""

import array
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from local.cluster.cri.fork import child, linux

_KINDS = {"net": linux.CLONE_NEWNET, "uts": linux.CLONE_NEWUTS, "ipc": linux.CLONE_NEWIPC}


class ForkServer:
    """Serves one runtime over `control` until its end closes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._namespaces: dict[str, dict[str, int]] = {}
        """Sandbox id → kind of namespace → descriptor."""
        self._jobs: dict[int, int] = {}
        """Pid → job number."""

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not self._control:
                    os.read(wake_read, 4096)
                elif not self._command():
                    return
            self._reap()

    def _command(self) -> bool:
        # socket.recv_fds drops its flags in Python 3.11: the descriptors would survive exec.
        data, ancillary, _, _ = self._control.recvmsg(
            1 << 20, socket.CMSG_LEN(3 * 4), socket.MSG_CMSG_CLOEXEC
        )
        fds = [fd for _, _, raw in ancillary for fd in array.array("i", raw)]
        if not data:
            return False
        message = json.loads(data)
        reply: dict[str, Any] = {"job": message["job"]}
        try:
            match message["op"]:
                case "sandbox":
                    reply["pid"] = self._sandbox(message, fds)
                case "container":
                    reply["pid"] = self._container(message, fds)
                case "exec":
                    reply["pid"] = self._exec(message, fds)
                case "release":
                    for fd in self._namespaces.pop(message["sandbox"], {}).values():
                        os.close(fd)
        except (OSError, ValueError, KeyError) as error:
            reply["error"] = f"{type(error).__name__}: {error}"
        finally:
            for fd in fds:
                os.close(fd)
        if "pid" not in reply:
            self._control.sendall(json.dumps(reply).encode())
            return True
        self._jobs[reply["pid"]] = message["job"]
        # Opened before the process can be reaped: when the runtime gets the pid, it may be gone.
        pidfd = os.pidfd_open(reply["pid"])
        socket.send_fds(self._control, [json.dumps(reply).encode()], [pidfd])
        os.close(pidfd)
        return True

    def _reap(self) -> None:
        while self._jobs:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._jobs.pop(pid, None)
            if job is not None:
                self._control.sendall(json.dumps({"job": job, "status": status}).encode())

    def _sandbox(self, message: dict[str, Any], fds: list[int]) -> int:
        """Make the pod's namespaces in a child and keep their descriptors."""
        kinds = {"uts", "ipc"} | ({"net"} if message["network"] else set())
        ready_read, ready_write = os.pipe()
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            _run_child(lambda: child.become_sandbox(message, kinds, ready_write, go_read), fds)
        os.close(ready_write)
        os.close(go_read)
        try:
            if os.read(ready_read, 1):
                held = {}
                for kind in kinds:
                    held[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                self._namespaces[message["sandbox"]] = held
        finally:
            os.close(ready_read)
            os.close(go_write)
        return pid

    def _container(self, message: dict[str, Any], fds: list[int]) -> int:
        held = self._namespaces[message["sandbox"]]

        def enter() -> None:
            for kind, fd in held.items():
                linux.setns(fd, _KINDS[kind])
            linux.unshare(linux.CLONE_NEWPID | linux.CLONE_NEWNS)

        return self._fork_sibling(enter, lambda: child.become_container(message["spec"]), fds)

    def _exec(self, message: dict[str, Any], fds: list[int]) -> int:
        init = message["pid"]
        paths = {kind: f"/proc/{init}/ns/{kind}" for kind in ("pid", "net", "uts", "ipc", "mnt")}

        def enter() -> None:
            # All are opened first: after the first setns, /proc is the container's.
            opened = {kind: os.open(path, os.O_RDONLY) for kind, path in paths.items()}
            for kind, fd in opened.items():
                linux.setns(
                    fd, {**_KINDS, "pid": linux.CLONE_NEWPID, "mnt": linux.CLONE_NEWNS}[kind]
                )

        with open(message["spec"]) as file:
            spec = json.load(file)
        return self._fork_sibling(enter, lambda: child.become_program(spec, message["argv"]), fds)

    def _fork_sibling(
        self, enter: Callable[[], None], become: Callable[[], None], fds: list[int]
    ) -> int:
        """Fork a child of this process into the namespaces that `enter` chooses.

        An intermediate process enters them and clones with CLONE_PARENT. This process itself may
        not enter them: rootless, it has no privilege to return to its own PID namespace.
        """
        pid_read, pid_write = os.pipe()
        between = os.fork()
        if between == 0:
            _run_child(lambda: _intermediate(enter, become, pid_write, fds), fds)
        os.close(pid_write)
        try:
            os.waitpid(between, 0)
            data = os.read(pid_read, 32)
        finally:
            os.close(pid_read)
        if not data:
            raise OSError("the namespaces could not be entered")
        return int(data)


def _intermediate(
    enter: Callable[[], None], become: Callable[[], None], pid_write: int, fds: list[int]
) -> NoReturn:
    enter()
    pid = linux.clone_sibling()
    if pid == 0:
        _run_child(become, fds)
    os.write(pid_write, str(pid).encode())
    os._exit(0)


def _run_child(become: Callable[[], None], fds: list[int]) -> NoReturn:
    """Run `become`, which execs. Never returns; an error goes into the error pipe, fds[2]."""
    try:
        linux.die_with_parent()
        signal.set_wakeup_fd(-1)
        for fd, number in zip(fds[:2], (1, 2), strict=True):
            os.dup2(fd, number)
        become()
        os._exit(0)
    except BaseException as error:
        text = str(error) if isinstance(error, OSError) else traceback.format_exc()
        os.write(fds[2], text.encode()[:4000])
    finally:
        os._exit(128)


def main() -> None:
    linux.die_with_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    if os.getppid() != int(sys.argv[2]):
        return  # the runtime died before the line above
    os.set_inheritable(control.fileno(), False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ForkServer(control).serve()


if __name__ == "__main__":
    main()
