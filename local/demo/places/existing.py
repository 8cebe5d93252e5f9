"""A cluster that the user names with KUBECONFIG, with images that the user built and pushed."""

import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import TOOLS, Kube
from local.demo.places.place import NAMESPACE, SYSTEM, helm_install, write_diagnosis
from local.demo.view import console, say

WEIGHTS = "SmolLM2-135M-Instruct"


class ExistingCluster:
    """A cluster of the user's. Not tested: the project runs its demo on one machine only."""

    is_ours = False
    is_complete = True
    audit_log: Path | None = None

    def __init__(self, kubeconfig: Path, registry: str) -> None:
        if not registry:
            raise SystemExit(
                "an existing cluster pulls its images from a registry: make them with "
                f"make release VERSION={version('argosy')}, push them as docs/how-to/install.md "
                "says, and run make demo KUBECONFIG=… REGISTRY=…"
            )
        self.kube = Kube(kubeconfig)
        self._registry = registry
        self._forwards: dict[tuple[str, str, int], tuple[subprocess.Popen[bytes], str]] = {}

    def start(self, figures: DemoFigures) -> None:
        """Show which cluster is used; its caches count as complete."""
        figures.caches_complete = time.time()
        nodes = self.kube.get("/api/v1/nodes")
        say(f"using {self.kube.kubeconfig} with {len((nodes or {}).get('items', []))} nodes")
        console.print("[yellow]not tested: the demo is only tested on its own cluster[/yellow]")

    def install(self, figures: DemoFigures) -> None:  # noqa: ARG002 — the protocol's
        """Install the chart with images from the user's registry."""
        self.kube.kubectl("create", "namespace", NAMESPACE)
        helm_install(self.kube, "--set", f"images.registry={self._registry}")

    def complete(self, figures: DemoFigures) -> None:
        """Nothing to do: `install` left nothing out."""

    def provide_weights(self) -> None:
        """The user's own claim `models` must hold the weights."""
        claim = self.kube.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/models")
        if claim is None:
            raise DemoError(
                f"create a PersistentVolumeClaim `models` in namespace {NAMESPACE} that holds the "
                f"folder {WEIGHTS} (.venv/bin/python -m local.weights.smollm2 --out {WEIGHTS} "
                "writes it), then run make demo again"
            )

    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str:
        """Start a port-forward and return its URL."""
        key = (service, namespace, port)
        if key not in self._forwards:
            words = ["port-forward", "-n", namespace, f"service/{service}", f":{port}"]
            process = subprocess.Popen(
                [str(TOOLS / "kubectl"), *words], env=self.kube.env, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            line = process.stdout.readline().decode()  # Forwarding from 127.0.0.1:40001 -> 8080
            address = line.removeprefix("Forwarding from ").split(" ")[0]
            self._forwards[key] = (process, f"http://{address}")
        return self._forwards[key][1]

    def diagnose(self, out: Path) -> None:
        """As on the one-machine cluster."""
        write_diagnosis(self.kube, out)

    def try_hints(self, figures: DemoFigures) -> None:
        """Nothing to run: the addresses end with the demo's port-forwards, so none is printed."""

    def leave(self, *, keep: bool) -> None:  # noqa: ARG002 — the protocol's
        """End the port-forwards and say how to remove what was installed."""
        for process, _ in self._forwards.values():
            process.terminate()
        say(f"to remove it: kubectl delete ns {NAMESPACE}; helm uninstall argosy -n {SYSTEM}")
