"""The commands around a cluster: preflight, clean-cache, logs, publish. No cluster is started."""

import sys
import threading

import pytest

import local.cluster.__main__
from local.cluster import build, fetch, preflight
from local.cluster.cluster import listen
from local.cluster.errors import ClusterError


def run(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["local.cluster", *words])
    return local.cluster.__main__.main()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of a few bytes, and a neighbour that is none of ours."""
    root = tmp_path / "cache" / "argosy"
    (root / "cluster").mkdir(parents=True)
    (root / "cluster" / "kube").write_bytes(b"x" * 3_000_000)
    (root.parent / "other").write_text("stays")
    monkeypatch.setenv("ARGOSY_CACHE", str(root))
    return root


def test_preflight_names_every_missing_tool_and_its_package_at_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ARGOSY_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "_SYSTEM_PATH", "")
    assert preflight.main() == 1
    said = capsys.readouterr().err
    for tool, package in preflight.TOOLS.items():
        assert f"{tool} (package {package})" in said
    assert "apt-get install" in said


def test_clean_cache_refuses_a_folder_that_is_not_a_cache(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    monkeypatch.setenv("ARGOSY_CACHE", str(tmp_path))
    assert run(monkeypatch, "clean-cache", "--yes") == 1
    assert "thesis.txt" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


def test_a_taken_host_port_is_named():
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} of 127.0.0.1 is taken"):
            listen(port)


def test_two_builds_at_once_compile_each_binary_once(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "bin_dir", lambda: tmp_path / "bin")
    # Go may be absent, and what it would fetch ahead is not looked at here.
    monkeypatch.setattr(build, "find_go", lambda: "true")
    made: list[str] = []

    def compiled(_go, target, _say) -> None:
        made.append(target.name)
        (tmp_path / "bin" / target.name).write_text("built")

    monkeypatch.setattr(build, "_compile", compiled)
    builds = [threading.Thread(target=build.build, args=("all",)) for _ in range(2)]
    for one in builds:
        one.start()
    for one in builds:
        one.join(timeout=10)
    assert sorted(made) == ["coredns", "forward", "kube", "prometheus"]
