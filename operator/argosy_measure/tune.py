"""`argosy tune`: find the limits with which an engine serves a workload best, by measuring them.

Argosy's engine changes its limits while it serves (`PUT /limits`), and gets its own back at the
end. Another engine is started anew for each limits with the command of `--restart`.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import httpx
import yaml
from rich.console import Console
from rich.table import Table

from argosy_law.sim.flags import UsageError
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from argosy_measure import about, client, score, workloads
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
    read_seconds,
    read_share,
)
from argosy_measure.limits import (
    MOST_REPEATS,
    Difference,
    Found,
    Limits,
    Outcome,
    Sample,
    compare,
    differ,
    meets,
    search,
)
from argosy_measure.workloads import Workload, WorkloadError

NAMES = {"max_num_seqs": "maxNumSeqs", "max_num_batched_tokens": "maxNumBatchedTokens"}
"""Limit → field of spec.engine."""
POLICIES = ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT")
"""Of Argosy's engine."""
_STOP_S = 60.0
"""After so long, an engine that was told to end is killed."""
_POLL_S = 0.2


class TuneError(Exception):
    """An engine or a flag that cannot be tuned; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent under each limits."""

    workload: Workload
    rate: float
    """Requests per second; infinite: all at once."""
    requests: int
    repeats: int
    limits: score.Limits
    """That answers are to keep; infinite ones are none."""


def judge(answers: Sequence[Answer], limits: score.Limits) -> Sample:
    """Return what the answers of one repeat came to. ServerError if none is whole."""
    found = score.score([score.row_of(answer, 0.0) for answer in answers], limits)
    if found.failed == found.requests:
        raise ServerError(f"no request was answered: {answers[0].error}")
    return Sample(
        found.tokens_per_s,
        found.requests_per_s,
        found.ttft_s.p50 or 0.0,
        found.tpot_s.p50 or 0.0,
        found.attainment,
    )


async def play(send: Send, load: Load) -> Outcome:
    """Send the workload as often as it is repeated. ServerError.

    A repeat has equal times and lengths under all limits. Its prompts are new ones each time, so
    that no prefix cache helps.
    """
    texts, samples = Random(), []  # noqa: S311 (no secret)
    for seed in range(load.repeats):
        trace: Trace = load.workload.requests(load.rate, load.requests, seed)
        requests = [
            Request(about.draw_prompt(texts, prompt), output, at_s)
            for at_s, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True)
        ]
        samples.append(judge(await client.play_open(send, requests), load.limits))
    return tuple(samples)


async def read_limits(http: httpx.AsyncClient, admin: str) -> Limits:
    """Ask Argosy's engine for its limits. ServerError, TuneError."""
    shown = await _call(http, "GET", admin)
    try:
        tokens = shown["max_num_batched_tokens"]
        return Limits(
            int(shown["max_num_seqs"]),
            "auto" if tokens == "auto" else int(tokens),
            str(shown["capacity_policy"]),
        )
    except (LookupError, TypeError, ValueError):
        raise TuneError(f"{admin}/limits shows no limits of Argosy's engine") from None


async def put_limits(http: httpx.AsyncClient, admin: str, limits: Limits) -> None:
    """Have Argosy's engine take the limits. ServerError, TuneError."""
    await _call(http, "PUT", admin, {n: v for n, v in asdict(limits).items() if v})


async def _call(
    http: httpx.AsyncClient, method: str, admin: str, sent: object = None
) -> Mapping[str, Any]:
    try:
        response = await http.request(method, f"{admin}/limits", json=sent)
    except httpx.HTTPError as error:
        raise ServerError(
            f"{admin}/limits does not answer ({error}): write --admin for the admin port of "
            "Argosy's engine, or --restart with the command of another engine"
        ) from None
    if response.status_code in (401, 403):
        raise TuneError(
            f"{admin}/limits answers {response.status_code}: an engine that asks for tokens lets "
            "only its operator change limits; tune one that you start yourself"
        )
    if response.status_code == 404:
        raise TuneError(
            f"{admin} has no /limits, as only Argosy's engine does: write --restart with the "
            "command that starts the engine"
        )
    try:
        found = response.json()
    except ValueError:
        found = None
    if response.status_code != 200 or not isinstance(found, dict):
        raise TuneError(f"{admin}/limits answers {response.status_code}: {response.text[:200]}")
    return found


@contextlib.asynccontextmanager
async def lend_limits(http: httpx.AsyncClient, admin: str) -> AsyncIterator[Limits]:
    """Give the engine its limits back after the block, whatever ends it. ServerError, TuneError."""
    former = await read_limits(http, admin)
    try:
        yield former
    finally:
        try:
            await put_limits(http, admin, former)
        except (ServerError, TuneError) as error:
            sys.stderr.write(f"argosy tune: the limits {former} were not restored: {error}\n")


class Restarts:
    """An engine that is started anew for each limits; a context, which ends it."""

    def __init__(self, command: str, url: str, http: httpx.AsyncClient, most_s: float) -> None:
        """`most_s`: seconds that a start may take."""
        self._command, self._url, self._http, self._most_s = command, url, http, most_s
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "Restarts":
        """Refuse an address where something serves already. TuneError."""
        if await self._is_healthy():
            raise TuneError(f"{self._url} serves already: end it, --restart starts its own")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the engine."""
        await self.stop()

    async def start(self, limits: Limits) -> bool:
        """Start the engine with these limits; whether it serves within its time."""
        await self.stop()
        words = [
            word.replace("{max_num_seqs}", str(limits.max_num_seqs)).replace(
                "{max_num_batched_tokens}", str(limits.max_num_batched_tokens)
            )
            for word in shlex.split(self._command)
        ]
        try:
            # In a group of its own, so that a Ctrl-C and a stop reach it once, with its children.
            self._process = await asyncio.create_subprocess_exec(
                *words, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise TuneError(f"--restart: {words[0]}: {error.strerror}") from None
        clock = asyncio.get_running_loop().time
        ends = clock() + self._most_s
        while clock() < ends and self._process.returncode is None:
            if await self._is_healthy():
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def stop(self) -> None:
        """End the engine that runs, and what it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_S)
                return

    async def _is_healthy(self) -> bool:
        try:
            return (await self._http.get(f"{self._url}/health")).status_code == 200
        except httpx.HTTPError:
            return False


def axes_of(options: argparse.Namespace) -> dict[str, Sequence[int | str]]:
    """Return the values of each limit that are tried."""
    axes: dict[str, Sequence[int | str]] = {
        "max_num_seqs": options.seqs or (16, 32, 64, 128, 256, 512),
        "max_num_batched_tokens": options.tokens or (512, 1024, 2048, 4096, 8192),
    }
    if options.policies:
        axes["capacity_policy"] = POLICIES
    return axes


def write_fragment(found: Found) -> str:
    """Return the fields of a ServingDeployment, as `kubectl patch --type=merge` takes them."""
    engine: dict[str, object] = {
        field: getattr(found.after, limit) for limit, field in NAMES.items()
    }
    if found.after.capacity_policy != found.before.capacity_policy:
        engine["args"] = [f"--capacity-policy={found.after.capacity_policy}"]
    return yaml.safe_dump({"spec": {"engine": engine}}, sort_keys=False)


def describe(found: Found) -> Table:
    """Draw how the engine served before and after."""
    before, after = found.outcomes[found.before], found.outcomes[found.after]
    table = Table(caption=f"before: {_show(found.before)}\nafter: {_show(found.after)}")
    for title in ("", "before", "after", "difference (95 %)"):
        table.add_column(title, justify="right" if title else "left")
    rows: tuple[tuple[str, Callable[[Sample], float], float], ...] = (
        ("tokens/s", lambda one: one.tokens_per_s, 1.0),
        ("requests/s", lambda one: one.requests_per_s, 1.0),
        ("median TTFT, ms", lambda one: one.ttft_s, 1000.0),
        ("median ITL, ms", lambda one: one.itl_s, 1000.0),
    )
    for name, read, unit in rows:
        old, new = ([read(one) for one in outcome] for outcome in (before, after))
        # Answers of one token have no time between tokens.
        compared = found.before != found.after and min(*old, *new) > 0
        shown = _show_difference(differ(new, old)) if compared else ""
        table.add_row(name, f"{unit * mean(old):.4g}", f"{unit * mean(new):.4g}", shown)
    return table


def _show(limits: Limits) -> str:
    parts = [f"{limits.max_num_seqs} sequences", f"{limits.max_num_batched_tokens} tokens"]
    return ", ".join([*parts, *filter(None, [limits.capacity_policy])])


def _show_difference(difference: Difference) -> str:
    if not difference.sure:
        return "none beyond noise"
    return f"{difference.mean:+.0%} ({difference.low:+.0%} to {difference.high:+.0%})"


def conclude(found: Found, goal: float) -> tuple[bool, str]:
    """Return whether there are other limits that meet the goal, and a sentence about it."""
    after = found.outcomes[found.after]
    if not meets(after, goal):
        best = mean(one.attainment for one in after)
        return False, (
            f"No limits surely meet the goal: with {_show(found.after)}, {best:.0%} of the "
            "requests keep TTFT and TPOT. Send less (--rate), measure more (--repeats), or use "
            "more GPUs."
        )
    if found.after == found.before:
        return False, "No limits are better than those that the engine has."
    difference = compare(after, found.outcomes[found.before], goal)
    if difference.sure:
        return True, f"Better than before: {_show(found.after)}."
    return True, f"As good as before within noise, and smaller: {_show(found.after)}."


async def tune(options: argparse.Namespace, note: Callable[[str], None]) -> Found:
    """Search. ServerError, TuneError, WorkloadError."""
    admin = options.admin or about.admin_of(options.url)
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(client.open_http(headers=dict(options.header)))
        restarts = None
        if options.restart:
            start = Limits(options.seqs_before, options.tokens_before)
            restarts = Restarts(options.restart, options.url, http, options.start_timeout)
            await stack.enter_async_context(restarts)
            if not await restarts.start(start):
                raise ServerError(f"the command of --restart did not serve at {options.url}/health")
        else:
            start = await stack.enter_async_context(lend_limits(http, admin))
        server = await about.read_about(http, options.url, admin, options.model)
        most_tokens = min(server.max_model_len or 2**31, server.kv_tokens or 2**31)
        load = Load(
            workloads.read(options.workload, most_tokens),
            options.rate,
            options.requests,
            options.repeats,
            score.Limits(options.ttft, options.tpot, options.goal),
        )
        send = partial(client.send, http, options.url, server.model)
        current = start

        async def measure(limits: Limits) -> Outcome:
            nonlocal current
            if restarts is None:
                await put_limits(http, admin, limits)
            elif limits != current and not await restarts.start(limits):
                note(f"{_show(limits)}: the engine does not start")
                return ()
            current = limits
            # The first steps after a start or a change are slower than those that follow.
            await send(Request(about.draw_prompt(Random(), 32), 8))  # noqa: S311 (no secret)
            outcome = await play(send, load)
            rate = mean(one.tokens_per_s for one in outcome)
            kept = mean(one.attainment for one in outcome)
            note(f"{_show(limits)}: {rate:.0f} tokens/s, {kept:.0%} within the limits")
            return outcome

        return await search(measure, start, axes_of(options), options.goal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="argosy tune",
        description="Find the limits with which an engine serves a workload best.",
        epilog=list_statuses(
            "other limits are written", "no limits are better, or none meet the goal"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about.add_server_flags(parser)
    option, count = parser.add_argument, read_as(read_count)
    option(
        "--workload",
        default="chatbot",
        help="chatbot, code, summarization, mean tokens such as 1000,200, or a CSV file of "
        "requests (default: chatbot)",
    )
    option(
        "--rate",
        type=read_as(read_positive),
        default=float("inf"),
        help="default: all at once",
    )
    option("--requests", type=count, default=200, help="of a repeat (default: 200)")
    option(
        "--repeats",
        type=read_as(_read_repeats),
        default=3,
        help=f"3 to {MOST_REPEATS} (default: 3)",
    )
    option(
        "--ttft",
        type=read_as(read_seconds),
        default=float("inf"),
        help="limit, such as 200ms",
    )
    option("--tpot", type=read_as(read_seconds), default=float("inf"), help="limit, such as 50ms")
    option(
        "--goal",
        type=read_as(read_share),
        default=0.9,
        help="share within both (default: 0.9)",
    )
    option("--seqs", type=read_as(read_counts), metavar="N,N,…", help="default: 16 to 512")
    option("--tokens", type=read_as(read_counts), metavar="N,N,…", help="default: 512 to 8192")
    option("--policies", action="store_true", help="try the capacity policies, too")
    option(
        "--restart",
        metavar="COMMAND",
        help="starts an engine at URL, with {max_num_seqs} and {max_num_batched_tokens} in it",
    )
    option("--start-timeout", type=read_as(read_seconds), default=600.0, help="default: 10m")
    option("--seqs-before", type=count, default=MAX_NUM_SEQS, help="with --restart")
    option("--tokens-before", type=count, default=MAX_NUM_BATCHED_TOKENS, help="with --restart")
    option("--out", type=read_as(read_out), default=Path("tuned.yaml"), metavar="FILE")
    return parser


def _read_repeats(text: str) -> int:
    count = read_count(text)
    if not 3 <= count <= MOST_REPEATS:
        raise UsageError(f"{text}: write 3 to {MOST_REPEATS}, so that noise can be told")
    return count


def main(argv: list[str]) -> int:
    """Entry point of `argosy tune`; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.restart and not all(f"{{{name}}}" in options.restart for name in NAMES):
        parser.error("--restart: write {max_num_seqs} and {max_num_batched_tokens} into it")
    if options.restart and options.policies:
        parser.error("--policies: only Argosy's engine has them, without --restart")
    for flag, values, (least, most) in (
        ("--seqs", options.seqs, (1, 4096)),
        ("--tokens", options.tokens, (16, 1_048_576)),
    ):
        if values and not least <= min(values) <= max(values) <= most:
            parser.error(f"{flag}: a ServingDeployment takes {least} to {most}")
    # What restores the limits runs at a SIGTERM as at a Ctrl-C, also in a job in the background,
    # which a shell has ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    note = partial(Console(stderr=True).print, style="dim", highlight=False, soft_wrap=True)
    try:
        found = asyncio.run(tune(options, note))
    except (TuneError, WorkloadError, ServerError) as error:
        return fail("tune", error)
    except KeyboardInterrupt:
        left = "was ended" if options.restart else "has its former limits again"
        sys.stderr.write(f"argosy tune: interrupted; the engine {left}\n")
        return INTERRUPTED
    Console().print(describe(found))
    better, sentence = conclude(found, options.goal)
    if better:
        options.out.write_text(write_fragment(found))
        sentence = f"{sentence} Wrote {options.out}"
    sys.stdout.write(f"{sentence}\n")
    return MET if better else MISSED
