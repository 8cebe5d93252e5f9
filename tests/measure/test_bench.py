"""`argosy bench` against a simulated engine, and against servers that are down or broken."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from argosy_bench.ports import free_ports
from argosy_measure import bench, records, report
from argosy_measure.command import INTERRUPTED, MET, MISSED, NO_SERVER, WRONG, read_seconds
from argosy_measure.fleet import Fleet, describe
from argosy_measure.score import Limits, Row, score

WIDE = ("--ttft", "30s", "--tpot", "30s")
SHORT = ("--prompt-tokens", "8", "--output-tokens", "4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records go that have no name of their own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    try:
        return bench.main(list(words))
    except SystemExit as left:
        return int(left.code)


def test_a_load_within_the_limits_is_recorded_and_scored_again(engine_url, folder):
    load = ("--rate", "50", "--requests", "12", *SHORT)
    out = ("--records", "a.jsonl", "--json", "a.json", "--report", "a.html")
    assert run(engine_url, *load, *WIDE, *out) == MET
    figures = json.loads(Path("a.json").read_text())
    assert (figures["requests"], figures["met"], figures["failed"]) == (12, 12, 0)
    rows, limits = records.read(Path("a.jsonl"))
    assert limits == Limits(30, 30, 0.9)
    assert {(row.tokens, row.prompt_tokens) for row in rows} == {(4, 8)}
    assert run("--read", "a.jsonl", "--json", "b.json") == MET
    assert json.loads(Path("b.json").read_text()) == figures
    assert run("--read", "a.jsonl", "--tpot", "1ms") == MISSED


def test_clients_send_for_the_time_that_was_asked_for(engine_url):
    words = ("--clients", "2", "--for", "300ms", "--records", "a.jsonl", *SHORT, *WIDE)
    assert run(engine_url, *words) == MET
    rows, _ = records.read(Path("a.jsonl"))
    assert len(rows) >= 2
    assert max(row.at_s for row in rows) < 0.3 + max(row.ended_s - row.at_s for row in rows)


def test_a_trace_is_played_to_its_end(engine_url, folder):
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,8,3\n0.2,9,2\n")
    assert run(engine_url, "--trace", "t.csv", "--records", "a.jsonl", *WIDE) == MET
    rows, _ = records.read(Path("a.jsonl"))
    assert [(row.prompt_tokens, row.tokens) for row in rows] == [(8, 3), (9, 2)]
    assert rows[1].at_s >= 0.2


def test_a_server_that_is_down_is_another_exit_than_a_missed_goal(folder):
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert run(url, "--rate", "50", "--requests", "3", *WIDE) == NO_SERVER
    assert list(folder.iterdir()) == []
    words = ("--model", "m", "--rate", "50", "--requests", "3", "--records", "a.jsonl")
    assert run(url, *words, *WIDE) == NO_SERVER
    rows, _ = records.read(Path("a.jsonl"))
    assert all("cannot connect" in row.error for row in rows)


@pytest.fixture
def broken() -> Iterator[str]:
    """The URL of a server that answers 500."""

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_requests_that_fail_miss_the_goal(broken):
    words = ("--model", "m", "--rate", "50", "--requests", "3", "--records", "a.jsonl")
    assert run(broken, *words, *WIDE) == MISSED
    assert {row.status for row in records.read(Path("a.jsonl"))[0]} == {500}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("http://x", "--rate", "1"),
        ("http://x", *WIDE),
        ("http://x", *WIDE, "--rate", "1", "--clients", "2"),
        ("http://x", *WIDE, "--clients", "2", "--burstiness", "0.5"),
        ("x:8000", *WIDE, "--rate", "1"),
        ("http://x", *WIDE, "--rate", "1", "--records", "empty.csv"),
        ("http://x", "--ttft", "200", "--tpot", "50ms", "--rate", "1"),
        ("http://x", *WIDE, "--goal", "90", "--rate", "1"),
        ("http://x", *WIDE, "--rate", "0"),
        ("http://x", *WIDE, "--rate", "nan"),
        ("http://x", *WIDE, "--clients", "-1"),
        ("http://x", *WIDE, "--rate", "1", "--header", "abc"),
        ("http://x", *WIDE, "--rate", "1", "--json", "no/such/folder.json"),
        ("http://x", *WIDE, "--trace", "absent.csv"),
        ("http://x", *WIDE, "--trace", "unsorted.csv"),
        ("http://x", *WIDE, "--trace", "empty.csv"),
        ("http://x", *WIDE, "--rate", "1", "--prompts", "empty.csv"),
        ("--read", "absent.json", *WIDE),
        ("--read", "unsorted.csv", *WIDE),
    ],
)
def test_wrong_input_is_refused_before_anything_is_sent(words, folder, capsys):
    head = "arrival_s,prompt_tokens,output_tokens\n"
    Path("unsorted.csv").write_text(f"{head}2,8,3\n1,9,2\n")
    Path("empty.csv").write_text("")
    assert run(*words) == WRONG
    assert "argosy bench: " in capsys.readouterr().err
    assert not list(folder.glob("*.jsonl"))


def test_what_was_measured_until_an_interruption_is_scored(engine_url):
    words = ("--rate", "20", "--records", "a.jsonl", "--json", "a.json", *SHORT, *WIDE)
    command = [sys.executable, "-m", "argosy", "bench", engine_url, *words]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, preexec_fn=hear_interrupts, **silent) as process:
        path = Path("a.jsonl")
        while not path.exists() or path.read_text().count("\n") < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == INTERRUPTED
    assert len(records.read(path)[0]) == json.loads(Path("a.json").read_text())["requests"] >= 3


def hear_interrupts() -> None:
    """Give a process that starts the default SIGINT: a shell has jobs in the background ignore it,
    and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Parts(HTMLParser):
    """Elements, ids and references of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href", "data", "srcset"}:
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")


@pytest.mark.parametrize("failed", [0, 7, 40])
def test_the_report_has_five_pictures_and_loads_nothing(failed):
    rows = [Row(n / 10, n / 10 + 1, 0.1 + n / 200, 0.02 + n / 2000, 9) for n in range(40 - failed)]
    rows += [Row(n / 10, n / 10, None, None, error="<b>no</b>") for n in range(failed)]
    limits = Limits(0.2, 0.03, 0.9)
    page = report.page(rows, limits, score(rows, limits), "argosy bench <x>")
    parts = Parts(page)
    assert parts.tags.count("figure") == parts.tags.count("svg") == 5
    assert len(parts.ids) == len(set(parts.ids))
    assert {one[0] for one in parts.references} == {"#"}
    assert {one[1:] for one in parts.references} <= set(parts.ids)
    assert "@import" not in page
    assert not {"script", "link", "img", "x"} & set(parts.tags)


def test_a_fleet_is_reached_and_judged_as_kubectl_says(engine_url, folder, monkeypatch):
    # A kubectl of this test: the port of the engine stands for the one that is forwarded.
    slo = {"ttft": {"target": "30s"}, "tpot": {"target": "30s"}, "attainment": "95%"}
    port = engine_url.rpartition(":")[2]
    program = folder / "kubectl"
    program.write_text(
        f"""#!/bin/sh
printf "%s\\n" "$*" >> words
case "$*" in
*"get servingdeployment"*) echo '{json.dumps({"spec": {"slo": slo}})}';;
*port-forward*) echo "Forwarding from 127.0.0.1:{port} -> 8000"; exec sleep 100;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    words = ("--fleet", "chat", "-n", "team", "--rate", "50", "--requests", "3", *SHORT)
    assert run(*words, "--records", "a.jsonl") == MET
    assert records.read(Path("a.jsonl"))[1] == Limits(30, 30, 0.95)
    get, forward = Path("words").read_text().splitlines()
    assert get == "-n team get servingdeployment chat -o json"
    assert forward == "-n team port-forward service/chat :80"
    # With a URL, nothing is forwarded.
    assert run(engine_url, *words, "--records", "b.jsonl") == MET
    assert Path("words").read_text().splitlines()[2:] == [get]


def test_a_fleet_that_kubectl_cannot_read_is_said_with_its_words(folder, monkeypatch, capsys):
    program = folder / "kubectl"
    program.write_text('#!/bin/sh\necho "not found: chat" >&2; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert run("--fleet", "chat", "--rate", "1") == NO_SERVER
    assert "not found: chat" in capsys.readouterr().err
    program.unlink()
    monkeypatch.setenv("PATH", str(folder))
    assert run("--fleet", "chat", "--rate", "1") == WRONG


def test_limits_and_gpus_of_a_fleet_are_read_as_kubectl_prints_them():
    spec = {"slo": {"ttft": {"target": "1.5s"}, "tpot": {"target": "40ms"}, "attainment": "95%"}}
    status = {"roles": {"prefill": {"gpus": 2}, "decode": {"gpus": 4}, "colocated": None}}
    assert describe({"spec": spec, "status": status}) == Fleet(Limits(1.5, 0.04, 0.95), 6)
    assert describe({"spec": {}}) == Fleet(None, 0)


def test_durations_are_read_as_specs_write_them():
    assert [read_seconds(text) for text in ("200ms", "2s", "1.5m")] == [0.2, 2.0, 90.0]
