"""The process that speaks NIXL: writes slots of its engine's staging memory into a peer's.

`python -m argosy_engine.transfer.nixl_agent SOCKET MEMORY SIZE`, with the descriptors of a stream
socket and of the memory. Started by `nixl.py`, which sends one JSON object a line; each answer is
one, too. It ends with the socket.

NIXL lives in a process of its own because its parser of a peer's metadata aborts on damaged bytes,
and because UCX over TCP lets a peer write to any address of the process: here are only slots.
NIXL's listener and its pickled descriptors are not used.
"""

import base64
import json
import mmap
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

_IDLE_S = 50e-6  # between two looks at transfers; NIXL has nothing to wait for
_PEERS = 256


@dataclass(frozen=True, slots=True)
class _Transfer:
    handle: Any
    peer: str
    metadata: str
    deadline_s: float


class Agent:
    """The memory stays mapped and registered as long as the process lives."""

    def __init__(self, sock: socket.socket, memory: int, size: int) -> None:
        from nixl._api import nixl_agent, nixl_agent_config  # a second, and it may fail

        self._sock = sock
        self._staging = np.frombuffer(mmap.mmap(memory, size), np.uint8)
        self._base = self._staging.ctypes.data
        name = base64.b32encode(np.random.default_rng().bytes(15)).decode()
        # Its progress thread would spin on a core for ever; `run` makes progress while it must.
        config = nixl_agent_config(enable_prog_thread=False, enable_listen_thread=False)
        self._nixl = nixl_agent(name, config)
        known = self._nixl.register_memory([(self._base, size, 0, "")], "DRAM")
        self._metadata = self._nixl.get_partial_agent_metadata(known, True, ["UCX"])
        self._peers: dict[str, str] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._awaited = 0
        self._unread = b""

    def run(self) -> None:
        """Until the engine closes the socket."""
        text = base64.b64encode(self._metadata).decode()
        self._say(metadata=text, address=self._base)
        while True:
            busy = bool(self._transfers) or self._awaited > 0
            if select.select([self._sock], (), (), _IDLE_S if busy else None)[0]:
                data = self._sock.recv(1 << 16)
                if not data:
                    return
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            if self._awaited:
                self._nixl.get_new_notifs()  # lets the bytes of peers arrive; none notifies us
            for number in tuple(self._transfers):
                self._look_at(number)

    def _say(self, **words: object) -> None:
        self._sock.sendall(json.dumps(words).encode() + b"\n")

    def _obey(self, order: dict[str, Any]) -> None:
        if "awaited" in order:
            self._awaited = order["awaited"]
            return
        number = order["write"]
        try:
            self._begin(number, order)
        except Exception as error:
            self._forget(order["metadata"])
            self._say(write=number, error=_words(error))

    def _begin(self, number: int, order: dict[str, Any]) -> None:
        size, metadata = order["size"], order["metadata"]
        peer = self._peer(metadata)
        ours = self._nixl.get_xfer_descs([(self._base + order["at"], size, 0)], "DRAM")
        theirs = self._nixl.get_xfer_descs([(order["address"], size, 0)], "DRAM")
        handle = self._nixl.initialize_xfer("WRITE", ours, theirs, peer)
        deadline_s = time.monotonic() + order["within_s"]
        self._transfers[number] = _Transfer(handle, peer, metadata, deadline_s)
        self._nixl.transfer(handle)

    def _peer(self, metadata: str) -> str:
        if metadata not in self._peers:
            if len(self._peers) >= _PEERS:
                self._forget(next(iter(self._peers)))
            peer = self._nixl.add_remote_agent(base64.b64decode(metadata, validate=True))
            self._peers[metadata] = peer.decode() if isinstance(peer, bytes) else peer
        return self._peers[metadata]

    def _look_at(self, number: int) -> None:
        transfer = self._transfers[number]
        try:
            state = self._nixl.check_xfer_state(transfer.handle)
            error = "NIXL gave it up" if state == "ERR" else ""
        except Exception as failure:
            state, error = "ERR", _words(failure)
        if state == "PROC":
            if time.monotonic() < transfer.deadline_s:
                return
            error = "slower than the minimum rate"
        # An exception here ends the process: nothing else ensures that the slot is not read.
        transfer.handle.release()
        del self._transfers[number]
        if error:
            self._forget(transfer.metadata)
        self._say(write=number, **({"error": error} if error else {}))

    def _forget(self, metadata: str) -> None:
        """End the connection to a peer, unless another transfer uses it."""
        in_use = any(transfer.metadata == metadata for transfer in self._transfers.values())
        if not in_use and (peer := self._peers.pop(metadata, None)) is not None:
            self._nixl.remove_remote_agent(peer)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def main() -> None:
    """An error that keeps it from starting is its only answer."""
    number, memory, size = map(int, sys.argv[1:])
    sock = socket.socket(fileno=number)
    try:
        agent = Agent(sock, memory, size)
    except Exception as error:
        sock.sendall(json.dumps({"failed": _words(error)}).encode() + b"\n")
        return
    agent.run()


if __name__ == "__main__":
    main()
