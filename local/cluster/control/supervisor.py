"""PID 1 of a cluster: makes its mounts and network, starts every component, keeps them alive.

`cluster.py` starts it as `unshare … python -m local.cluster.control.supervisor STATE_DIR …` in PID,
mount and network namespaces of its own. When it dies, by any signal, the kernel ends every process
of its PID namespace. Mounts and network vanish with the last of them, so nothing is left to clean.
It reads `spec.json`, reports stages as JSON lines to `--report-fd` and serves `control.sock`.
"""

import argparse
import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from local.cluster.config import components
from local.cluster.control.api import Api
from local.cluster.control.processes import Processes, Program
from local.cluster.errors import ApiError
from local.cluster.layout import (
    API_ADDRESS,
    API_PORT,
    DNS_SERVICE,
    SOURCE,
    Files,
    Spec,
    node_address,
    pod_cidr,
)

_POLL_S = 0.03
_MOST_STARTS = 5
_PYTHON = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}


def prepare_network(spec: Spec) -> None:
    """Put the addresses of nodes and API server on a bridge without ports, with a default route.

    kube-proxy's rules see a packet only if its address has a route; they redirect it before it
    would reach the bridge.
    """
    addresses = [API_ADDRESS, *map(node_address, spec.node_names)]
    lines = ["link set lo up", "link add argosy0 type bridge"]
    lines += [f"addr add {address}/24 dev argosy0" for address in addresses]
    lines += ["link set argosy0 up", "route add default dev argosy0"]
    text = "\n".join(lines) + "\n"
    subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True)
    for name in ("ip_forward", "conf/all/forwarding"):
        Path("/proc/sys/net/ipv4", name).write_text("1")
    Path("/proc/sys/net/ipv4/conf/all/send_redirects").write_text("0")


def prepare_mounts(spec: Spec, files: Files) -> None:
    """Mount the tmpfs of etcd, the kubelets and the pods' writable layers."""
    files.mnt.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755,size=70%", "argosy", str(files.mnt)]
    subprocess.run(mount, check=True)
    for node in spec.node_names:
        files.node(node).mkdir()
    # On a tmpfs of its own: these files are bound over others, and a kubelet tells file systems
    # apart by their device.
    settings = files.mnt / "sysctl"
    settings.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "settings", str(settings)], check=True)
    for setting, value in components.KUBELET_SYSCTLS.items():
        if Path("/proc/sys", setting).exists():
            (settings / setting.replace("/", ".")).write_text(value + "\n")


class Supervisor:
    """Starts the components in order, then keeps GPU capacities and serves `control.sock`."""

    def __init__(self, spec: Spec, files: Files, report_fd: int, token: str) -> None:
        self._spec, self._files = spec, files
        self._bin = Path(spec.bin_dir)
        self._report: int | None = report_fd
        self._began = time.monotonic()
        self._api = Api(components.API_URL, (files.pki / "ca.crt").read_text(), token)
        self._processes = Processes(on_start=self._check_start)
        self._tasks: set[asyncio.Task[None]] = set()
        self.stop = asyncio.Event()
        self.ready = False

    def _check_start(self, program: Program) -> None:
        """Fail the start if a component keeps ending: it would not recover."""
        if not self.ready and program.starts > _MOST_STARTS:
            tail = program.log.read_text(errors="replace").strip()[-600:]
            self.say("failed", error=f"{program.name} keeps ending; its log ends with: {tail}")
            self.stop.set()

    def say(self, stage: str, **more: Any) -> None:
        """Report one stage, to the starter if it still listens, and to the log."""
        line = {"stage": stage, "at_s": round(time.monotonic() - self._began, 2), **more}
        print(json.dumps(line), flush=True)
        if self._report is not None:
            with contextlib.suppress(OSError):
                os.write(self._report, (json.dumps(line) + "\n").encode())

    def run(self, name: str, argv: list[str], **more: Any) -> None:
        """Keep a program of the binaries' folder running; `more` are fields of Program."""
        log = self._files.logs / f"{name}.log"
        self._processes.start(Program(name, [str(self._bin / argv[0]), *argv[1:]], log, **more))

    def _run_kubelet(self, node: str, mounts: int) -> None:
        """Rootless, a filter answers the kubelet's changes of owner; see `unowned.py`."""
        flags = components.kubelet(self._spec, self._files, node)
        words = [str(self._bin / "kubelet"), *flags]
        if self._spec.rootless:
            words = [sys.executable, "-m", "local.cluster.control.unowned", *words]
        name, log = f"kubelet.{node}", self._files.logs / f"kubelet.{node}.log"
        self._processes.start(Program(name, words, log, env=_PYTHON, mounts=mounts))

    def task(self, work: Any) -> None:
        """Run a coroutine and keep a reference to it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self, api_fd: int) -> None:
        """Start everything until Ready. A failure is reported and ends the cluster."""
        try:
            async with asyncio.timeout(45):
                await self._start(api_fd)
        except Exception as error:
            self.say("failed", error=f"{type(error).__name__}: {error}")
            self.stop.set()
            return
        self.ready = True
        self.say("ready")
        if self._report is not None:
            os.close(self._report)
            self._report = None
        await self._keep_gpus()

    async def _start(self, api_fd: int) -> None:
        spec, files = self._spec, self._files
        self.run("etcd", ["etcd", *components.etcd(files)])
        holders = {node: self._hold(node) for node in spec.node_names}
        await _until(lambda: _connects("127.0.0.1", 2379))
        self.say("etcd")
        words = ["kube-apiserver", *components.apiserver(files)]
        self.run("kube-apiserver", words, env=components.API_SERVER_ENV)
        self.forward("api", api_fd, f"{API_ADDRESS}:{API_PORT}")
        for node, (pid, ready_fd) in holders.items():
            await self._start_runtime(node, pid, ready_fd)
        await self._until_api(lambda: self._api.text("/readyz"))
        self.say("api server")
        await self._create_all(components.node_objects())
        self.run(
            "kube-controller-manager",
            ["kube-controller-manager", *components.controller_manager(files)],
        )
        for node, (pid, _) in holders.items():
            self._run_kubelet(node, pid)
        self.run("kube-scheduler", ["kube-scheduler", *components.scheduler(files)])
        self.run("kube-proxy", ["kube-proxy", *components.proxy(spec, files)])
        self.task(self._start_dns())
        await self._until_api(lambda: self._api.get(f"{_DEFAULT}/serviceaccounts/default"))
        self.say("service accounts")
        await self._until_api(self._nodes_ready)
        self.say("nodes")
        await _until(lambda: _answers("127.0.0.1", 10256))
        self.say("service addresses")
        if (self._bin / "coredns").exists():
            await _until(lambda: _answers("127.0.0.1", 8181, "/ready"))
            self.say("service names")

    def _hold(self, node: str) -> tuple[int, int]:
        """Start the process that holds the node's mount namespace.

        Returns its pid and the read end of a pipe on which it writes when all is mounted.
        """
        reader, writer = os.pipe()
        script = Path(__file__).with_name("node.sh")
        words = [str(self._files.node(node)), str(int(self._spec.rootless))]
        with (self._files.logs / f"mounts.{node}.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "sh", str(script), *words],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=log,
            )
        os.close(writer)
        self._processes.programs[f"mounts.{node}"] = Program(
            f"mounts.{node}", [], Path(), pid=process.pid, wanted=False, process=process
        )
        return process.pid, reader

    async def _start_runtime(self, node: str, pid: int, ready_fd: int) -> None:
        ready = await asyncio.to_thread(os.read, ready_fd, 16)
        os.close(ready_fd)
        if not ready:
            log = self._files.logs / f"mounts.{node}.log"
            raise RuntimeError(f"the mounts of {node} failed: {log.read_text().strip()}")
        words = [
            "-m",
            "local.cluster.cri",
            "--node",
            node,
            "--pod-cidr",
            pod_cidr(node),
            "--socket",
            str(self._files.runtime_socket(node)),
            "--root",
            str(self._files.node(node) / "runtime"),
            "--images",
            str(self._files.images),
            "--log",
            str(self._files.logs / f"runtime.{node}.log"),
            *(["--rootless"] if self._spec.rootless else []),
        ]
        log = self._files.logs / f"runtime.{node}.out"
        name = f"runtime.{node}"
        self._processes.start(Program(name, [sys.executable, *words], log, env=_PYTHON, mounts=pid))

    async def _start_dns(self) -> None:
        """Start CoreDNS once it is built, which may be after the cluster's start."""
        await self._create_all(components.dns_objects())
        await _until(lambda: (self._bin / "coredns").exists(), poll_s=0.5)
        self.run("coredns", ["coredns", "-conf", str(self._files.config / "Corefile")])

    async def _create_all(self, objects: list[tuple[str, dict[str, Any]]]) -> None:
        for path, body in objects:
            await self._until_api(lambda path=path, body=body: self._create(path, body))

    def _create(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._api.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    async def _until_api(self, call: Any) -> None:
        """Until `call` neither raises an API error nor returns False."""
        while True:
            try:
                if await asyncio.to_thread(call) is not False:
                    return
            except (OSError, ApiError) as error:
                last = error  # the time limit names only the stage
                if time.monotonic() - self._began > 20:
                    print(f"waiting: {last}", flush=True)
            await asyncio.sleep(_POLL_S)

    def _nodes_ready(self) -> bool:
        nodes = self._api.get("/api/v1/nodes")["items"]
        for node in nodes:
            self._give_gpus(node)
        return len(nodes) == self._spec.nodes and all(
            _is_ready(node, self._spec.gpus_per_node) for node in nodes
        )

    def _give_gpus(self, node: dict[str, Any]) -> None:
        """Set the node's GPUs if they differ from the cluster's.

        The kubelet would set allocatable itself, but only with its next status, within 10 s.
        """
        wanted, status = {GPU: str(self._spec.gpus_per_node)}, node.get("status", {})
        current = [status.get(part, {}).get(GPU) for part in ("capacity", "allocatable")]
        if self._spec.gpus_per_node and current != [wanted[GPU], wanted[GPU]]:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self._api.patch(path, {"status": {"capacity": wanted, "allocatable": wanted}})

    async def _keep_gpus(self) -> None:
        """Set the GPUs again whenever a kubelet's start has cleared them."""
        while not self.stop.is_set():
            with contextlib.suppress(OSError, ApiError, ValueError, KeyError):
                await asyncio.to_thread(self._watch_gpus)
            await asyncio.sleep(0.5)  # the server closed the watch or cannot be reached

    def _watch_gpus(self) -> None:
        nodes = self._api.get("/api/v1/nodes")
        for node in nodes["items"]:
            self._give_gpus(node)
        for event in self._api.watch("/api/v1/nodes", nodes["metadata"]["resourceVersion"], 300):
            if event["type"] in ("ADDED", "MODIFIED"):
                self._give_gpus(event["object"])

    def forward(self, name: str, descriptor: int, target: str) -> None:
        """Start `forward`, which carries connections of an inherited socket to `target`."""
        words = ["forward", str(descriptor), target, f"{DNS_SERVICE}:53"]
        self.run(f"forward.{name}", words, fds=(descriptor,))

    def obey(self, asked: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Answer one request of `control.sock`. KeyError and ValueError become its error."""
        match asked["do"]:
            case "status":
                return {"ready": self.ready, "programs": self._status()}
            case "publish":
                self.forward(asked["name"], descriptors[0], asked["target"])
            case "unpublish":
                self._processes.drop(f"forward.{asked['name']}")
            case "signal":
                self._processes.signal(asked["program"], int(asked["signal"]))
            case "stop":
                self.stop.set()
            case other:
                raise ValueError(f"unknown request {other!r}")
        return {}

    def _status(self) -> dict[str, dict[str, int]]:
        return {
            name: {"pid": program.pid, "starts": program.starts}
            for name, program in self._processes.programs.items()
        }


GPU = "nvidia.com/gpu"
_DEFAULT = "/api/v1/namespaces/default"


def _is_ready(node: dict[str, Any], gpus: int) -> bool:
    """Whether a node is Ready, has no taints and offers its GPUs."""
    status = node["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    offered = status.get("allocatable", {}).get(GPU, "0")
    untainted = not node["spec"].get("taints")
    return conditions.get("Ready") == "True" and untainted and (not gpus or offered == str(gpus))


async def _until(condition: Any, poll_s: float = _POLL_S) -> None:
    while not condition():  # noqa: ASYNC110 — another program becomes ready; there is no event to wait for
        await asyncio.sleep(poll_s)


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(host: str, port: int, path: str = "/healthz") -> bool:
    """Whether a plain HTTP endpoint answers 200."""
    import http.client

    try:
        connection = http.client.HTTPConnection(host, port, timeout=1)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False


def serve_control(supervisor: Supervisor, files: Files) -> None:
    """Answer one JSON request per connection; it may carry a listening socket."""
    files.control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(files.control))
    listener.listen(16)
    listener.setblocking(False)

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(1)
            descriptors: list[int] = []
            try:
                # socket.recv_fds drops its flags in Python 3.11: descriptors would survive exec.
                data, ancillary, _, _ = connection.recvmsg(
                    65536, socket.CMSG_LEN(4 * 4), socket.MSG_CMSG_CLOEXEC
                )
                descriptors = [fd for _, _, raw in ancillary for fd in array.array("i", raw)]
                answer = supervisor.obey(json.loads(data), descriptors)
            except (OSError, ValueError, KeyError, IndexError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                connection.send(json.dumps(answer).encode())

    asyncio.get_running_loop().add_reader(listener, accept)


async def supervise(arguments: argparse.Namespace, spec: Spec, files: Files, token: str) -> None:
    """Serve until something sets `stop`."""
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(spec, files, arguments.report_fd, token)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop.set)
    if arguments.lifeline_fd is not None:
        loop.add_reader(arguments.lifeline_fd, supervisor.stop.set)  # its other end was closed
    serve_control(supervisor, files)
    supervisor.task(supervisor.start(arguments.api_fd))
    await supervisor.stop.wait()


def main() -> int:
    """Command line of PID 1; see the module."""
    parser = argparse.ArgumentParser(prog="local.cluster.control.supervisor")
    parser.add_argument("state", type=Path)
    parser.add_argument("--api-fd", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    arguments = parser.parse_args()
    files = Files(arguments.state)
    spec = Spec(**json.loads(files.spec.read_text()))
    token = (files.pki / "admin.token").read_text()
    try:
        prepare_mounts(spec, files)
        prepare_network(spec)
    except (OSError, subprocess.CalledProcessError) as error:
        line = {"stage": "failed", "error": f"this machine refused a step: {error}"}
        os.write(arguments.report_fd, (json.dumps(line) + "\n").encode())
        return 1
    with asyncio.Runner() as runner:
        runner.run(supervise(arguments, spec, files, token))
        # PID 1: the kernel ends all others. The runner's own end would join the thread that watches
        # nodes, which waits for up to five minutes.
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
