"""What the engine makes of the machine it finds."""

import subprocess
import sys
from pathlib import Path

import pytest

from argosy_engine.runtime import machine
from tests.engine.processes import sim_engines


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Nothing is said of spinning, and what is set is undone."""
    for name in (
        "GOMP_SPINCOUNT",
        "OMP_WAIT_POLICY",
        "OPENBLAS_NUM_THREADS",
        "KUBERNETES_SERVICE_HOST",
        "POD_IP",
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.folder = tmp_path
    return monkeypatch


def spins(environment, *, own, cores=8, quota="max", pod=False):
    """GOMP_SPINCOUNT of an engine that may use `own` of a machine's `cores`."""
    group = Path(environment.folder) / "group"
    group.mkdir(exist_ok=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    environment.setattr(machine, "_GROUP", group)
    environment.setattr(machine.os, "sched_getaffinity", lambda _: set(range(own)))
    environment.setattr(machine.os, "cpu_count", lambda: cores)
    if pod:
        environment.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    machine.set_spinning()
    return int(machine.os.environ["GOMP_SPINCOUNT"])


@pytest.mark.parametrize(
    "place",
    [
        {"own": 8, "pod": True},  # all cores of the node: every pod has them
        {"own": 8, "quota": 200_000, "pod": True},
        {"own": 6, "pod": True},  # what exclusive pods have left to all others
        {"own": 6, "quota": 400_000, "pod": True},
        {"own": 8, "quota": 200_000},  # a container by hand
    ],
    ids=str,
)
def test_openmp_threads_spin_briefly_where_neighbours_may_want_the_cores(environment, place):
    assert 0 < spins(environment, **place) <= 5000


@pytest.mark.parametrize(
    "place",
    [
        {"own": 8},
        {"own": 2},  # taskset, cpuset
        {"own": 2, "quota": 200_000, "pod": True},  # the kubelet's static CPU policy
        {"own": 8, "quota": 800_000},
    ],
    ids=str,
)
def test_openmp_threads_of_an_engine_with_cores_of_its_own_spin_longer(environment, place):
    assert spins(environment, **place) == 20_000


@pytest.mark.parametrize(("quota", "threads"), [("max", 4), (250_000, 2), (10_000, 1), ("x", 4)])
def test_threads_are_the_cores_or_the_quota_if_it_is_less(environment, quota, threads):
    spins(environment, own=4, quota=quota)
    assert machine.allowed_threads() == threads


@pytest.mark.long
@pytest.mark.slow
def test_an_engine_start_compiles_nothing_that_bytecode_has_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    subprocess.run([sys.executable, "-m", "local.cluster.bytecode"], check=True)
    before = set(tmp_path.rglob("*.pyc"))
    with sim_engines("prefill", "decode"):
        pass
    late = {str(path.relative_to(tmp_path)) for path in set(tmp_path.rglob("*.pyc")) - before}
    assert len(before) > 500
    assert {path for path in late if "site-packages" in path or "argosy_" in path} == set()
