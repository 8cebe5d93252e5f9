"""Pods and containers: what each CRI call does to them.

Calls come from `server.py`, `spawner.py` starts processes, `network.py` gives addresses, and
`records.py` keeps what must survive a restart. All runs on one event loop; each container has a
lock, and no other lock is held across an await.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from local.cluster.cri import api_pb2, launch
from local.cluster.cri.fork.rootfs import resolve_in
from local.cluster.cri.fork.spawner import Process, Spawner, SpawnError, read_to_end
from local.cluster.cri.fork.spec import ContainerSpec
from local.cluster.cri.images import Image, Images
from local.cluster.cri.logs import ContainerLog
from local.cluster.cri.network import Network
from local.cluster.cri.oci.artifacts import Artifact, Artifacts
from local.cluster.cri.records import ContainerState, PodState, Records

_OUTPUT_LIMIT_BYTES = 16 << 20
"""Of an exec, as the CRI asks."""
_DRAIN_S = 1.0
"""How long the last output of a container that has ended may take."""

_log = logging.getLogger("cri")
_Kept = TypeVar("_Kept")


class NotFoundError(Exception):
    """No pod or container has this id."""


class RefusedError(Exception):
    """The call does not fit the state, or asks for something that this runtime cannot do."""


@dataclass(slots=True)
class Pod:
    """A pod sandbox: what the kubelet asked for, and what became of it."""

    id: str
    config: api_pb2.PodSandboxConfig
    state: PodState

    @property
    def host_network(self) -> bool:
        """Whether it shares the node's network."""
        options = self.config.linux.security_context.namespace_options
        return bool(options.network == api_pb2.NODE)


@dataclass(slots=True)
class Container:
    """A container: what the kubelet asked for, and what became of it."""

    id: str
    config: api_pb2.ContainerConfig
    state: ContainerState
    log: ContainerLog | None = None
    """None before its start, and after a restart of the runtime."""
    process: Process | None = None
    """None before its start, and after a restart of the runtime."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its end has been recorded."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during its start."""

    @property
    def running(self) -> Process | None:
        """Its process from the start until its end is recorded; None before and after."""
        return self.process if self.state.phase == api_pb2.CONTAINER_RUNNING else None


class Pods:
    """All pods of one node."""

    def __init__(
        self,
        *,
        node: str,
        root: Path,
        images: Images,
        network: Network,
        spawner: Spawner,
        rootless: bool,
    ) -> None:
        self._node = node
        self._records = Records(root)
        self.images = images
        self.artifacts = Artifacts(root)
        self._network = network
        self._spawner = spawner
        self._rootless = rootless
        self._warned_about_users = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.pods = {
            key: Pod(key, config, state)
            for key, (config, state) in self._records.load_pods().items()
        }
        self.containers = {
            key: Container(key, config, state)
            for key, (config, state) in self._records.load_containers(now_ns=time.time_ns()).items()
        }

    def pod(self, key: str) -> Pod:
        """By id or a unique beginning of it."""
        return _only(self.pods, key, "pod sandbox")

    def container(self, key: str) -> Container:
        """By id or a unique beginning of it."""
        return _only(self.containers, key, "container")

    # ---- pods

    async def run_pod(self, config: api_pb2.PodSandboxConfig) -> str:
        """Make a pod's namespaces, network and files; returns its id."""
        key = secrets.token_hex(32)
        pod = Pod(key, config, PodState(created_ns=time.time_ns()))
        directory = self._records.pods / key
        try:
            if not pod.host_network:
                pod.state.address = self._network.allocate(key)
            self._records.save(directory, pod.state, config.SerializeToString())
            self._pod_files(pod, directory)
            await self._pod_namespaces(pod, directory)
        except BaseException:
            await self._spawner.release(key)
            self._network.release(key)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.pods[key] = pod
        _log.info(
            "pod %s/%s %s at %s",
            config.metadata.namespace,
            config.metadata.name,
            key[:12],
            pod.state.address or "the node's address",
        )
        return key

    def _pod_files(self, pod: Pod, directory: Path) -> None:
        config = pod.config
        resolv = launch.resolv_conf(config.dns_config)
        if not config.HasField("dns_config"):
            with contextlib.suppress(OSError):
                resolv = Path("/etc/resolv.conf").read_text()
        hostname = config.hostname or self._node
        (directory / "resolv.conf").write_text(resolv)
        (directory / "hostname").write_text(hostname + "\n")
        hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
        if pod.state.address:
            hosts += f"{pod.state.address}\t{hostname}\n"
        (directory / "hosts").write_text(hosts)
        (directory / "shm").mkdir()
        (directory / "shm").chmod(0o1777)

    async def _pod_namespaces(self, pod: Pod, directory: Path) -> None:
        batch = directory / "network.batch"
        if not pod.host_network:
            batch.write_text(
                self._network.pod_commands(pod.id, pod.state.address, runtime_pid=os.getpid())
            )
        sysctls = {} if pod.host_network else {"net.ipv4.ip_unprivileged_port_start": "0"}
        code, output, errors = await self._capture(
            "sandbox",
            sandbox=pod.id,
            hostname=pod.config.hostname or self._node,
            network=not pod.host_network,
            batch=str(batch),
            sysctls=sysctls | dict(pod.config.linux.sysctls),
        )
        if code:
            text = (output + errors).decode(errors="replace").strip()
            raise SpawnError(f"the pod's network could not be set up: {text}")
        if not pod.host_network:
            self._network.attach(pod.id)

    async def stop_pod(self, key: str) -> None:
        """Kill its containers and release its network; a second call changes nothing."""
        pod = self.pod(key)
        await asyncio.gather(
            *(self.stop_container(c.id, grace_s=0) for c in self._containers_of(pod.id))
        )
        if pod.state.ready:
            pod.state.ready = False
            self._records.save(self._records.pods / pod.id, pod.state)
            await self._spawner.release(pod.id)
            self._network.release(pod.id)

    async def remove_pod(self, key: str) -> None:
        """Stop it and remove it with its containers and files."""
        await self.stop_pod(key)
        pod = self.pod(key)
        for container in self._containers_of(pod.id):
            await self.remove_container(container.id)
        self.pods.pop(pod.id, None)
        await asyncio.to_thread(shutil.rmtree, self._records.pods / pod.id, ignore_errors=True)

    def _containers_of(self, pod_id: str) -> list[Container]:
        return [c for c in self.containers.values() if c.state.sandbox == pod_id]

    # ---- containers

    def create_container(self, pod_key: str, config: api_pb2.ContainerConfig) -> str:
        """Write a container's spec; returns its id. RefusedError if the pod is not ready."""
        pod = self.pod(pod_key)
        if not pod.state.ready:
            raise RefusedError(f"pod sandbox {pod_key} is not ready")
        image = self.images.find(config.image.image)
        key = secrets.token_hex(32)
        directory = self._records.containers / key
        spec = launch.spec_of(
            image,
            self._with_volumes(config),
            pod.config,
            directory=directory,
            pod_directory=self._records.pods / pod.id,
            rootless=self._rootless,
        )
        state = self._new_state(pod, image, config, spec)
        self._records.save(directory, state, config.SerializeToString())
        (directory / "spec.json").write_text(json.dumps(spec))
        self.containers[key] = Container(key, config, state)
        return key

    def _with_volumes(self, config: api_pb2.ContainerConfig) -> api_pb2.ContainerConfig:
        """The same, with the folder of each image volume as its host path, read-only."""
        made = api_pb2.ContainerConfig()
        made.CopyFrom(config)
        for mount in made.mounts:
            if not mount.image.image:
                continue
            artifact = self.artifacts.find(mount.image.image)
            # The kubelet makes a reason of this word.
            failed = f"ImageVolumeMountFailed: {mount.image.user_specified_image}"
            if artifact is None:
                raise RefusedError(f"{failed} is not on this node, or is no artifact of a registry")
            folder = str(self.artifacts.folder(artifact))
            mount.host_path = resolve_in(folder, mount.image_sub_path)
            if not os.path.exists(mount.host_path):
                raise RefusedError(f"{failed} has no {mount.image_sub_path}: correct the subPath")
            mount.readonly = mount.recursive_read_only = True
        return made

    def remove_artifact(self, artifact: Artifact) -> None:
        """RefusedError while a container has it mounted."""
        users = [
            container.config.metadata.name
            for container in self.containers.values()
            if container.state.phase != api_pb2.CONTAINER_EXITED
            and any(mount.image.image == artifact.id for mount in container.config.mounts)
        ]
        if users:
            raise RefusedError(f"{artifact.id} is mounted by {', '.join(users)}")
        self.artifacts.remove(artifact)

    def _new_state(
        self, pod: Pod, image: Image, config: api_pb2.ContainerConfig, spec: ContainerSpec
    ) -> ContainerState:
        if self._rootless and spec["uid"] != 0 and not self._warned_about_users:
            self._warned_about_users = True
            _log.warning(
                "rootless: every container runs as the user who started this cluster; runAsUser %d "
                "and any other is ignored",
                spec["uid"],
            )
        return ContainerState(
            sandbox=pod.id,
            image=config.image.user_specified_image or config.image.image,
            image_id=image.id,
            created_ns=time.time_ns(),
            uid=spec["uid"],
            gid=spec["gid"],
            groups=tuple(spec["groups"]),
        )

    async def start_container(self, key: str) -> None:
        """Start it once. SpawnError if its program could not be executed."""
        container = self.container(key)
        async with container.lock:
            if container.state.phase != api_pb2.CONTAINER_CREATED:
                raise RefusedError(f"container {key} was started before")
            pod = self.pod(container.state.sandbox)
            path = None
            if pod.config.log_directory and container.config.log_path:
                path = Path(pod.config.log_directory, container.config.log_path)
            log = container.log = ContainerLog(path)
            stdout, stderr = log.pipe("stdout"), log.pipe("stderr")
            directory = self._records.containers / container.id
            try:
                container.process = await self._spawner.start(
                    "container",
                    stdout=stdout,
                    stderr=stderr,
                    sandbox=pod.id,
                    spec=str(directory / "spec.json"),
                )
            except SpawnError as error:
                now = time.time_ns()
                self._finish(container, now, code=128, reason="StartError", message=str(error))
                raise
            finally:
                os.close(stdout)
                os.close(stderr)
            container.state.started_ns = time.time_ns()
            self._records.save(directory, container.state)
            self._follow(self._await_end(container, container.process, log))

    def _follow(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_end(self, container: Container, process: Process, log: ContainerLog) -> None:
        await process.done.wait()
        now = time.time_ns()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(log.ended.wait(), _DRAIN_S)
        code = process.status
        self._finish(container, now, code=code, reason="Error" if code else "Completed")

    def _finish(
        self, container: Container, now_ns: int, *, code: int, reason: str, message: str = ""
    ) -> None:
        state = container.state
        state.started_ns = state.started_ns or now_ns
        state.finished_ns, state.exit_code = now_ns, code
        state.reason, state.message = reason, message
        self._records.save(self._records.containers / container.id, state)
        container.ended.set()
        _log.info(
            "container %s %s ended: %d %s",
            container.config.metadata.name,
            container.id[:12],
            code,
            message,
        )

    async def stop_container(self, key: str, *, grace_s: float) -> None:
        """Stop signal, `grace_s` seconds, SIGKILL; returns when it has ended."""
        container = self.container(key)
        async with container.lock:
            pass  # waits for a start that is in progress
        process = container.running
        if process is None:
            return
        if grace_s > 0:
            process.send(launch.signal_number(container.config.stop_signal))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(container.ended.wait(), grace_s)
        process.send(signal.SIGKILL)
        await container.ended.wait()

    async def remove_container(self, key: str) -> None:
        """Stop it and remove its files."""
        await self.stop_container(key, grace_s=0)
        container = self.container(key)
        self.containers.pop(container.id, None)
        if container.log is not None:
            container.log.close()
        directory = self._records.containers / container.id
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def reopen_log(self, key: str) -> None:
        """After the kubelet renamed the log. RefusedError if it is not running."""
        container = self.container(key)
        if container.log is None or container.state.phase != api_pb2.CONTAINER_RUNNING:
            raise RefusedError(f"container {key} is not running")
        container.log.reopen()

    # ---- exec

    async def exec(
        self, key: str, argv: list[str], *, timeout_s: float | None
    ) -> tuple[int, bytes, bytes]:
        """(exit code, stdout, stderr). TimeoutError if it was killed for its time limit."""
        container = self.container(key)
        process = container.running
        if process is None or process.done.is_set():
            raise RefusedError(f"container {key} is not running")
        directory = self._records.containers / container.id
        return await self._capture(
            "exec",
            timeout_s=timeout_s,
            pid=process.pid,
            spec=str(directory / "spec.json"),
            argv=argv,
        )

    async def _capture(
        self, op: str, *, timeout_s: float | None = None, **message: object
    ) -> tuple[int, bytes, bytes]:
        pipes = [os.pipe() for _ in range(2)]
        (out_read, out_write), (err_read, err_write) = pipes
        readers: list[asyncio.Task[bytes]] = []
        try:
            try:
                process = await self._spawner.start(
                    op, stdout=out_write, stderr=err_write, **message
                )
            finally:
                os.close(out_write)
                os.close(err_write)
            for fd in (out_read, err_read):
                os.set_blocking(fd, False)
                reading = read_to_end(fd, limit=_OUTPUT_LIMIT_BYTES)
                readers.append(asyncio.get_running_loop().create_task(reading))
            try:
                async with asyncio.timeout(timeout_s):
                    await process.done.wait()
                    output, errors = await asyncio.gather(*readers)
            except (TimeoutError, asyncio.CancelledError):
                if not process.done.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                raise
            return process.status, output, errors
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            os.close(out_read)
            os.close(err_read)

    async def close(self) -> None:
        """Kill every container and record its end."""
        running = [
            c for c in self.containers.values() if c.state.phase == api_pb2.CONTAINER_RUNNING
        ]
        await asyncio.gather(*(self.stop_container(c.id, grace_s=0) for c in running))


def _only(known: dict[str, _Kept], key: str, kind: str) -> _Kept:
    if key in known:
        return known[key]
    matches = [value for name, value in known.items() if key and name.startswith(key)]
    if len(matches) != 1:
        raise NotFoundError(f"{kind} {key!r} is not known to this runtime")
    return matches[0]
