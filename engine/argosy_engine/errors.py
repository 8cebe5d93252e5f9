"""Every exception that the engine raises for a reason it knows.

    EngineError
    ├── LoadError             the engine cannot start; ends the process with a message
    ├── RankLostError         a process of tensor parallelism ended; ends the engine
    ├── PoolExhaustedError    more KV blocks were asked for than the pool has
    ├── LeaseGoneError        a lease expired, was released, or never existed
    ├── LeaseTakenError       the same request and attempt has a lease already
    ├── ClientGoneError       the client closed its connection; no answer is possible
    ├── ChatTemplateError     the messages of a chat do not fit the model's template
    ├── GrammarError          an answer cannot be held to the grammar that was asked for
    ├── ApiError              an OpenAI error answer (server.openai.errors)
    ├── FileError             a mounted file cannot be used (transfer.mounted_file)
    ├── WireError             bytes on the KV connection break the protocol (transfer.wire)
    ├── RefusedError          the peer sent REFUSED (transfer.fetch)
    ├── NotReadyError         blocks were asked for that are not computed (transfer.sending)
    ├── LinkError             NIXL did not move bytes; TCP may (transfer.nixl)
    └── PullError             one attempt to pull KV from a peer failed (transfer.asking)

Errors that carry values of a higher layer are defined there; the tree names the module.
"""

from typing import Literal

LoadReason = Literal[
    "ModelNotFound", "WeightsInvalid", "UnsupportedArchitecture", "OutOfMemory", "BadArgument"
]
"""Becomes the reason of a condition of the ServingDeployment (designs/0001-seams.md §3)."""


class EngineError(Exception):
    """Base of all errors of this package."""


class LoadError(EngineError):
    """The engine cannot start. `reason` becomes a condition; `message` says what to do."""

    def __init__(self, reason: LoadReason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: LoadReason = reason
        self.message = message


class RankLostError(EngineError):
    """A rank of tensor parallelism has died or could not compute: no step can be computed any more.
    The process ends, and the pod starts anew."""


class PoolExhaustedError(EngineError):
    """More KV blocks were asked for than are free or cached: the caller skipped the check."""


class LeaseGoneError(EngineError):
    """The lease expired, was released, or never existed; the text says which.

    The blocks may hold other text by now: do not send them.
    """


class LeaseTakenError(EngineError):
    """A prompt of this request and attempt is queued, computed or held already."""


class ClientGoneError(EngineError):
    """The client closed its connection; there is no one to answer."""


class ChatTemplateError(EngineError):
    """The messages do not fit the model's template; the text goes to the client (status 400)."""


class GrammarError(EngineError):
    """A grammar that cannot be used, or an answer that cannot go on by it; the text goes to the
    client."""
