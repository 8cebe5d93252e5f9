"""The three programs write one kind of log (designs/0001-seams.md, section 7)."""

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from argosy import logs

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "designs/0001-seams.md").read_text().partition("## 7. Log")[2]
KEYS = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", SECTION, re.MULTILINE))))


def ran(code: str, *, stderr: int = subprocess.PIPE) -> str:
    words = f"import logging, warnings\nfrom argosy import logs\n{code}"
    done = subprocess.run([sys.executable, "-c", words], stderr=stderr, timeout=60, check=False)
    return (done.stderr or b"").decode()


def line(message: str, *values: object, **extra: object) -> dict[str, object]:
    try:
        raise KeyError("two\nlines")
    except KeyError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, message, values, sys.exc_info(), extra=extra
        )
    text = logs._Json().format(record)
    assert "\n" not in text
    return json.loads(text, parse_constant=pytest.fail)


def test_a_line_is_one_json_object_with_the_keys_of_the_seams_whatever_its_texts():
    with logs.about(request_id="r", attempt=2, namespace="n", fleet="f"):
        written = line('a\nb"%s\x1b\udcff', "}\r\n{", decision={"x": float("inf"), 1: {}})
    assert set(written) == KEYS
    assert written["message"] == 'a\nb"}\r\n{\x1b\udcff'
    assert "two" in str(written["exception"])


def test_a_line_is_about_what_is_bound_and_no_longer_than_it_is_bound():
    with logs.about(request_id="outer", attempt=1):
        with logs.about(request_id="inner", attempt=None):
            inside = line("m")
        after = line("m", attempt=7)
    assert (inside["request_id"], "attempt" in inside) == ("inner", False)
    assert (after["request_id"], after["attempt"]) == ("outer", 7)
    assert "request_id" not in line("m")


def test_warnings_libraries_and_a_crash_write_json_where_stderr_is_no_terminal():
    code = """
logs.configure()
warnings.warn("care")
logging.getLogger("uvicorn.error").error("from a library")
logging.getLogger("argosy").debug("left out")
raise RuntimeError("bad luck")
"""
    lines = [json.loads(text) for text in ran(code).splitlines()]
    assert [x["level"] for x in lines] == ["warning", "error", "critical"]
    assert {key for x in lines for key in x} <= KEYS
    assert "bad luck" in lines[-1]["exception"]


def test_a_terminal_gets_text_that_cannot_move_its_cursor():
    ours, theirs = pty.openpty()
    code = r"""
logs.configure(level="debug")
logs.bind(request_id="r-1")
logging.getLogger("argosy").debug("one \x1b[2J two\nthree")
"""
    ran(code, stderr=theirs)
    text = os.read(ours, 4096).decode()
    os.close(theirs)
    os.close(ours)
    assert text.endswith(r"argosy request_id=r-1: one \x1b[2J two\nthree" + "\r\n")
