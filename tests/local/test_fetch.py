"""What the preflight fetches on a machine that lacks programs. Nothing is installed here."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from local.cluster import fetch, preflight
from local.cluster.errors import FetchError

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no Debian or Ubuntu")

# Stands in for apt-get where the real one would change this machine. It says in `calls` what it was
# asked for, and an installed package brings `nft`.
APT = """#!/bin/sh
echo "$@" >> {folder}/calls
case " $* " in
    *" --simulate "*) echo "Inst nftables (1.0 stable [amd64])" ;;
    *" install "*) ln -s {true} {folder}/nft ;;
esac
"""


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A PATH with every program but `nft`, and an empty cache. It is the folder of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in fetch.search_path().split(":"):
        for program in Path(place).glob("*"):
            if program.name != "nft" and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ARGOSY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ARGOSY_INSTALL", "0")
    monkeypatch.setattr(fetch, "_SYSTEM_PATH", "")
    return folder


def stand_in(folder: Path, text: str = APT) -> Path:
    """Puts a stand-in for apt-get into `folder`; returns the file of its calls."""
    for name in ("apt-get", "dpkg"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text.format(folder=folder, true="/bin/true"))
        (folder / name).chmod(0o755)
    return folder / "calls"


def hide(packages: str, tmp_path: Path, monkeypatch) -> None:
    """Lets apt believe that packages with these beginnings are not installed."""
    status = Path("/var/lib/dpkg/status").read_text().split("\n\n")
    names = tuple(f"Package: {name}" for name in packages.split())
    kept = [text for text in status if not text.startswith(names)]
    (tmp_path / "status").write_text("\n\n".join(kept))
    (tmp_path / "apt.conf").write_text(f'Dir::State::status "{tmp_path}/status";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))


def obtain(call) -> None:
    try:
        call()
    except FetchError as error:
        # Without a network no package is known; others may depend on those that we hide.
        if "Unable to locate package" in str(error) or "Unmet dependencies" in str(error):
            pytest.skip(str(error))
        raise


@needs_apt
@pytest.mark.slow
def test_a_missing_program_is_unpacked_and_runs_with_its_libraries(bare, tmp_path, monkeypatch):
    hide("nftables libnftables", tmp_path, monkeypatch)
    assert shutil.which("nft", path=fetch.search_path()) is None
    obtain(lambda: fetch.obtain(["nftables"]))
    fetch.use()
    program = shutil.which("nft")
    assert program
    assert program.startswith(str(tmp_path / "cache"))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("nftables v")
    shell = Path(program).read_text().replace("exec ", "LD_TRACE_LOADED_OBJECTS=1 exec ")
    libraries = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    line = next(line for line in libraries.stdout.splitlines() if "libnftables" in line)
    assert str(tmp_path / "cache") in line
    assert preflight._missing_tools() == []


@needs_apt
@pytest.mark.slow
def test_without_the_venv_module_an_environment_with_pip_is_made(bare, tmp_path, monkeypatch):
    if not Path(f"/usr/bin/python3.{sys.version_info.minor}").exists():
        pytest.skip("the distribution has another Python")
    hide(f"python3-pip-whl {fetch.VENV_PACKAGE} python3-venv", tmp_path, monkeypatch)
    monkeypatch.setattr(fetch, "_SYSTEM", tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ensurepip" else real(name)
    )
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert preflight._missing_python() != []
    obtain(lambda: fetch.make_venv(tmp_path / "made"))
    assert preflight._missing_python() == []
    words = [tmp_path / "made" / "bin" / "python", "-m", "pip", "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert str(tmp_path / "made") in said.stdout


def test_a_package_that_cannot_be_fetched_is_named_with_the_reason(bare, capsys):
    stand_in(bare, "#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    assert preflight.main() == 1
    said = capsys.readouterr().err
    assert "the missing packages could not be fetched: apt-get failed: E: no network" in said
    assert "missing: programs nft (package nftables): apt-get install nftables" in said
