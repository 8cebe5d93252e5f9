"""The role of this engine: prefill, decode or colocated. Prefill and decode may change in place.

Input: `--role`, and with `--role-file` a file that the kubelet writes from the pod's label. When
the file names the other role, the engine admits no request until nothing runs and no lease is held.
Then it takes the role. The weights and the KV pool stay. `serve.py` connects both to the rest.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from argosy_engine.config import EngineConfig, Role
from argosy_engine.errors import LoadError

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_MAY_CHANGE: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}


@dataclass(slots=True)
class EngineRole:
    """The role as of now. All of the server reads it here; only `RoleFile` changes it."""

    now: Role
    mutable: bool = False
    """A request that is meant for the other role is answered as by an engine that drains."""


def role_at_start(config: EngineConfig) -> EngineRole:
    """The role that the file names, else `--role`; LoadError for a file that cannot be used."""
    if config.role_file is None:
        return EngineRole(config.role)
    if config.role == "colocated":
        message = "--role-file changes between prefill and decode: leave it out, or change --role"
        raise LoadError("BadArgument", message)
    try:
        return EngineRole(_read(Path(config.role_file)), mutable=True)
    except ValueError as error:
        raise LoadError("BadArgument", f"--role-file {config.role_file}: {error}") from error


@dataclass(slots=True)
class Admission:
    """Whether requests are admitted: not during a drain, and not while the role changes."""

    switch: Callable[[bool], None]
    """Called with True to admit, with False to refuse."""
    draining: bool = False
    changing: bool = False

    def drains(self, on: bool) -> None:
        self.draining = on
        self.switch(not (self.draining or self.changing))

    def changes_role(self, on: bool) -> None:
        self.changing = on
        self.switch(not (self.draining or self.changing))


class RoleFile:
    """Follows the file while the engine serves. All methods run on the event loop."""

    def __init__(
        self,
        path: Path,
        role: EngineRole,
        *,
        busy: Callable[[], bool],
        close: Callable[[bool], None],
        take: Callable[[Role], None],
    ) -> None:
        """`busy`: requests run or leases are held. `close(True)` ends the admission of requests,
        `close(False)` ends that. `take` tells the engine's parts their role."""
        self._path = path
        self._role = role
        self._busy = busy
        self._close = close
        self._take = take
        self._closed = False
        self._seen_idle = 0
        self._complaint = ""

    async def follow(self) -> None:
        """Look at the file until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Take the role in the file, or come closer to it. A file that cannot be read changes
        nothing."""
        try:
            wanted = _read(self._path)
        except ValueError as error:
            if str(error) != self._complaint:
                log.error("the engine stays %s: %s", self._role.now, error)
            self._complaint = str(error)
            return
        self._complaint = ""
        if wanted == self._role.now:
            self._seen_idle = 0
            self._admit()
            return
        if not self._closed:
            log.info("to become %s, this engine finishes what it does", wanted)
            self._closed = True
            self._close(True)
        # Between two counts a prompt may be in neither: no longer running, not yet leased.
        self._seen_idle = 0 if self._busy() else self._seen_idle + 1
        if self._seen_idle >= 2:
            log.info("the role is %s from now on; it was %s", wanted, self._role.now)
            self._seen_idle = 0
            self._role.now = wanted
            self._take(wanted)
            self._admit()

    def _admit(self) -> None:
        if self._closed:
            self._closed = False
            self._close(False)


def _read(path: Path) -> Role:
    """ValueError that says what is wrong with the file."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the role from {path}: {error}") from error
    if text not in _MAY_CHANGE:
        raise ValueError(f"{path} says {text[:40]!r}: write prefill or decode")
    return _MAY_CHANGE[text]
