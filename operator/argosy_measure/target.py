"""The flags that `argosy bench` and `argosy goodput` share: which server, what is sent, limits."""

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from argosy_law.sim.flags import UsageError
from argosy_measure import client, fleet
from argosy_measure.client import Request, Send, read_url
from argosy_measure.command import read_as, read_header, read_seconds, read_share
from argosy_measure.load import Length, Shape, read_prompts
from argosy_measure.score import Limits


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured."""

    url: str
    model: str
    send: Send
    limits: Limits
    gpus: int
    """0: unknown."""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags of the server, of the shape of requests, and of the limits."""
    of = parser.add_argument_group("the server")
    of.add_argument(
        "url",
        nargs="?",
        type=read_as(read_url),
        metavar="URL",
        help="such as http://localhost:8080",
    )
    of.add_argument(
        "--fleet",
        metavar="NAME",
        help="a ServingDeployment: its limits and GPUs, and without a URL the way to its gateway",
    )
    of.add_argument("-n", "--namespace", metavar="NS", help="of the fleet")
    of.add_argument("--model", help="name of the model (default: the first that it lists)")
    of.add_argument(
        "--header", type=read_as(read_header), action="append", default=[], help="such as a token"
    )
    of.add_argument(
        "--timeout",
        type=read_as(read_seconds),
        default=300.0,
        metavar="TIME",
        help="a request fails when the server sends nothing for so long (default 5m)",
    )
    of = parser.add_argument_group("requests")
    length = read_as(Length.parse)
    of.add_argument(
        "--prompt-tokens",
        type=length,
        default=Length(128),
        metavar="MEAN[:SPREAD]",
        help="always MEAN, or lognormal with this standard deviation (default 128)",
    )
    of.add_argument(
        "--output-tokens",
        type=length,
        default=Length(64),
        metavar="MEAN[:SPREAD]",
        help="of answers, likewise (default 64)",
    )
    of.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSON lines {"prompt": text, "tokens": N}'
    )
    of.add_argument("--seed", type=int, default=0, help="equal seeds send equal requests")
    of.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="answers may end before they have all their tokens",
    )
    of = parser.add_argument_group("limits (default: those of the fleet)")
    of.add_argument("--ttft", type=read_as(read_seconds), metavar="TIME", help="as 200ms")
    of.add_argument("--tpot", type=read_as(read_seconds), metavar="TIME", help="as 50ms")
    of.add_argument(
        "--goal",
        type=read_as(read_share),
        metavar="SHARE",
        help="share of requests that must be within both limits (default 0.9)",
    )


def read_shape(given: Namespace) -> Shape:
    """Make the shape of the requests. UsageError or OSError for a file of prompts."""
    prompts: tuple[Request, ...] = ()
    if given.prompts is not None:
        with given.prompts.open(errors="replace") as lines:
            prompts = read_prompts(str(given.prompts), lines)
    return Shape(given.prompt_tokens, given.output_tokens, prompts, given.seed)


def choose_limits(given: Namespace, known: Limits | None) -> Limits:
    """Take each limit of the flags, else of what is known. UsageError where there is none."""
    ttft_s = given.ttft or (known and known.ttft_s)
    tpot_s = given.tpot or (known and known.tpot_s)
    if not ttft_s or not tpot_s:
        raise UsageError("write both limits, such as --ttft 200ms --tpot 50ms")
    return Limits(ttft_s, tpot_s, given.goal or (known.goal if known else 0.9))


def check_place(given: Namespace) -> None:
    """Raise UsageError unless a server is named, and its limits are or will be known."""
    if given.url is None and given.fleet is None:
        raise UsageError("name a server: its URL, such as http://localhost:8080, or --fleet NAME")
    if not given.fleet:
        choose_limits(given, None)


@contextlib.asynccontextmanager
async def connect(given: Namespace) -> AsyncIterator[Target]:
    """Reach the server, and find its model. UsageError, ServerError."""
    known = fleet.look_up(given.fleet, given.namespace) if given.fleet else fleet.Fleet(None, 0)
    limits = choose_limits(given, known.limits)
    async with contextlib.AsyncExitStack() as stack:
        url = given.url
        if url is None:
            url = await stack.enter_async_context(fleet.forward(given.fleet, given.namespace))
        http = await stack.enter_async_context(client.open_http(given.timeout, dict(given.header)))
        model = given.model or await client.find_model(http, url)
        send = partial(client.send, http, url, model, ignore_eos=not given.stop_at_eos)
        yield Target(url, model, send, limits, known.gpus)
