"""A client of streamed completions: it sends requests when they are due and notes when text came.

What a server does wrong is a sentence in the answer, never an exception: a load goes on when a pod
dies. All times are those of the running event loop's clock, in seconds.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import httpx

from argosy_law.sim.flags import UsageError
from argosy_measure.command import ServerError

_KEEP_ALIVE_S = 4.0
"""Less than the 5 s after which uvicorn closes idle connections: a request that is sent on one
while the server closes it would fail."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    prompt: str | tuple[int, ...]
    """Text, or ids of tokens."""
    tokens: int
    """Of the answer."""
    at_s: float = 0.0
    """When it is due, in seconds after the load begins."""
    id: str = ""


@dataclass(slots=True)
class Answer:
    """What the client saw of one request."""

    request: Request
    sent: float
    """When the request was sent."""
    late_s: float = 0.0
    """How late the client itself sent it; `play_open` writes it."""
    events: list[float] = field(default_factory=list)
    """When each event with a token arrived."""
    tokens: int = 0
    """Of the answer: as the server's `usage` counts them, and one for each event without it."""
    prompt_tokens: int | None = None
    """As the server's `usage` counts them; None: it did not say."""
    status: int | None = None
    """Of HTTP; None: there was no response."""
    error: str | None = None
    """Why there is no whole answer, as a sentence; None: there is one."""
    ended: float = 0.0
    """When the answer or the wait for it ended."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token; None: there was none."""
        return self.events[0] - self.sent if self.events else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between tokens after the first; None: there are fewer than two."""
        if self.tokens < 2 or not self.events:
            return None
        return (self.events[-1] - self.events[0]) / (self.tokens - 1)


Send = Callable[[Request], Awaitable[Answer]]
"""Sends a request to one server: `functools.partial(send, http, url, model)`."""
OnAnswer = Callable[[Answer], None]
"""Is called with each answer as it ends."""


def read_url(text: str) -> str:
    """Read the base of a server's addresses. UsageError for what is no URL."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{text}: write a URL such as http://localhost:8000")
    return text.rstrip("/").removesuffix("/v1")


def open_http(timeout_s: float = 300.0, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """Open a client with as many connections as a load needs. Close it after use.

    A request fails when the server sends nothing for `timeout_s`. Proxies of the environment are
    not used, since they would be measured too.
    """
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE_S
    )
    return httpx.AsyncClient(limits=limits, trust_env=False, timeout=timeout_s, headers=headers)


async def find_model(http: httpx.AsyncClient, url: str) -> str:
    """Ask the server for the name of its first model. ServerError if it does not answer."""
    try:
        response = await http.get(f"{url}/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        remedy = "name the model with --model"
        if status in (401, 403):
            remedy = (
                "write --header 'Authorization: Bearer …'. An engine of a ServingDeployment "
                "answers its gateway alone: write the gateway's URL"
            )
        raise ServerError(f"{url}/v1/models answers {status}: {remedy}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(f"{url} does not answer: {_describe(error)}") from None
    except (ValueError, LookupError, TypeError):
        raise ServerError(f"{url}/v1/models lists no model: name it with --model") from None


async def send(
    http: httpx.AsyncClient, url: str, model: str, request: Request, *, ignore_eos: bool = True
) -> Answer:
    """Send one request to `url`/v1/completions and read its stream.

    With `ignore_eos` the answer goes on after the end of sequence until it has all its tokens.
    """
    body = {
        "model": model,
        "prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt),
        "max_tokens": request.tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    clock = asyncio.get_running_loop().time
    answer = Answer(request, clock())
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body) as response:
            answer.status = response.status_code
            if response.status_code == 200:
                await _read(response, answer, clock)
            else:
                answer.error = _shorten(f"{response.status_code}: {await _text(response)}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        whole = f"after {len(answer.events)} events: " if answer.status else ""
        answer.error = f"{whole}{_describe(error)}"
    answer.tokens = answer.tokens or len(answer.events)
    answer.ended = clock()
    return answer


async def _read(response: httpx.Response, answer: Answer, clock: Callable[[], float]) -> None:
    """Note the events of a stream until its end."""
    rest, ended = b"", False
    async for data in response.aiter_bytes():
        now = clock()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            ended = ended or _note(answer, line, now)
    ended = ended or _note(answer, rest, clock())
    if not ended:
        answer.error = f"the stream ended after {len(answer.events)} events, without [DONE]"
    elif not answer.events and answer.error is None:
        answer.error = "the answer has no token"


def _note(answer: Answer, line: bytes, now: float) -> bool:
    """Note the event of one line; whether the stream ends with it."""
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    if data == b"[DONE]":
        return True
    try:
        event = json.loads(data)
        if event.get("error"):
            answer.error = _shorten(f"the stream carried an error: {event['error']}")
            return True
        # An event that says only why the answer ended carries no token.
        if any(one.get("text") or not one.get("finish_reason") for one in event["choices"]):
            answer.events.append(now)
        if usage := event.get("usage"):
            answer.tokens = int(usage["completion_tokens"])
            answer.prompt_tokens = int(usage["prompt_tokens"])
    except (ValueError, LookupError, TypeError, AttributeError):
        answer.error = _shorten(
            f"the stream carried no completion: {data.decode(errors='replace')}"
        )
        return True
    return False


async def _text(response: httpx.Response) -> str:
    return (await response.aread()).decode(errors="replace").strip()


def _describe(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"cannot connect ({error or 'no answer in time'})"
    if isinstance(error, httpx.TimeoutException):
        return "the server sent nothing until the time-out"
    return str(error) or type(error).__name__


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."


async def play_open(
    send: Send, requests: Iterable[Request], on_answer: OnAnswer | None = None
) -> list[Answer]:
    """Send each request when it is due, whatever became of the others; answers as they ended.

    The requests are in the order of their times, and are asked for one by one.
    """
    clock = asyncio.get_running_loop().time
    begin, answers = clock(), list[Answer]()

    async def play(request: Request) -> None:
        answer = await send(request)
        answer.late_s = max(0.0, answer.sent - begin - request.at_s)
        answers.append(answer)
        if on_answer:
            on_answer(answer)

    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(begin + request.at_s - clock())
            group.create_task(play(request))
    return answers


async def play_closed(
    send: Send, requests: Iterable[Request], clients: int, on_answer: OnAnswer | None = None
) -> list[Answer]:
    """Send the requests from this many clients, each of which waits for its answer first."""
    left, answers = iter(requests), list[Answer]()

    async def play() -> None:
        for request in left:
            answer = await send(request)
            answers.append(answer)
            if on_answer:
                on_answer(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(play())
    return answers
