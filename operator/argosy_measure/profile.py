"""`argosy profile`: measure from outside how long the steps of an engine take.

Lone prompts of several lengths give the time of a prefill, from TTFT without the round trip of a
request that computes nothing. Batches of several sizes and contexts give the time of a decode
step, from the times between tokens while the whole batch decodes. The median of some repeats
counts.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import httpx
from rich.console import Console
from rich.table import Table

from argosy_law.estimate.capacity import Machine
from argosy_law.goals import Profile
from argosy_law.sim.world.machine import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Replica
from argosy_measure import about, client
from argosy_measure.about import About
from argosy_measure.client import Answer, Request, Send
from argosy_measure.command import (
    INTERRUPTED,
    MET,
    MISSED,
    ServerError,
    fail,
    list_statuses,
    read_as,
    read_count,
    read_counts,
    read_out,
    read_positive,
)
from argosy_measure.fit import Fit, Row, UndeterminedError, fit, hold_out
from argosy_measure.profiles import (
    KV_BYTES_PER_TOKEN,
    TRANSFER_BYTES_PER_S,
    PodProfile,
    write,
)

PREFILL = ("prefill base", "per prompt token", "per squared prompt token")
DECODE = ("decode base", "per sequence", "per context token")
OPTIONAL = ("per squared prompt token",)
"""Attention over a prompt is too small to see where prompts are short."""
WHAT_TO_MEASURE = {
    "prefill base": "prompts of more lengths: --prompts",
    "per prompt token": "prompts of more lengths, the longest ten times the shortest: --prompts",
    "per squared prompt token": "more lengths of prompts: --prompts",
    "decode base": "batches of more sizes: --batches",
    "per sequence": "batches of more sizes, one of them 1: --batches",
    "per context token": "batches with other contexts, such as 128 and 1024: --contexts",
}
_STEPS = 32
"""Of a whole batch that are measured."""
_SKIPPED = 3
_TRIES = 3
"""Of each prompt in a repeat: they are short, and their overhead varies."""


class MeasureError(Exception):
    """The measurements say too little; the message says what to measure."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What was measured."""

    prefill: list[Row]
    decode: list[Row]
    round_trip_s: float
    """Of a request that computes nothing; the rows are without it."""


def prefill_row(tokens: int, ttft_s: Iterable[float], round_trips_s: Iterable[float]) -> Row:
    """Make the row of a lone prompt. MeasureError if it took no longer than a round trip."""
    seconds = median(ttft_s) - median(round_trips_s)
    if seconds <= 0:
        raise MeasureError(
            f"a prompt of {tokens} tokens took no longer than a request that computes nothing: "
            "write longer --prompts"
        )
    return Row((1.0, float(tokens), float(tokens) ** 2), seconds)


def decode_row(answers: Sequence[Answer]) -> Row | None:
    """Make the row of a batch from the time in which all of it decodes; None if that is short."""
    begin, end = max(a.events[0] for a in answers), min(a.events[-1] for a in answers)
    steps, context = [], 0.0
    for answer in answers:
        # The first steps seem short: the first tokens of a batch come late to a busy client.
        events = [at for at in answer.events if begin <= at <= end][_SKIPPED:]
        # Servers may send several tokens in one event.
        tokens_per_event = (answer.tokens - 1) / max(len(answer.events) - 1, 1)
        if len(events) < _STEPS / 4 or events[-1] <= events[0]:
            return None
        steps.append((events[-1] - events[0]) / (len(events) - 1) / tokens_per_event)
        middle = answer.events.index(events[0]) + (len(events) - 1) / 2
        prompt = answer.prompt_tokens or len(answer.request.prompt)
        context += prompt + 1 + middle * tokens_per_event
    return Row((1.0, float(len(answers)), context), median(steps))


@dataclass(frozen=True, slots=True)
class Points:
    """What is measured."""

    prompts: tuple[int, ...]
    batches: tuple[tuple[int, int], ...]
    """Sequences, and tokens of the prompt of each."""
    repeats: int
    most_s: float
    """After so long no further repeat begins."""


def choose_points(options: argparse.Namespace, server: About) -> Points:
    """Leave out what the engine has no room for, unless the user asked for it."""
    step = server.step_tokens or MAX_NUM_BATCHED_TOKENS
    longest = server.max_model_len or step
    prompts = options.prompts or tuple(
        n for n in (64, 128, 256, 512, 1024, 1536, 2000) if n <= min(step, longest - 1)
    )
    batches = [(n, c) for c in options.contexts for n in options.batches]
    room = server.kv_tokens or options.kv_tokens or float("inf")
    fitting = tuple(
        (n, c)
        for n, c in batches
        if n <= (server.max_num_seqs or n)
        and c + _answer_tokens(n, c, step) <= (server.max_model_len or float("inf"))
        and n * (c + _answer_tokens(n, c, step)) <= 0.9 * room
    )
    return Points(prompts, fitting, options.repeats, 60 * options.minutes)


def _answer_tokens(sequences: int, context: int, step_tokens: int) -> int:
    """Return how long answers must be: the first go on while the last prompts are computed."""
    return _STEPS + _SKIPPED + 8 + sequences // 2 + 2 * (sequences * context // step_tokens)


@dataclass(frozen=True, slots=True)
class Server:
    """How the engine is asked."""

    send: Send
    refuse: Callable[[Request], Awaitable[float]]
    """Has it refuse a request; the seconds of that round trip."""
    step_tokens: int


async def measure(server: Server, points: Points, note: Callable[[str], None]) -> Rows:
    """Measure all points once, and again while there is time. ServerError, MeasureError."""
    random, clock = Random(), asyncio.get_running_loop().time  # noqa: S311 (no secret)
    prompts: dict[int, tuple[list[float], list[float]]] = {n: ([], []) for n in points.prompts}
    batches: dict[tuple[int, int], list[Row]] = {batch: [] for batch in points.batches}
    # The same prompts in each repeat: where a prefix cache helps, batches begin sooner.
    texts = {
        (n, c): [
            Request(about.draw_prompt(random, c), _answer_tokens(n, c, server.step_tokens))
            for _ in range(n)
        ]
        for n, c in points.batches
    }
    _check(await server.send(Request(about.draw_prompt(random, 32), 8)))
    began = clock()
    for repeat in range(points.repeats):
        for tokens, (ttft_s, round_trips_s) in prompts.items():
            if repeat and clock() - began > points.most_s:
                break
            for _ in range(_TRIES):
                request = Request(about.draw_prompt(random, tokens), 1)
                round_trips_s.append(await server.refuse(request))
                answer = _check(await server.send(request))
                ttft_s.append(answer.events[0] - answer.sent)
            note(f"prompt of {tokens} tokens: {1000 * median(ttft_s):.1f} ms to the first token")
        for batch, rows in batches.items():
            if repeat and clock() - began > points.most_s:
                break
            rows.append(await _measure_batch(server.send, texts[batch]))
            note(f"batch of {batch[0]} on {batch[1]} tokens: {1000 * rows[-1].seconds:.2f} ms")
    return Rows(
        [prefill_row(tokens, *found) for tokens, found in prompts.items()],
        [_median_row(rows) for rows in batches.values()],
        median(trip for _, trips in prompts.values() for trip in trips),
    )


async def _measure_batch(send: Send, requests: Sequence[Request]) -> Row:
    """Measure one batch, with longer answers where it did not decode together for long enough."""
    for longer in (1, 2, 4):
        asked = [replace(request, tokens=longer * request.tokens) for request in requests]
        answers = await client.play_closed(send, asked, len(asked))
        if row := decode_row([_check(answer) for answer in answers]):
            return row
    raise MeasureError(
        f"a batch of {len(requests)} was never decoded together: write smaller --batches, at most "
        "as many sequences as the engine computes in a step"
    )


def _median_row(rows: list[Row]) -> Row:
    return sorted(rows, key=lambda row: row.seconds)[(len(rows) - 1) // 2]


def _check(answer: Answer) -> Answer:
    if answer.error is None:
        return answer
    tokens = len(answer.request.prompt)
    said = f"a prompt of {tokens} tokens and {answer.request.tokens} to generate: {answer.error}"
    if answer.status is not None and 400 <= answer.status < 500:
        raise MeasureError(f"{said}. Write smaller --prompts, --contexts or --batches")
    raise ServerError(said)


async def time_refusal(http: httpx.AsyncClient, url: str, request: Request) -> float:
    """Send a request that every engine refuses and none computes. ServerError."""
    clock = asyncio.get_running_loop().time
    began = clock()
    # SGLang takes 0 tokens, but no negative temperature.
    body = {"prompt": request.prompt, "max_tokens": 0, "temperature": -1}
    try:
        response = await http.post(f"{url}/v1/completions", json=body)
    except httpx.HTTPError as error:
        raise ServerError(f"{url} does not answer: {error}") from None
    if response.status_code < 400:
        raise ServerError(f"{url} accepts a temperature of -1: its round trip cannot be measured")
    return clock() - began


def fit_steps(rows: Rows) -> tuple[Fit, Fit]:
    """Fit prefills and decode steps. MeasureError says what else to measure."""
    try:
        found = fit(rows.prefill, PREFILL, OPTIONAL), fit(rows.decode, DECODE)
    except UndeterminedError as error:
        raise MeasureError(f"{error}: measure {WHAT_TO_MEASURE[error.constant]}") from None
    for name, constant in (
        ("per prompt token", found[0].constants[1]),
        ("decode base", found[1].constants[0]),
    ):
        if not constant:
            raise MeasureError(f"{name} came out as 0: measure {WHAT_TO_MEASURE[name]}")
    return found


def warn(found: tuple[Fit, Fit]) -> list[str]:
    """Name the constants that are hardly known, each with what to measure."""
    return [
        f"{name} is hardly known: measure with more --repeats, or {WHAT_TO_MEASURE[name]}"
        for names, of in zip((PREFILL, DECODE), found, strict=True)
        for name, constant, error in zip(names, of.constants, of.errors, strict=True)
        if error > constant / 2
    ]


def describe(rows: Rows, found: tuple[Fit, Fit], misses: tuple[list[float], list[float]]) -> Table:
    """Draw the constants with their errors, and how well they predict."""
    table = Table(title="What a step costs, in milliseconds")
    for name in ("constant", "ms", "standard error"):
        table.add_column(name, justify="left" if name == "constant" else "right")
    for names, of in zip((PREFILL, DECODE), found, strict=True):
        for name, constant, error in zip(names, of.constants, of.errors, strict=True):
            shown = f"{error * 1000:.3g} ({error / constant:.1%})" if constant else "not seen"
            table.add_row(name, f"{constant * 1000:.4g}", shown)
    points = (len(rows.prefill), len(rows.decode))
    parts = [
        f"{name}: {count} points, each predicted by the others to {median(miss):.1%} "
        f"(the worst to {max(miss):.1%})"
        for name, count, miss in zip(("prefill", "decode"), points, misses, strict=True)
        if miss
    ]
    table.caption = "\n".join([*parts, f"round trip: {rows.round_trip_s * 1000:.1f} ms"])
    return table


def pod_of(
    options: argparse.Namespace,
    server: About,
    found: tuple[Fit, Fit],
    misses: tuple[list[float], list[float]],
) -> PodProfile:
    """Make the pod that `argosy plan` reads. MeasureError if its KV capacity is not known."""
    kv_tokens = options.kv_tokens or server.kv_tokens
    if kv_tokens is None:
        raise MeasureError(
            "the engine's metrics do not say how much KV it holds: write --kv-tokens"
        )
    (base, token, squared), (decode, sequence, context) = (of.constants for of in found)
    profile = Profile(base, token, decode, sequence, context, squared, float(kv_tokens))
    return PodProfile(
        options.name,
        Replica(
            profile,
            Machine(options.gpus, KV_BYTES_PER_TOKEN, TRANSFER_BYTES_PER_S),
            options.max_num_seqs or server.max_num_seqs or MAX_NUM_SEQS,
            options.max_num_batched_tokens or server.step_tokens or MAX_NUM_BATCHED_TOKENS,
        ),
        options.cost_per_hour,
        {
            name: median(miss)
            for name, miss in zip(("prefill", "decode"), misses, strict=True)
            if miss
        },
    )


async def run(options: argparse.Namespace, console: Console) -> None:
    """Measure, print, write. ServerError, MeasureError."""
    admin = options.admin or about.admin_of(options.url)
    async with client.open_http(headers=dict(options.header)) as http:
        server = await about.read_about(http, options.url, admin, options.model)
        if not (server.kv_tokens or options.kv_tokens):
            raise MeasureError(
                f"neither {options.url}/metrics nor {admin}/metrics says how many tokens of KV the "
                "engine holds: write --kv-tokens, or --admin for the admin port of Argosy's engine"
            )
        points = choose_points(options, server)
        engine = Server(
            partial(client.send, http, options.url, server.model),
            partial(time_refusal, http, options.url),
            server.step_tokens or MAX_NUM_BATCHED_TOKENS,
        )
        note = partial(console.print, style="dim", highlight=False, soft_wrap=True)
        rows = await measure(engine, points, note)
    found = fit_steps(rows)
    misses = hold_out(rows.prefill, PREFILL, OPTIONAL), hold_out(rows.decode, DECODE)
    pod = pod_of(options, server, found, misses)
    options.out.write_text(write([pod]))
    Console().print(describe(rows, found, misses))
    for sentence in warn(found):
        sys.stderr.write(f"{sentence}\n")
    replica = pod.replica
    sys.stdout.write(
        f"{int(replica.profile.kv_tokens)} tokens of KV; a step has at most "
        f"{replica.max_num_seqs} sequences and {replica.max_num_batched_tokens} tokens. "
        f"Wrote {options.out}\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="argosy profile",
        description="Measure how long the steps of an engine take, and write its profile.",
        epilog=list_statuses(
            "the profile is written", "the measurements do not determine a constant"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about.add_server_flags(parser)
    option = parser.add_argument
    counts, count = read_as(read_counts), read_as(read_count)
    option("--prompts", type=counts, metavar="N,N,…", help="lengths (default: 64 to 2000)")
    option("--batches", type=counts, default=(1, 8, 32, 64), metavar="N,N,…", help="sequences")
    option("--contexts", type=counts, default=(128, 1024), metavar="N,N,…", help="of sequences")
    option("--repeats", type=count, default=3, help="of each point (default: 3)")
    option(
        "--minutes",
        type=read_as(read_positive),
        default=4.0,
        help="no repeat begins after these (default: 4)",
    )
    option("--out", type=read_as(read_out), default=Path("profile.yaml"), metavar="FILE")
    option("--name", default="measured", help="of the GPU type")
    option("--gpus", type=count, default=1, help="of the pod (default: 1)")
    option("--cost-per-hour", type=read_as(read_positive), help="of one GPU")
    option("--kv-tokens", type=count, help="default: what the engine's metrics say")
    option("--max-num-seqs", type=count, help="default: what the engine says, or 256")
    option("--max-num-batched-tokens", type=count, help="default: what the engine says, or 2048")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of `argosy profile`; returns the exit status."""
    options = _parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        asyncio.run(run(options, console))
    except (MeasureError, ServerError) as error:
        status = fail("profile", error)
        return MISSED if isinstance(error, MeasureError) else status
    except KeyboardInterrupt:
        sys.stderr.write("argosy profile: interrupted, nothing was written\n")
        return INTERRUPTED
    return MET
