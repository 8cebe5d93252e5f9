"""A pod's network while it is cut one way, slow, or damages bytes. Each fault ends with its block.

Rules are put into the pod's own network, so that nothing else on the machine feels them. This needs
the rights of root.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from argosy_bench.loss.fleet import Pod, processes_of

API, KV = 8000, 8002
_THROUGH = 18002
"""Where the damaging process listens; no port of a pod."""

_DROPPED = """
# One way: what the pod sends still leaves.
table inet argosy_loss {{
  chain arrive {{ type filter hook input priority 0; tcp dport {port} drop; }}
}}
"""
_DIVERTED = """
# Only what comes from outside: the damaging process itself reaches the port.
table inet argosy_loss {{
  chain arrive {{
    type nat hook prerouting priority -100;
    tcp dport {port} redirect to :{through};
  }}
}}
"""
_UNDO = ["nft", "delete", "table", "inet", "argosy_loss"]
_DEVICE = ["dev", "eth0", "root"]
_RATE = ["rate", "200kbit", "burst", "16kb", "latency", "2s"]


def may_change_networks() -> bool:
    """Whether this user may enter a pod's network; an ordinary one may not."""
    return os.geteuid() == 0


def _inside(pod: Pod) -> list[str]:
    return ["nsenter", "-t", str(processes_of(pod)[0]), "-n", "--"]


@contextlib.contextmanager
def _changed(
    inside: list[str], begin: list[str], end: list[str], given: str = ""
) -> Iterator[None]:
    """Run one command in the pod's network before the block, and the other after it."""
    subprocess.run([*inside, *begin], input=given, text=True, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*inside, *end], check=False, capture_output=True)


@contextlib.contextmanager
def cut(pod: Pod, port: int) -> Iterator[None]:
    """Packets to this port of the pod are dropped."""
    with _changed(_inside(pod), ["nft", "-f", "-"], _UNDO, _DROPPED.format(port=port)):
        yield


@contextlib.contextmanager
def slowed(pod: Pod) -> Iterator[None]:
    """The pod sends 200 kbit/s."""
    begin = ["tc", "qdisc", "add", *_DEVICE, "tbf", *_RATE]
    with _changed(_inside(pod), begin, ["tc", "qdisc", "del", *_DEVICE]):
        yield


@contextlib.contextmanager
def corrupted(pod: Pod, port: int, seed: int) -> Iterator[None]:
    """A bit in each direction of each new connection to this port arrives turned over."""
    inside, address = _inside(pod), pod["status"]["podIP"]
    program = [sys.executable, "-m", "argosy_bench.loss.faults.corrupting"]
    words = [*inside, *program, str(_THROUGH), address, str(port), str(seed)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise OSError("the process that damages bytes does not listen: see above")
            rules = _DIVERTED.format(port=port, through=_THROUGH)
            with _changed(inside, ["nft", "-f", "-"], _UNDO, rules):
                yield
        finally:
            process.kill()
