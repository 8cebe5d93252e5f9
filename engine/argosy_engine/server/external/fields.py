"""What routers other than Argosy's gateway write, as what this engine understands.

Input: header values of one request from a router for vLLM. Output: prefill engines in the form of
`NewRequest.candidates`, or an ApiError that says what to write instead.
"""

import re

from argosy_engine.server.openai.errors import ApiError

__all__ = ["HEADER", "MAX_CANDIDATES", "prefillers"]

HEADER = "x-prefiller-host-port"
"""llm-d's (its `common.PrefillPodHeader`): the API address of each prefill engine, the best
first."""

MAX_CANDIDATES = 8

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9.-]{1,253}):(?P<port>[0-9]{1,5})")
_LARGEST_PORT = 65535


def prefillers(value: str, kv_port: int) -> tuple[str, ...]:
    """KV addresses of the engines in a value of `HEADER`; none for an empty value.

    The header has API ports. The KV port is `kv_port`, which is the same for all engines of a
    fleet. Raises ApiError.
    """
    if not value.strip():
        return ()
    found = [_ADDRESS.fullmatch(part.strip()) for part in value.split(",")]
    hosts = [match["host"] for match in found if match and 1 <= int(match["port"]) <= _LARGEST_PORT]
    if len(hosts) != len(found) or len(hosts) > MAX_CANDIDATES:
        raise ApiError(
            400,
            f"{HEADER}: write at most {MAX_CANDIDATES} of host:port, the API addresses of prefill "
            "engines, comma between, or no such header",
            param=HEADER,
            code="invalid_value",
        )
    return tuple(f"{host}:{kv_port}" for host in hosts)
