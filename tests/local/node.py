"""One runtime in its own network and mount namespaces, and a CRI client for it, for tests.

The client speaks gRPC as the kubelet does: `node.call("RunPodSandbox", ...)`.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc

from local.cluster.cri import api_pb2

_REPOSITORY = Path(__file__).resolve().parents[2]
_RPCS = {
    rpc.name: (service.full_name, rpc)
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
}


class Node:
    """A running runtime. `directory` needs a short path (Unix socket); `root` is on a tmpfs."""

    def __init__(self, directory: Path, images: Path, *, pod_cidr: str = "10.244.1.0/24") -> None:
        self.directory = directory
        self.root = directory / "root"
        self.socket = directory / "cri.sock"
        self.log = directory / "cri.log"
        self._command = [
            sys.executable, "-m", "local.cluster.cri", "--socket", str(self.socket),
            "--node", "node1", "--root", str(self.root), "--pod-cidr", pod_cidr,
            "--images", str(images), "--log", str(self.log),
        ]  # fmt: skip
        # Holds the namespaces over a restart of the runtime.
        self._holder = subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-c",
             f"mkdir -p {self.root} && mount -t tmpfs tmpfs {self.root} && echo ready && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout.readline() == "ready\n"
        self.start()

    def start(self) -> None:
        enter = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", f"--wd={_REPOSITORY}"]
        self.process = subprocess.Popen([*enter, *self._command])
        self._channel = grpc.insecure_channel(f"unix:{self.socket}")
        grpc.channel_ready_future(self._channel).result(timeout=15)

    def inside(self, *argv: str) -> str:
        """Output of a command in the node's namespaces."""
        command = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def call(self, name: str, *, timeout_s: float = 30, **fields):
        service, rpc = _RPCS[name]
        method = self._channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=getattr(api_pb2, rpc.input_type.name).SerializeToString,
            response_deserializer=getattr(api_pb2, rpc.output_type.name).FromString,
        )
        return method(getattr(api_pb2, rpc.input_type.name)(**fields), timeout=timeout_s)

    def kill(self) -> None:
        self._channel.close()
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self._channel.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.terminate()
        self._holder.stdin.close()
        self._holder.wait(timeout=5)
        self._holder.stdout.close()

    # ---- what tests do again and again

    def pod(self, name: str = "pod", **linux) -> str:
        config = api_pb2.PodSandboxConfig(
            metadata=api_pb2.PodSandboxMetadata(name=name, uid=name, namespace="default"),
            hostname=name,
            log_directory=str(self.directory / "logs" / name),
            dns_config=api_pb2.DNSConfig(servers=["10.96.0.10"], searches=["svc.cluster.local"]),
            linux=api_pb2.LinuxPodSandboxConfig(**linux),
        )
        return self.call("RunPodSandbox", config=config).pod_sandbox_id

    def create(self, pod: str, *command: str, image: str = "tools", security=None, **config) -> str:
        linux = api_pb2.LinuxContainerConfig(security_context=security)
        made = api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name="main"),
            image=api_pb2.ImageSpec(image=image),
            command=command,
            log_path=f"{secrets.token_hex(4)}.log",
            linux=linux,
            **config,
        )
        return self.call("CreateContainer", pod_sandbox_id=pod, config=made).container_id

    def run(self, pod: str, *command: str, **options) -> str:
        key = self.create(pod, *command, **options)
        self.call("StartContainer", container_id=key)
        return key

    def status(self, container: str) -> api_pb2.ContainerStatus:
        return self.call("ContainerStatus", container_id=container).status

    def wait(self, container: str, *, timeout_s: float = 10) -> api_pb2.ContainerStatus:
        """Its status once it has exited."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status(container)).state != api_pb2.CONTAINER_EXITED:
            assert time.monotonic() < deadline, f"still running: {status}"
            time.sleep(0.01)
        return status

    def output(self, container: str) -> str:
        """What it wrote, once it has exited, without the log's prefixes."""
        path = self.wait(container).log_path
        lines = Path(path).read_text().splitlines()
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def exec(self, container: str, *command: str, timeout: int = 0) -> api_pb2.ExecSyncResponse:
        return self.call("ExecSync", container_id=container, cmd=command, timeout=timeout)


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
