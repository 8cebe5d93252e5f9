"""A process in front of a TCP port that turns over one bit in each direction of each connection.

    python -m argosy_bench.cluster.corrupting PORT TARGET-HOST TARGET-PORT SEED

Prints a line when it listens. `network` starts it in a pod's network and sends the pod's
connections through it.
"""

import asyncio
import contextlib
import random
import sys
from dataclasses import dataclass

_LATEST = 17
"""The bit is in one of the first 2 to this power bytes, as likely in an early one, where heads are,
as in a late one."""
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Bit:
    """Which bit of a direction is turned over."""

    byte: int
    """Counted from the beginning of the connection."""
    mask: int


def bit_of(draw: random.Random) -> Bit:
    """A bit by chance."""
    return Bit(int(2 ** draw.uniform(0, _LATEST)) - 1, 1 << draw.randrange(8))


def damaged(piece: bytes, passed: int, bit: Bit) -> bytes:
    """`piece`, whose first byte is number `passed` of its direction, with the bit turned over if it
    is in the piece."""
    place = bit.byte - passed
    if not 0 <= place < len(piece):
        return piece
    return piece[:place] + bytes([piece[place] ^ bit.mask]) + piece[place + 1 :]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bit: Bit) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(damaged(piece, passed, bit))
            passed += len(piece)
            await writer.drain()
        writer.write_eof()


async def serve(port: int, target: tuple[str, int], seed: int) -> None:
    """Pass connections on until the process ends."""
    draw = random.Random(seed)  # noqa: S311 - repeatable

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forth, back = bit_of(draw), bit_of(draw)
        with contextlib.suppress(OSError):
            far_reader, far = await asyncio.open_connection(*target)
            with contextlib.suppress(OSError):
                await asyncio.gather(
                    _pass_on(reader, far, forth), _pass_on(far_reader, writer, back)
                )
            far.transport.abort()
        writer.transport.abort()

    server = await asyncio.start_server(connected, "0.0.0.0", port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    own, host, theirs, seed_text = sys.argv[1:]
    asyncio.run(serve(int(own), (host, int(theirs)), int(seed_text)))
