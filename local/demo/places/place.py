"""What the demo needs of a cluster, and what it does alike on every one.

`one_machine.py` is the Kubernetes that the demo starts itself, `existing.py` a cluster that the
user names.
"""

import contextlib
from pathlib import Path
from typing import Protocol

from local.demo.errors import CommandError
from local.demo.figures import DemoFigures
from local.demo.kube import Kube
from local.demo.view import say

NAMESPACE = "demo"
SYSTEM = "argosy-system"
CHART = "charts/argosy"


class Place(Protocol):
    """What the stages need of a cluster."""

    kube: Kube
    is_ours: bool
    """True for the one-machine Kubernetes that the demo starts itself."""
    is_complete: bool
    """False while Prometheus is still being built: fleets with an SLO wait for it."""
    audit_log: Path | None
    """The API server's own log; None on a cluster of the user's."""

    def start(self, figures: DemoFigures) -> None:
        """Return when the API server answers and `kube` is set."""

    def install(self, figures: DemoFigures) -> None:
        """Install the chart."""

    def complete(self, figures: DemoFigures) -> None:
        """Add what `install` left out, and set `is_complete`."""

    def provide_weights(self) -> None:
        """Make sure that the claim `models` of the demo's namespace holds the weights."""

    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str:
        """The URL of a Service on loopback."""
        ...

    def diagnose(self, out: Path) -> None:
        """After a failure: write what a maintainer asks for first into the folder `out`."""

    def try_hints(self, figures: DemoFigures) -> None:
        """Run the commands that `leave` prints; one that fails is a missed target."""

    def leave(self, *, keep: bool) -> None:
        """Say how to reach the cluster, or stop it."""


def helm_install(kube: Kube, *settings: str, embedded: bool = True) -> None:
    """Install or upgrade the chart; Prometheus scrapes every second.

    Without `embedded`, the operator gets the address that the chart's own Prometheus will have, so
    that adding it later does not restart the operator.
    """
    later = f"prometheus.url=http://argosy-prometheus.{SYSTEM}.svc:9090"
    source = "prometheus.embedded=true" if embedded else later
    pace = ("--set", source, "--set", "prometheus.scrapeInterval=1s")
    done = kube.helm(
        "upgrade",
        "--install",
        "argosy",
        CHART,
        "--namespace",
        SYSTEM,
        "--create-namespace",
        *pace,
        *settings,
    )
    status = next(line for line in done.splitlines() if line.startswith("STATUS: "))
    say(f"helm install argosy {CHART}: {status.removeprefix('STATUS: ')}")


def write_diagnosis(kube: Kube, out: Path) -> None:
    """Pods, fleets, Events and the operator's log into `out`/diagnosis.txt."""
    with (out / "diagnosis.txt").open("w") as file:
        for words in (
            ("get", "pods", "-A", "-o", "wide"),
            ("get", "sd", "-A", "-o", "yaml"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            ("logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=argosy", "--tail=200"),
        ):
            with contextlib.suppress(CommandError):
                file.write(f"$ kubectl {' '.join(words)}\n{kube.kubectl(*words)}\n")
