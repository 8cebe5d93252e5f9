"""A real Prometheus as a process of its own, and its promtool."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from argosy_bench.ports import free_ports
from local.cluster.build import SOURCE, program_of

MODULE = "github.com/prometheus/prometheus"


def promtool() -> Path:
    """Of the Prometheus that the one-machine Kubernetes has."""
    pins = [line.split() for line in (SOURCE / "go.sum").read_text().splitlines()]
    ((version, checksum),) = [
        (pin[1], pin[2]) for pin in pins if pin[0] == MODULE and not pin[1].endswith("/go.mod")
    ]
    return program_of(MODULE, version, checksum, "./cmd/promtool")


@contextmanager
def prometheus(home: Path, config: str, web: str = "") -> Iterator[str]:
    """Its address; it runs with `config` and keeps its data in `home`. `web`: its configuration of
    TLS, if it is to speak it."""
    found = sorted(Path.home().glob(".cache/argosy/cluster/*/bin/prometheus"))
    if not found:
        pytest.skip("no Prometheus yet: python -m local.cluster.build --stage prometheus")
    (port,) = free_ports(1)
    (home / "prometheus.yml").write_text(config)
    command = [
        str(found[-1]),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    if web:
        (home / "web.yml").write_text(web)
        command.append(f"--web.config.file={home / 'web.yml'}")
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"{'https' if web else 'http'}://127.0.0.1:{port}"
        for _ in range(600):
            try:
                if httpx.get(f"{url}/-/ready", verify=False).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)
