"""What routers other than Argosy's gateway write, as what this engine understands.

Input: a header value and the decoded body of one request from a router for vLLM. Output: prefill
engines in the form of `NewRequest.candidates`, or a `Transfer`, or an ApiError that says what to
write instead.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.request import Claim
from argosy_engine.server.candidates import MAX_CANDIDATES
from argosy_engine.server.openai.asked.fields import whole
from argosy_engine.server.openai.errors import ApiError, draining_error
from argosy_engine.server.openai.parameters import bad
from argosy_engine.server.role import EngineRole

__all__ = [
    "HEADER",
    "Transfer",
    "one_token",
    "prefillers",
    "refuse_role",
    "take_transfer",
]

PARAMS = "kv_transfer_params"
"""vLLM's member of requests and answers (its NIXL connector)."""

HEADER = "x-prefiller-host-port"
"""llm-d's (its `common.PrefillPodHeader`): the API address of each prefill engine, the best
first."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9.-]{1,253}):(?P<port>[0-9]{1,5})")
_LARGEST_PORT = 65535
_HOST = re.compile(r"[0-9a-fA-F:.]{2,45}|[A-Za-z0-9.-]{1,253}")
_EPOCH = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TICKET = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What `kv_transfer_params` ask for; by default nothing."""

    offers: bool = False
    """Compute the prompt, and hold its KV for another engine (`do_remote_decode`)."""

    candidate: str = ""
    """KV address of the engine that holds the prompt (`do_remote_prefill`), with `claim`."""

    claim: Claim | None = None


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


def take_transfer(body: dict[str, Any]) -> Transfer:
    """Remove `kv_transfer_params` from a request's body and read them. Raises ApiError."""
    said = body.pop(PARAMS, None)
    if said is None or said == {}:
        return Transfer()
    if not isinstance(said, dict):
        raise bad(PARAMS, f"must be an object, got {said!r:.40}")
    offers, claims = _flag(said, "do_remote_decode"), _flag(said, "do_remote_prefill")
    if offers and claims:
        raise bad(PARAMS, "do_remote_decode and do_remote_prefill are for different engines: "
                  "write true for one of them")  # fmt: skip
    if not claims:
        return Transfer(offers=offers)
    ticket = said.get("argosy_ticket")
    if ticket is None:
        raise bad(PARAMS, "argosy_ticket is missing: pass on all that an Argosy prefill engine "
                  "answered; vLLM's own KV cannot be read")  # fmt: skip
    host = _text(said, "remote_host", _HOST, "the name or address of the prefill engine")
    claim = Claim(
        ticket=_text(said, "argosy_ticket", _TICKET, "32 hexadecimal digits"),
        engine_epoch=_text(said, "remote_engine_id", _EPOCH, "what the prefill engine answered"),
    )
    address = f"[{host}]" if ":" in host else host
    return Transfer(candidate=f"{address}:{_port(said)}", claim=claim)


def one_token(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a prompt that goes on elsewhere: limits of the answer do not count here.

    llm-d's sidecar writes `max_tokens: 1` and leaves a larger `min_tokens`.
    """
    changed = {**body, "max_tokens": 1, "max_completion_tokens": None}
    least = whole(body.get("min_tokens"))
    if least is not None and least > 1:
        changed["min_tokens"] = 1
    if body.get("stream"):
        raise bad("stream", f"write false: {PARAMS} are in whole answers only")
    return changed


def refuse_role(role: EngineRole, transfer: Transfer) -> None:
    """Raise ApiError for what an engine of this role does not do."""
    if transfer.offers == (role.now == "prefill") and (
        transfer.claim is None or role.now == "decode"
    ):
        return
    if role.mutable:  # the caller does not know the role of now yet
        does = "only prefills" if role.now == "prefill" else "does not prefill for others"
        raise draining_error(f"this engine {does} now: ask another one")
    if role.now == "prefill":
        message = "this engine only prefills: send requests to a decode engine"
        raise ApiError(400, message, code="prefill_only")
    asked, wanted = (
        ("do_remote_decode", "prefill") if transfer.offers else ("do_remote_prefill", "decode")
    )
    raise bad(PARAMS, f"{asked}: this engine's role is {role.now}: send it to a {wanted} engine")


def _flag(said: Mapping[str, Any], name: str) -> bool:
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad(PARAMS, f"{name} must be true or false, got {value!r:.40}")
    return bool(value)


def _text(said: Mapping[str, Any], name: str, form: re.Pattern[str], meaning: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise bad(PARAMS, f"{name} must be {meaning}, got {value!r:.40}")
    return value


def _port(said: Mapping[str, Any]) -> int:
    value = said.get("remote_port")
    if type(value) is not int or not 1 <= value <= _LARGEST_PORT:
        raise bad(PARAMS, f"remote_port must be a KV port, 1 to {_LARGEST_PORT}, got {value!r:.40}")
    return value
