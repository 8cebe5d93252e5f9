"""`argosy bench`: send a load to a server, and say which share of it was within the limits."""

import asyncio
import itertools
import json
import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from argosy_law.sim.flags import UsageError
from argosy_law.sim.traces import TraceError
from argosy_measure import records, report, target
from argosy_measure.client import Answer, Request, play_closed, play_open
from argosy_measure.command import (
    INTERRUPTED,
    MET,
    MISSED,
    NO_SERVER,
    ServerError,
    fail,
    list_statuses,
    read_as,
    read_count,
    read_out,
    read_positive,
    read_seconds,
)
from argosy_measure.load import draw_open, read_trace
from argosy_measure.score import Limits, Row, Score, Spread, row_of, score
from argosy_measure.watch import Watch, show, write_ms


def parser() -> ArgumentParser:
    """Make the parser of the command line."""
    made = ArgumentParser(
        prog="argosy bench",
        description="Send a load to a server, and say which share of the requests was within the "
        "limits of TTFT and TPOT.",
        epilog=list_statuses("the goal is met", "the goal is missed"),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    target.add_flags(made)
    of = made.add_argument_group("arrivals")
    of.add_argument("--rate", type=read_as(read_positive), help="requests a second")
    of.add_argument(
        "--burstiness",
        type=read_as(read_positive),
        default=1.0,
        help="shape of the gamma distribution of gaps: 1 is Poisson (default), less has bursts",
    )
    of.add_argument("--trace", type=Path, help="CSV file: arrival_s,prompt_tokens,output_tokens")
    of.add_argument(
        "--clients",
        type=read_as(read_count),
        metavar="N",
        help="each sends its next request after its answer",
    )
    of.add_argument(
        "--for",
        dest="for_s",
        type=read_as(read_seconds),
        metavar="TIME",
        help="send for so long (default 1m; a trace is played to its end)",
    )
    of.add_argument("--requests", type=read_as(read_count), metavar="N", help="send at most N")
    of = made.add_argument_group("results")
    of.add_argument(
        "--records",
        type=read_as(read_out),
        metavar="FILE",
        help="a line a request, written as answers come (default argosy-bench-DATE.jsonl)",
    )
    of.add_argument("--json", type=read_as(read_out), metavar="FILE")
    of.add_argument("--report", type=read_as(read_out), metavar="FILE", help="HTML")
    of.add_argument(
        "--read",
        type=Path,
        metavar="FILE",
        help="send nothing, but score a file of --records, guidellm, aiperf or vllm bench serve",
    )
    return made


def main(argv: list[str]) -> int:
    """Entry point of the `argosy bench` command; returns the exit status."""
    given = parser().parse_args(argv)
    try:
        if given.read is not None:
            rows, known = records.read(given.read)
            return conclude(given, rows, target.choose_limits(given, known), argv)
        _check(given)
        return _bench(given, argv)
    except (UsageError, TraceError, records.RecordError, ServerError, OSError) as error:
        return fail("bench", error)


def _check(given: Namespace) -> None:
    """Raise UsageError for flags that contradict each other."""
    target.check_place(given)
    if sum(of is not None for of in (given.rate, given.trace, given.clients)) != 1:
        raise UsageError("name one kind of arrivals: --rate 5, --trace FILE or --clients 8")
    if given.records is not None and given.records.exists():
        raise UsageError(f"--records {given.records} exists: name a file that does not")
    if given.burstiness != 1 and given.rate is None:
        raise UsageError("--burstiness is for --rate: leave it out with --trace and --clients")


def _bench(given: Namespace, argv: list[str]) -> int:
    """Send the load, and conclude what was measured, also after an interruption."""
    rows: list[Row] = []
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = given.records or Path(f"argosy-bench-{stamp}.jsonl")
    found: list[Limits] = []
    interrupted = False
    try:
        asyncio.run(_play(given, path, rows, found))
    except KeyboardInterrupt:
        interrupted = True
    except ExceptionGroup as group:  # of the tasks that send: a full disk
        raise group.exceptions[0] from None
    if interrupted:
        sys.stderr.write("argosy bench: interrupted; requests in flight are not counted\n")
    if not rows:
        path.unlink(missing_ok=True)
        if interrupted:
            return INTERRUPTED
        raise UsageError("no request was due: give a larger --rate or a longer --for")
    status = conclude(given, rows, found[0], argv)
    sys.stdout.write(f"Requests are in {path}; argosy bench --read {path} scores them again.\n")
    return INTERRUPTED if interrupted else status


async def _play(given: Namespace, path: Path, rows: list[Row], found: list[Limits]) -> None:
    requests = _requests(given)
    async with target.connect(given) as to:
        found.append(to.limits)
        clock, watch = asyncio.get_running_loop().time, Watch(to.limits)
        with ExitStack() as stack:
            file = stack.enter_context(path.open("w"))
            records.begin(file, to.limits, url=to.url, model=to.model)
            begin = clock()

            def note(answer: Answer) -> None:
                rows.append(row_of(answer, begin))
                records.append(file, rows[-1])
                watch.note(rows[-1])

            async with show(watch, Console(stderr=True, highlight=False)):
                send = watch.count(to.send)
                if given.clients:
                    until = itertools.takewhile(
                        lambda _: clock() < begin + _seconds(given), requests
                    )
                    await play_closed(send, until, given.clients, note)
                else:
                    await play_open(send, requests, note)


def _seconds(given: Namespace) -> float:
    if given.for_s is None and (given.requests or given.trace):
        return float("inf")
    return float(given.for_s or 60.0)


def _requests(given: Namespace) -> Iterator[Request]:
    """Make the requests. TraceError, UsageError or OSError for files that cannot be used."""
    shape, until_s = target.read_shape(given), _seconds(given)
    if given.trace:
        drawn: Iterator[Request] = iter(read_trace(given.trace, given.seed))
    elif given.rate:
        drawn = draw_open(shape, given.rate, given.burstiness, "bench")
    else:
        drawn = shape.draw("bench")
    due = itertools.takewhile(lambda request: request.at_s <= until_s, drawn)
    return itertools.islice(due, given.requests)


def conclude(given: Namespace, rows: list[Row], limits: Limits, argv: list[str]) -> int:
    """Write table, JSON and report; return the exit status."""
    got = score(rows, limits)
    console = Console(highlight=False)
    console.print(tabulate(got, limits))
    errors = Counter(row.error for row in rows if row.error is not None)
    for error, count in errors.most_common(5):
        console.print(f"{count} failed: {error}", markup=False, soft_wrap=True)
    if got.client_overloaded:
        console.print(
            f"The client itself sent {got.late} requests late: this machine is too slow for this "
            "load. Send a part of it from each of several machines."
        )
    if given.json:
        said = {"limits": {"ttft_s": limits.ttft_s, "tpot_s": limits.tpot_s, "goal": limits.goal}}
        given.json.write_text(json.dumps({**said, **got.figures()}, indent=2) + "\n")
    if given.report:
        command = shlex.join(["argosy", "bench", *argv])
        given.report.write_text(report.page(rows, limits, got, command))
    if got.failed == got.requests and all(row.status is None for row in rows) and not given.read:
        return NO_SERVER
    return MET if got.attainment >= limits.goal else MISSED


def tabulate(got: Score, limits: Limits) -> Table:
    """Make the table of a load's score."""

    def write(of: Spread) -> str:
        return " / ".join(write_ms(value) for value in (of.p50, of.p90, of.p99))

    word = "met" if got.attainment >= limits.goal else "missed"
    table = Table(show_header=False, title=f"goal {limits.goal:g} {word}", title_justify="left")
    interval = f"{got.low:.3f} to {got.high:.3f}"
    for name, value in (
        ("attainment", f"{got.attainment:.3f}  (95 % interval {interval})"),
        ("requests", f"{got.requests}, {got.met} within both limits, {got.failed} failed"),
        ("goodput", f"{got.goodput_per_s:.2f} of {got.requests_per_s:.2f} requests/s"),
        ("answers", f"{got.tokens_per_s:.0f} tokens/s"),
        (f"TTFT, limit {write_ms(limits.ttft_s)}", f"{write(got.ttft_s)}  (p50 / p90 / p99)"),
        (f"TPOT, limit {write_ms(limits.tpot_s)}", f"{write(got.tpot_s)}  (p50 / p90 / p99)"),
    ):
        table.add_row(name, value)
    return table
