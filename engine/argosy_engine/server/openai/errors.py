"""Errors as clients of an OpenAI API expect them: a status, and a body that says what to do."""

import json
from dataclasses import dataclass, field

from argosy_engine.core.limits import Refusal
from argosy_engine.errors import EngineError

DRAINING_HEADER = "x-argosy-draining"  # tells the gateway: choose another pod
_RETRY_AFTER_S = "1"


@dataclass(slots=True)
class ApiError(EngineError):
    """`status` and the four members of an OpenAI error object."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


def draining_error(message: str = "this engine is draining: ask another one") -> ApiError:
    headers = {DRAINING_HEADER: "1", "retry-after": _RETRY_AFTER_S}
    return ApiError(503, message, "server_error", None, "draining", headers)


def overloaded(message: str) -> ApiError:
    """Too many requests wait; `message` ends with what to do."""
    headers = {"retry-after": _RETRY_AFTER_S}
    return ApiError(429, message, "rate_limit_error", None, "queue_full", headers)


def to_api_error(refusal: Refusal, prompt_name: str) -> ApiError:
    """The scheduler's refusal as a response; `prompt_name` is the member that holds the prompt."""
    match refusal.code:
        case "queue_full":
            return overloaded(refusal.message)
        case "draining":
            return draining_error(refusal.message)
        case _:
            return ApiError(400, refusal.message, param=prompt_name, code=refusal.code)
