"""What a terminal and a log see while the cluster's binaries are built. Nothing is compiled."""

import io
import sys
import threading

import pytest

from local.cluster import build

FORWARD = build.STAGES["kube"][0]
# Stands in for the compiler: names packages as `go build -v` does, and makes the file after `-o`.
GO = """#!/bin/sh
for package in $(seq 45); do echo "example/$package" >&2; done
while [ "$1" != -o ]; do shift; done
echo program > "$2"
"""


class Terminal(io.StringIO):
    """Standard error of a terminal; `seen` is set as soon as `awaited` is shown."""

    def __init__(self, awaited: str = "") -> None:
        super().__init__()
        self.awaited, self.seen = awaited, threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.awaited and self.awaited in text:
            self.seen.set()
        return super().write(text)


@pytest.fixture
def go(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(build, "bin_dir", lambda: tmp_path / "digest" / "bin")
    build.bin_dir().mkdir(parents=True)
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    return str(tmp_path / "go")


def test_a_log_sees_one_line_when_a_stage_begins_and_one_when_it_ends(go, capsys):
    build._compile(go, FORWARD, build.Progress())
    began, ended = capsys.readouterr().err.splitlines()
    assert began == "forward: building, about 10 s on two idle cores"
    assert ended.startswith("forward: built in ")


def test_a_terminal_sees_a_live_bar_that_the_end_of_the_stage_replaces(go, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    build._compile(go, FORWARD, build.Progress())
    *shown, ended, _ = terminal.getvalue().replace("\n", "\r\x1b[K").split("\r\x1b[K")
    assert any(text.startswith("[") and "forward: " in text for text in shown)
    assert ended.startswith("forward: built in ")
    assert terminal.getvalue().count("\n") == 1


def test_a_build_that_waits_for_another_shows_how_far_that_one_is(go, monkeypatch):
    terminal = Terminal(awaited="[##  ] kube: half")
    quiet = build.Progress()
    monkeypatch.setattr(sys, "stderr", terminal)
    waits = build.Progress()

    def wait() -> None:
        with build._locked("kube", waits):
            pass

    thread = threading.Thread(target=wait)
    with build._locked("kube", quiet):
        quiet.step("[##  ] kube: half")
        thread.start()
        assert terminal.seen.wait(timeout=60)
    thread.join(timeout=60)
    assert "kube: the other build has finished" in terminal.getvalue()
    assert not (build.bin_dir().parent / "progress.kube").exists()


@pytest.mark.parametrize(
    ("compiled", "elapsed_s", "shown"),
    [(0, 2, "about 8 s left"), (45, 100, "about 100 s left"), (200, 99, "about 1 s left")],
)
def test_the_bar_says_how_long_is_left_at_the_pace_of_this_machine(compiled, elapsed_s, shown):
    text = build.bar(FORWARD, compiled, 0, elapsed_s)
    assert shown in text
    assert text.index("]") == 21
    assert text.count("#") == min(compiled * 20 // 90, 19)
