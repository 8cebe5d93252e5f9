"""What the engine makes of the machine it finds."""

import subprocess
import sys

import pytest

from argosy_engine.runtime import machine
from tests.engine.processes import sim_engines


@pytest.fixture
def environment(monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_openmp_threads_spin_briefly_unless_the_user_said_otherwise(environment):
    machine.spin_briefly()
    assert 0 < int(machine.os.environ["GOMP_SPINCOUNT"]) <= 10_000


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_said_of_waiting_threads_is_kept(environment, name):
    environment.setenv(name, "77")
    machine.spin_briefly()
    said = {key: machine.os.environ.get(key) for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    assert said == {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None, name: "77"}


@pytest.mark.slow
def test_an_engine_start_compiles_nothing_that_bytecode_has_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    subprocess.run([sys.executable, "-m", "tests.cluster.bytecode"], check=True)
    before = set(tmp_path.rglob("*.pyc"))
    with sim_engines("prefill", "decode"):
        pass
    late = {str(path.relative_to(tmp_path)) for path in set(tmp_path.rglob("*.pyc")) - before}
    assert len(before) > 500
    assert {path for path in late if "site-packages" in path or "argosy_" in path} == set()
