"""The log on standard error: JSON in pods, text on a terminal (designs/0001-seams.md, section 7).

A line says what it is about by the keys that are bound: fleet, request, decision.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType

FORMATS = ("auto", "json", "text")
LEVELS = ("info", "debug")

_OURS = ("argosy", "argosy_engine", "argosy_gateway")
_SUBJECT = ("namespace", "fleet", "request_id", "attempt", "decision")
"""Keys that say what a line is about, in their order. A line has those that apply."""

_NOTHING: Mapping[str, object] = MappingProxyType({})
_bound: ContextVar[Mapping[str, object]] = ContextVar("log_subject", default=_NOTHING)


def bind(**subject: object) -> None:
    """Let lines of this task, and of tasks that it starts from now on, be about `subject`.

    The keys are those of a line; None removes one.
    """
    _bound.set({**_bound.get(), **subject})


@contextlib.contextmanager
def about(**subject: object) -> Iterator[None]:
    """Let lines be about `subject`, as `bind` does, until the block ends."""
    token = _bound.set({**_bound.get(), **subject})
    try:
        yield
    finally:
        _bound.reset(token)


def configure(style: str = "auto", level: str = "info", quiet: Sequence[str] = ()) -> None:
    """Send all lines to standard error, those of libraries, of warnings and of a crash included.

    `style` is one of FORMATS; `auto` is text on a terminal and JSON elsewhere. `level` is one of
    LEVELS and applies to our own lines; libraries log from INFO, those in `quiet` from WARNING.
    """
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(_Text() if text else _Json())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook = _crash


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("argosy").critical("the process ends", exc_info=(kind, error, trace))


def _subject(record: logging.LogRecord) -> dict[str, object]:
    """Return what the line is about: its own `extra` before what is bound."""
    found = {**_bound.get(), **vars(record)}
    return {key: found[key] for key in _SUBJECT if found.get(key) is not None}


class _Json(logging.Formatter):
    """One object a line; the keys of section 7 and no others."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_subject(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line, default=str, allow_nan=False)
        except (TypeError, ValueError):  # infinity, or a key that JSON does not have
            return json.dumps({key: str(value) for key, value in line.items()})


class _Text(logging.Formatter):
    """Time, level, logger, what it is about, message; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        subject = "".join(f" {key}={value}" for key, value in _subject(record).items())
        line = f"{time} {record.levelname:<7} {record.name}{subject}: {record.getMessage()}"
        # Texts from outside stay on their line, and change nothing on the terminal.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line
