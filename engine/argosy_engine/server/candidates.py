"""The prefill engines that Argosy's gateway names to a decode engine, from its headers."""

import re

from argosy_engine.server.openai.errors import ApiError

__all__ = ["MAX_CANDIDATES", "candidates"]

MAX_CANDIDATES = 8

_UID = re.compile(r"[A-Za-z0-9._-]{0,64}")
_CANDIDATE = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def candidates(addresses: str, uids: str | None) -> tuple[str, ...]:
    """Addresses, each with "/" and its pod's uid where the gateway names uids, too.

    Input: the values of `x-argosy-prefill` and `x-argosy-prefill-uids`. Raises ApiError.
    """
    found = tuple(part.strip() for part in addresses.split(","))
    pods = ("," * (len(found) - 1) if uids is None else uids).split(",")
    well_formed = all(map(_CANDIDATE.fullmatch, found)) and all(map(_UID.fullmatch, pods))
    if not well_formed or len(pods) != len(found) or len(found) > MAX_CANDIDATES:
        raise ApiError(
            400,
            f"x-argosy-prefill: write at most {MAX_CANDIDATES} of ip:port, comma between, and "
            "in x-argosy-prefill-uids as many uids of their pods, or no such header",
            param="x-argosy-prefill",
        )
    pairs = zip(found, pods, strict=True)
    return tuple(f"{address}/{uid}" if uid else address for address, uid in pairs)
