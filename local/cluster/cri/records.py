"""Pods and containers as the runtime remembers them, and their files under `--root`.

`pods/<id>/` and `containers/<id>/` hold `config.pb` (what the kubelet sent) and `state.json`.
After the death of a runtime nothing of it runs any more, so what is loaded is not running.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from local.cluster.cri import api_pb2

_LOST_EXIT_CODE = 255


@dataclass(slots=True)
class PodState:
    created_ns: int
    ready: bool = True
    address: str = ""


@dataclass(slots=True)
class ContainerState:
    """Times are Unix nanoseconds, 0 when it has not happened."""

    sandbox: str
    image: str
    image_id: str
    created_ns: int
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    started_ns: int = 0
    finished_ns: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def phase(self) -> int:
        """A ContainerState of the CRI."""
        phase: int = api_pb2.CONTAINER_RUNNING if self.started_ns else api_pb2.CONTAINER_CREATED
        return api_pb2.CONTAINER_EXITED if self.finished_ns else phase


_State = TypeVar("_State", PodState, ContainerState)


class Records:
    """Reads and writes the state directory; one directory per pod and container."""

    def __init__(self, root: Path) -> None:
        self.pods = root / "pods"
        self.containers = root / "containers"
        for directory in (self.pods, self.containers):
            directory.mkdir(parents=True, exist_ok=True)

    def save(self, directory: Path, state: PodState | ContainerState, config: bytes = b"") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if config:
            (directory / "config.pb").write_bytes(config)
        partial = directory / "state.json.new"
        partial.write_text(json.dumps(asdict(state)))
        partial.rename(directory / "state.json")

    def load_pods(self) -> dict[str, tuple[api_pb2.PodSandboxConfig, PodState]]:
        """What an earlier runtime left: pods that are not ready."""
        found = {}
        for directory, state in self._load(self.pods, PodState):
            config = api_pb2.PodSandboxConfig.FromString((directory / "config.pb").read_bytes())
            state.ready = False
            self.save(directory, state)
            found[directory.name] = (config, state)
        return found

    def load_containers(
        self, *, now_ns: int
    ) -> dict[str, tuple[api_pb2.ContainerConfig, ContainerState]]:
        """What an earlier runtime left: containers that have exited with it."""
        found = {}
        for directory, state in self._load(self.containers, ContainerState):
            config = api_pb2.ContainerConfig.FromString((directory / "config.pb").read_bytes())
            state.groups = tuple(state.groups)
            if not state.finished_ns:
                state.started_ns = state.started_ns or now_ns
                state.finished_ns = now_ns
                state.exit_code = _LOST_EXIT_CODE
                state.reason = "RuntimeRestarted"
                state.message = "the container runtime ended, and its containers with it"
                self.save(directory, state)
            found[directory.name] = (config, state)
        return found

    @staticmethod
    def _load(directory: Path, kind: type[_State]) -> Iterator[tuple[Path, _State]]:
        names = {field.name for field in fields(kind)}
        for entry in directory.iterdir():
            file = entry / "state.json"
            if not (file.exists() and (entry / "config.pb").exists()):
                shutil.rmtree(entry, ignore_errors=True)  # half-made when the runtime died
                continue
            values = json.loads(file.read_text())
            yield entry, kind(**{k: v for k, v in values.items() if k in names})
