"""The supervisor's children: starts them, starts them again when they end, reaps them.

The supervisor is PID 1 of the cluster's PID namespace, so orphans are reaped here too.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S = 0.1, 5.0, 10.0


@dataclass(slots=True)
class Program:
    """One process to keep alive."""

    name: str
    argv: list[str]
    log: Path
    """File that gets its output."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""
    mounts: int | None = None
    """Pid whose mount namespace it enters; None for the cluster's own."""
    fds: tuple[int, ...] = ()
    """File descriptors that it inherits."""
    pid: int = 0
    """0 while it is down."""
    starts: int = 0
    """How often it was started."""
    started_at: float = 0.0
    """Monotonic time of its last start."""
    pause_s: float = _FIRST_PAUSE_S
    """Pause before the next start; doubles while it keeps ending early."""
    wanted: bool = True
    """False: it is not started again."""
    process: subprocess.Popen[bytes] | None = None


class Processes:
    """All programs by name; `on_start(program)` is called after every start."""

    def __init__(self, on_start: Callable[[Program], None]) -> None:
        self.programs: dict[str, Program] = {}
        self._on_start = on_start
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, program: Program) -> None:
        """Start it now, and again each time it ends."""
        self.programs[program.name] = program
        self._spawn(program)

    def _spawn(self, program: Program) -> None:
        if not program.wanted:
            return
        argv = program.argv
        if program.mounts is not None:
            argv = ["nsenter", f"--mount=/proc/{program.mounts}/ns/mnt", "--", *argv]
        with program.log.open("ab") as log:
            program.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.env},
                pass_fds=program.fds,
                start_new_session=True,
            )
        program.pid = program.process.pid
        program.starts += 1
        program.started_at = time.monotonic()
        self._on_start(program)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for program in self.programs.values():
                if program.pid == pid:
                    self._ended(program, os.waitstatus_to_exitcode(status))

    def _ended(self, program: Program, code: int) -> None:
        program.pid = 0
        if program.process:
            program.process.returncode = code  # reaped here, so Popen must not wait for it
        lived_s = time.monotonic() - program.started_at
        steady = lived_s > _STEADY_S
        program.pause_s = _FIRST_PAUSE_S if steady else program.pause_s * 2
        pause_s = min(program.pause_s, _LONGEST_PAUSE_S)
        if program.wanted:
            print(f"{program.name} ended with {code} after {lived_s:.1f} s", flush=True)
            self._loop.call_later(pause_s, self._spawn, program)

    def signal(self, name: str, number: int) -> None:
        """KeyError for an unknown name. A program that is down is not signalled."""
        program = self.programs[name]
        if program.pid:
            os.kill(program.pid, number)

    def drop(self, name: str) -> None:
        """Stop it for good."""
        program = self.programs.pop(name)
        program.wanted = False
        if program.pid:
            os.kill(program.pid, signal.SIGKILL)
