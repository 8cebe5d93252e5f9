"""A cluster as values: its size, its addresses, its files.

Everything below `mnt` of the state directory is on a tmpfs that only the cluster's own mount
namespace sees, and vanishes with it. `down` removes the rest: certificates, logs, kubeconfig.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
API_ADDRESS = "10.244.255.100"
API_PORT = 6443
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
NODE_NETWORK = "10.244.255"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
DEFAULT_NAME = "argosy"
MOST_NODES = 90
"""Nodes have the addresses .1 to .90 of NODE_NETWORK; the API server has .100."""


def default_state_dir(name: str) -> Path:
    """`$XDG_STATE_HOME/argosy/<name>`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().resolve() / "argosy" / name


@dataclass(frozen=True, slots=True)
class Spec:
    """Size of a cluster. ValueError if it cannot be built, with what to write instead."""

    name: str
    nodes: int
    gpus_per_node: int
    """Pretended `nvidia.com/gpu` of each node."""
    rootless: bool
    """Run by an ordinary user: everything is in a user namespace with one uid."""
    bin_dir: str
    """Folder of the built binaries."""
    images: str
    """The user's images file, which adds to config/images.json; empty for none."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise ValueError(f"--nodes {self.nodes}: write a number from 1 to {MOST_NODES}")
        if self.gpus_per_node < 0:
            raise ValueError(f"--gpus-per-node {self.gpus_per_node}: write 0 or more")

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True, slots=True)
class Files:
    """Every path of one cluster."""

    state: Path
    """The state directory; all others lie below it."""

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def control(self) -> Path:
        return self.state / "control.sock"

    @property
    def run(self) -> Path:
        return self.state / "run.json"

    @property
    def spec(self) -> Path:
        return self.state / "spec.json"

    @property
    def images(self) -> Path:
        return self.state / "images.json"

    @property
    def mnt(self) -> Path:
        return self.state / "mnt"

    def node(self, name: str) -> Path:
        return self.mnt / name

    def runtime_socket(self, name: str) -> Path:
        return self.node(name) / "cri.sock"


def node_address(name: str) -> str:
    """Address of the kubelet and of host-network pods."""
    return f"{NODE_NETWORK}.{name.removeprefix('node')}"


def pod_cidr(name: str) -> str:
    """Addresses of the node's pods."""
    return f"10.244.{name.removeprefix('node')}.0/24"
