"""The state of pods and containers, and its files under `--root`.

`pods/<id>/` and `containers/<id>/` hold `config.pb` (what the kubelet sent) and `state.json`. When
a runtime ends, all its containers end too, so nothing that is loaded from files is running.
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
    """What became of a pod."""

    created_ns: int
    """Unix time, nanoseconds."""
    ready: bool = True
    """False once it is stopped."""
    address: str = ""
    """Empty on the host's network."""


@dataclass(slots=True)
class ContainerState:
    """What became of a container. Times are Unix nanoseconds, 0 if it has not happened."""

    sandbox: str
    """Id of its pod."""
    image: str
    """As the pod names it."""
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
    """Reads and writes one directory for each pod and each container."""

    def __init__(self, root: Path) -> None:
        self.pods = root / "pods"
        self.containers = root / "containers"
        for directory in (self.pods, self.containers):
            directory.mkdir(parents=True, exist_ok=True)

    def save(self, directory: Path, state: PodState | ContainerState, config: bytes = b"") -> None:
        """Replace the state file at once; `config` is written only at creation."""
        directory.mkdir(parents=True, exist_ok=True)
        if config:
            (directory / "config.pb").write_bytes(config)
        partial = directory / "state.json.new"
        partial.write_text(json.dumps(asdict(state)))
        partial.rename(directory / "state.json")

    def load_pods(self) -> dict[str, tuple[api_pb2.PodSandboxConfig, PodState]]:
        """The pods of an earlier runtime; none is ready."""
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
        """The containers of an earlier runtime; those that ran have exited with it."""
        found = {}
        for directory, state in self._load(self.containers, ContainerState):
            config = api_pb2.ContainerConfig.FromString((directory / "config.pb").read_bytes())
            state.groups = tuple(state.groups)
            if not state.finished_ns:
                state.started_ns = state.started_ns or now_ns
                state.finished_ns = now_ns
                state.exit_code = _LOST_EXIT_CODE
                state.reason = "RuntimeRestarted"
                state.message = "the container runtime was restarted, which ends its containers"
                self.save(directory, state)
            found[directory.name] = (config, state)
        return found

    @staticmethod
    def _load(directory: Path, kind: type[_State]) -> Iterator[tuple[Path, _State]]:
        names = {field.name for field in fields(kind)}
        for entry in directory.iterdir():
            file = entry / "state.json"
            if not (file.exists() and (entry / "config.pb").exists()):
                shutil.rmtree(entry, ignore_errors=True)  # the runtime died while it wrote this one
                continue
            values = json.loads(file.read_text())
            yield entry, kind(**{k: v for k, v in values.items() if k in names})
