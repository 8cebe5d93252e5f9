"""A stream that began on another engine goes on here (designs/0010-streams-survive.md).

The gateway asks for token ids beside the text, in a comment of each event. When the engine of a
stream is gone, it sends the client's request here, with the ids of the text that the client has.
`routes` computes prompt and ids as one prompt. The ids are replayed through a new `TextFlow`, so
that text which the first engine held back, such as half of a character or of a stop text, comes out
at the same place. Sampling goes on as after a preemption: a draw depends on seed and position.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from argosy_engine.core.request import Emission, NewRequest, Sequence
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.server.openai.answer import HANDOVER_HEADER, TextFlow
from argosy_engine.server.openai.parameters import bad

IDS_HEADER = "x-argosy-token-ids"
"""`1`: the caller wants the ids of the tokens in a comment of each event."""
RESUMED_HEADER = "x-argosy-resumed"
"""In the answer: how many ids the stream continues after. An engine that does not know how to
continue a stream answers from its start, and without this header."""
_FIELD = "argosy_resume"
_RESUME_HEADER = "x-argosy-resume"
_LATEST = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the headers of a request ask for beside the answer."""

    token_ids: bool = False
    resume: bool = False
    """The body says what the client of another engine's stream has."""
    handover: bool = False
    """The stream is to tell what comes of a handover that outlasts its head."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Asked":
        """From headers of a caller whose word counts: a gateway of the fleet."""
        return cls(
            token_ids=headers.get(IDS_HEADER) == "1",
            resume=headers.get(_RESUME_HEADER) == "1",
            handover=headers.get(HANDOVER_HEADER) == "1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the client of a stream has from an earlier engine."""

    token_ids: list[int]
    """The tokens of its text, in their order."""

    closed: bool
    """It has the chunk with the finish reason."""

    created: int
    """Its chunks' `created`, in seconds since 1970."""

    def continued(self, sampling: SamplingParams) -> SamplingParams:
        """The limits that are left; to be called only if the answer is not complete."""
        sent = len(self.token_ids)
        return replace(
            sampling,
            max_tokens=sampling.max_tokens - sent,
            min_tokens=max(0, sampling.min_tokens - sent),
            sent=sent,
        )


def take_sent(body: dict[str, Any], vocab_size: int) -> Sent:
    """Take the gateway's part out of the body. ApiError 400 if it cannot be read."""
    sent = body.pop(_FIELD, None)
    if not isinstance(sent, dict):
        raise bad(_FIELD, 'must be an object, such as {"token_ids": [5, 7], "created": 1700000000}')
    ids, created = sent.get("token_ids"), sent.get("created")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise bad(_FIELD, f"token_ids must be a list of ids from 0 to {vocab_size - 1}")
    if type(created) is not int or not 0 <= created < _LATEST:
        raise bad(_FIELD, "created must be a time in whole seconds")
    if body.get("stream") is not True:
        raise bad(_FIELD, 'only goes with "stream": true')
    return Sent(token_ids=ids, closed=sent.get("closed") is True, created=created)


def replay(
    sent: Sent,
    flow: TextFlow,
    prompt: list[int],
    sampling: SamplingParams,
    *,
    eos: frozenset[int],
    max_model_len: int,
) -> str | None:
    """Bring `flow` to where the first engine's was; the finish reason if the answer is complete.

    `sampling` is the client's. ApiError 400 if tokens follow the end.
    """
    request = NewRequest(request_id="replay", token_ids=prompt, sampling=sampling, arrival_s=0.0)
    sequence = Sequence(request=request, tokens=list(prompt), arrival_index=0)
    reason: str | None = None
    for token_id in sent.token_ids:
        if reason is not None:
            raise bad(_FIELD, "token_ids go on after the end of the answer")
        sequence.tokens.append(token_id)
        ends = sequence.finish_reason(token_id, eos, max_model_len)
        reason = flow.replay(Emission(sequence, token_id, reason=ends))
    return reason


def comment(token_ids: Iterable[int], *, closing: bool = False) -> str:
    """The line before an event's data: the tokens that its text completes."""
    end = " end" if closing else ""
    return f": argosy {','.join(map(str, token_ids))}{end}\n"
