"""One cluster: start it, stop it, publish its Services, disturb it.

The commands, the demo and the tests use this. `config/` writes its files, `control/supervisor.py`
runs it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.cluster.build import bin_dir, is_built
from local.cluster.config import components, images, pki
from local.cluster.control.api import Api
from local.cluster.errors import ApiError, ClusterError
from local.cluster.fetch import search_path
from local.cluster.layout import DEFAULT_NAME, SOURCE, Files, Spec, default_state_dir

_LONGEST_STATE_DIR = 90  # a unix socket's path has 107 characters


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` returns."""

    ready_s: float
    """Seconds from the call until the cluster was Ready."""
    stages: dict[str, float]
    """Seconds at which each stage was reached."""
    kubeconfig: str
    audit_log: str


class Cluster:
    """One cluster with its own state directory. Nothing runs before `start`."""

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        nodes: int = 3,
        gpus_per_node: int = 8,
        state_dir: Path | None = None,
        images_file: Path | None = None,
        api_port: int = 0,
    ) -> None:
        self.files = Files((state_dir or default_state_dir(name)).absolute())
        if len(str(self.files.state)) > _LONGEST_STATE_DIR:
            raise ClusterError(f"--state-dir {self.files.state} is too long: choose a shorter one")
        self._name, self._nodes, self._gpus = name, nodes, gpus_per_node
        self._images_file, self._api_port = images_file, api_port
        self._lifeline: int | None = None

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.files.kubeconfig

    @property
    def audit_log(self) -> Path:
        """Path of the API server's log of requests."""
        return self.files.audit_log

    @property
    def api(self) -> Api:
        """The API server as administrator."""
        return Api.from_kubeconfig(self.kubeconfig)

    def start(
        self, *, tied: bool = False, on_stage: Callable[[str, float], None] | None = None
    ) -> Started:
        """Start, and return when Ready.

        A `tied` cluster ends with the calling process, even if that is killed. ClusterError if the
        cluster runs already, if binaries are missing or if a stage fails.
        """
        if not is_built("kube"):
            raise ClusterError("Kubernetes is not built: run python -m local.cluster build")
        began = time.monotonic()
        with self._locked():
            if self.is_running():
                raise ClusterError(
                    f"cluster {self._name} runs already: export KUBECONFIG={self.kubeconfig}, "
                    f"or stop it: python -m local.cluster down --name {self._name}"
                )
            self._remove_files()
            listener = self._write_files()
            with listener:
                process, report = self._launch(listener, tied)
            try:
                stages = self._await_ready(report, on_stage)
            except BaseException:
                process.kill()
                process.wait()
                raise
        ready_s = round(time.monotonic() - began, 2)
        return Started(ready_s, stages, str(self.kubeconfig), str(self.audit_log))

    def _write_files(self) -> socket.socket:
        """Write certificates, configurations and kubeconfig; return the API's listening socket."""
        files = self.files
        spec = Spec(
            name=self._name,
            nodes=self._nodes,
            gpus_per_node=self._gpus,
            rootless=os.geteuid() != 0,
            bin_dir=str(bin_dir()),
            images=str(self._images_file or ""),
        )
        files.logs.mkdir(parents=True)
        files.state.chmod(0o700)
        tokens = pki.write_all(files.pki, spec.node_names)
        admin = tokens["argosy-admin"]
        pki.write_private(files.pki / "admin.token", admin.encode())
        components.write_configs(spec, files, tokens)
        resolved = images.resolve(Path(spec.bin_dir), self._images_file)
        files.images.write_text(json.dumps(resolved, indent=1))
        files.spec.write_text(json.dumps(spec.to_json()))
        listener = listen(self._api_port)
        server = f"https://127.0.0.1:{listener.getsockname()[1]}"
        ca = (files.pki / "ca.crt").read_bytes()
        text = components.kubeconfig(server, ca, "argosy-admin", admin, self._name)
        pki.write_private(files.kubeconfig, text.encode())
        return listener

    def _launch(self, listener: socket.socket, tied: bool) -> tuple[subprocess.Popen[bytes], int]:
        files = self.files
        reader, writer = os.pipe()
        descriptors = [listener.fileno(), writer]
        words = ["--api-fd", str(listener.fileno()), "--report-fd", str(writer)]
        lifeline = None
        if tied:
            lifeline, self._lifeline = os.pipe()
            descriptors.append(lifeline)
            words += ["--lifeline-fd", str(lifeline)]
        user = ["--user", "--map-root-user"] if os.geteuid() != 0 else []
        spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *user]
        module = [sys.executable, "-m", "local.cluster.control.supervisor", str(files.state)]
        with (files.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", *spaces, "--", *module, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PATH": search_path(), "PYTHONPATH": str(SOURCE)},
            )
        os.close(writer)
        if lifeline is not None:
            os.close(lifeline)
        self._process = process
        born = _start_time(process.pid)
        files.run.write_text(json.dumps({"pid": process.pid, "start_time": born}))
        return process, reader

    def _await_ready(
        self, report: int, on_stage: Callable[[str, float], None] | None
    ) -> dict[str, float]:
        stages: dict[str, float] = {}
        with os.fdopen(report) as lines:
            for line in lines:
                report_line = json.loads(line)
                if report_line["stage"] == "failed":
                    raise ClusterError(self._diagnosis(report_line["error"], stages))
                stages[report_line["stage"]] = report_line["at_s"]
                if on_stage:
                    on_stage(report_line["stage"], report_line["at_s"])
                if report_line["stage"] == "ready":
                    return stages
        raise ClusterError(self._diagnosis("the supervisor died", stages))

    def _diagnosis(self, error: str, stages: dict[str, float]) -> str:
        last = list(stages)[-1] if stages else "nothing"
        log = (self.files.logs / "supervisor.log").read_text(errors="replace")
        tail = "\n".join(log.splitlines()[-8:])
        return (
            f"the cluster did not start: {error} (reached: {last}). Logs: {self.files.logs}\n{tail}"
        )

    def is_running(self) -> bool:
        """Whether the supervisor of this state directory is alive."""
        return self._supervisor_pid() is not None

    def _supervisor_pid(self) -> int | None:
        try:
            run = json.loads(self.files.run.read_text())
        except (OSError, ValueError):
            return None
        pid: int = run["pid"]
        alive = _start_time(pid) == run["start_time"] and run["start_time"] is not None
        return pid if alive else None

    def stop(self) -> None:
        """End everything and remove the state directory. ClusterError if a process is left."""
        with self._locked():
            pid = self._supervisor_pid()
            spaces = self._namespaces(pid) if pid else {}
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # the kernel ends the whole PID namespace
            self._await_gone(pid, spaces)
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None
            self._remove_files()

    def _await_gone(self, pid: int | None, spaces: dict[str, str]) -> None:
        deadline = time.monotonic() + 15
        while True:
            with contextlib.suppress(AttributeError):
                self._process.poll()  # reaps the supervisor if it is our own child
            left = processes_in(spaces)
            if not left and (pid is None or _start_time(pid) is None):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"processes {left or [pid]} of the cluster do not end: kill them"
                )
            time.sleep(0.02)

    @staticmethod
    def _namespaces(pid: int) -> dict[str, str]:
        """Namespaces of the supervisor, the child of `unshare`, as /proc names them."""
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return {kind: os.readlink(f"/proc/{children[0]}/ns/{kind}") for kind in ("net", "pid")}
        except (OSError, IndexError):
            return {}

    def namespaces(self) -> dict[str, str]:
        """`net` and `pid` namespace of the running cluster; empty when it does not run."""
        pid = self._supervisor_pid()
        return self._namespaces(pid) if pid else {}

    def kill(self) -> None:
        """`kill -9` of the supervisor, for tests."""
        pid = self._supervisor_pid()
        if pid:
            spaces = self._namespaces(pid)
            os.kill(pid, signal.SIGKILL)
            self._await_gone(pid, spaces)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.files.state.parent.mkdir(parents=True, exist_ok=True)
        lock = self.files.state.parent / f".{self.files.state.name}.lock"
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
            lock.unlink(missing_ok=True)

    def _remove_files(self) -> None:
        if self.files.spec.exists() or self.files.logs.exists():
            shutil.rmtree(self.files.state)
        elif self.files.state.exists() and any(self.files.state.iterdir()):
            raise ClusterError(
                f"{self.files.state} has files that are not a cluster's: choose another --state-dir"
            )

    # --- while it runs ---------------------------------------------------------------------

    def ask(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
        """Send one request to the supervisor. ClusterError if it does not run or refuses."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(5)
            try:
                connection.connect(str(self.files.control))
                socket.send_fds(connection, [json.dumps(request).encode()], list(descriptors))
                answer: dict[str, Any] = json.loads(connection.recv(1 << 20))
            except OSError as error:
                raise ClusterError(
                    f"cluster {self._name} does not answer ({error}): is it running?"
                ) from error
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer

    def status(self) -> dict[str, Any]:
        """`{"ready": bool, "programs": {name: {"pid", "starts"}}}`; pids of the PID namespace."""
        return self.ask({"do": "status"})

    def host_port(
        self, service: str, port: int, namespace: str = "default", host_port: int = 0
    ) -> int:
        """Serve a Service on 127.0.0.1 and return its port; `host_port` 0 takes a free one."""
        target = f"{service}.{namespace}.svc.cluster.local:{port}"
        return self.publish(target, f"{namespace}.{service}.{port}", host_port)

    def publish(self, target: str, name: str, host_port: int = 0) -> int:
        """Serve `host:port` of the cluster on 127.0.0.1; a known `name` keeps its port."""
        known = self.files.state / "published.json"
        published: dict[str, int] = json.loads(known.read_text()) if known.exists() else {}
        if name in published:
            return published[name]
        with listen(host_port) as listener:
            port: int = listener.getsockname()[1]
            self.ask({"do": "publish", "name": name, "target": target}, (listener.fileno(),))
        published[name] = port
        known.write_text(json.dumps(published))
        return port

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
        """Wait for a true value of `condition` and return it.

        An API error or a refused connection counts as not yet. TimeoutError names `what` and the
        last error.
        """
        deadline, last = time.monotonic() + timeout_s, "no"
        while time.monotonic() < deadline:
            try:
                if value := condition():
                    return value
            except (OSError, ApiError) as error:
                last = str(error)
            time.sleep(0.05)
        raise TimeoutError(
            f"{what}: not reached within {timeout_s} s ({last}); logs: {self.files.logs}"
        )

    def send_signal(self, program: str, number: int = signal.SIGKILL) -> int:
        """Signal a component such as `kubelet.node1`; returns how often it was started before."""
        before: int = self.status()["programs"][program]["starts"]
        self.ask({"do": "signal", "program": program, "signal": int(number)})
        return before

    def restart(self, program: str, number: int = signal.SIGKILL) -> None:
        """Signal a component and return when its next process runs."""
        before = self.send_signal(program, number)
        deadline = time.monotonic() + 30
        while self.status()["programs"][program]["starts"] == before:
            if time.monotonic() > deadline:
                raise ClusterError(f"{program} was not started again; see {self.files.logs}")
            time.sleep(0.05)

    def restart_kubelet(self, node: str) -> None:
        """SIGTERM to a node's kubelet; its containers go on."""
        self.restart(f"kubelet.{node}", signal.SIGTERM)

    def kill_runtime(self, node: str) -> None:
        """Its containers die with it; the kubelet starts them again."""
        self.restart(f"runtime.{node}", signal.SIGKILL)


def listen(port: int) -> socket.socket:
    """A listening socket on loopback, made in the user's network namespace."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ClusterError(f"port {port} of 127.0.0.1 is taken: choose another port") from error
    listener.listen(512)
    return listener


def processes_in(spaces: dict[str, str]) -> list[int]:
    """Processes that are in one of these namespaces."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for kind, name in spaces.items():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/ns/{kind}") == name:
                        found.append(int(entry))
                        break
    return found


def _start_time(pid: int) -> str | None:
    """Start time of a live process: a later process with the same pid has another one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
