"""Every exception of the gateway. Caught exceptions are named `error`.

GatewayError
├── ClientGoneError          the client closed before its request was whole
├── RequestError             a request that is answered here: status and OpenAI error body
├── ExchangeError            one HTTP/1.1 call to an engine or to the API server
│   ├── UnreachableError     no connection: nothing was sent
│   │   └── ShortageError    this process had no file descriptor for it
│   └── BrokenError          it failed after the request had been sent
│       └── StaleError       a kept connection ended before a byte of the answer
├── CredentialsError         no way to log in to the API server
├── SettingsError            the settings object cannot be used
└── ApiServerError           the API server gave an answer that the watch cannot use
    ├── StaleVersionError    410: the resourceVersion is too old to continue from
    └── AccessDeniedError    401 or 403
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "AccessDeniedError",
    "ApiServerError",
    "BrokenError",
    "ClientGoneError",
    "CredentialsError",
    "ExchangeError",
    "GatewayError",
    "RequestError",
    "SettingsError",
    "ShortageError",
    "StaleError",
    "StaleVersionError",
    "UnreachableError",
    "out_of_descriptors",
    "overloaded",
    "too_long",
]


class GatewayError(Exception):
    """Base of all."""


class ClientGoneError(GatewayError):
    """The client closed before its request was whole."""


@dataclass(eq=False)
class RequestError(GatewayError):
    """A request that is answered here. `wire.openai.body_of` makes the response body."""

    status: int
    """HTTP status."""
    message: str
    """What is wrong and what to do; the client sees it."""
    type: str = "invalid_request_error"
    """OpenAI's `error.type`."""
    param: str | None = None
    """The parameter at fault."""
    code: str | None = None
    """OpenAI's `error.code`, for programs."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further response headers, such as `retry-after`."""


def overloaded(retry_after_s: float) -> RequestError:
    """429: the client may come again after so many seconds."""
    return RequestError(
        429,
        "The fleet is overloaded; try again later.",
        type="overloaded",
        code="overloaded",
        headers={
            "retry-after": str(math.ceil(retry_after_s)),
            "retry-after-ms": str(round(retry_after_s * 1000)),
        },
    )


def too_long(what: str, most_bytes: int) -> RequestError:
    """400: the request asks for more than this process keeps of an answer. Its engine only does
    what it is asked."""
    return RequestError(
        400,
        f"{what} has more than {most_bytes} bytes: ask for fewer tokens (max_tokens), choices (n) "
        "or logprobs.",
        param="max_tokens",
        code="answer_too_long",
    )


def out_of_descriptors() -> RequestError:
    """503: the fault is this process's, and another gateway may have room."""
    return RequestError(
        503,
        "This gateway has no file descriptor left to call an engine; try again later.",
        type="server_error",
        code="out_of_descriptors",
        headers={"retry-after": "1"},
    )


class ExchangeError(GatewayError):
    """One HTTP/1.1 call failed."""


class UnreachableError(ExchangeError):
    """No connection: nothing was sent, so another pod may be called at once."""


class ShortageError(UnreachableError):
    """No connection, because this process has no file descriptor for it: no fault of the peer."""


class BrokenError(ExchangeError):
    """The other side closed, stalled or sent nonsense after the request had been sent."""


class StaleError(BrokenError):
    """A kept connection ended before a byte of the answer: the engine may have closed it while the
    request was on its way."""


class CredentialsError(GatewayError):
    """No way to log in to the API server; the message says what to set."""


class SettingsError(GatewayError):
    """The settings object is missing or wrong; the text says in what."""


class ApiServerError(GatewayError):
    """The API server gave an answer that the watch cannot use."""


class StaleVersionError(ApiServerError):
    """410: the resourceVersion is too old to continue from."""


class AccessDeniedError(ApiServerError):
    """401 or 403: this gateway's account may not read pods."""
