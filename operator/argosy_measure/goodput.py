"""`argosy goodput`: the highest rate of requests at which a server still meets its goal."""

import asyncio
import itertools
import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import asdict
from math import inf

from rich.console import Console

from argosy_law.sim.flags import UsageError
from argosy_measure import target
from argosy_measure.bisection import Found, Judge, Probe, search, summarise
from argosy_measure.client import Answer, Request, play_open
from argosy_measure.command import (
    INTERRUPTED,
    MET,
    MISSED,
    ServerError,
    fail,
    list_statuses,
    read_as,
    read_count,
    read_out,
    read_positive,
    read_seconds,
    read_share,
)
from argosy_measure.load import Shape, draw_open
from argosy_measure.score import LATE_SHARE, MOST_LATE, Row, row_of
from argosy_measure.target import Target
from argosy_measure.watch import write_ms

_ALONE = 3
"""Requests that are sent one by one first, for a rate to begin with."""
_BEGIN = 4
"""Times the rate of one client: a server that batches carries several."""
_LEAST_REQUESTS = 120
"""Of a probe: less than 60 that are all within the limits do not show a goal of 0.9."""
_WARMUP_SHARE = 0.2
"""Of a probe: requests that are sent before do not count, since the server is not yet as full."""
_LOOK_S = 0.1


def parser() -> ArgumentParser:
    """Make the parser of the command line."""
    made = ArgumentParser(
        prog="argosy goodput",
        description="Find the highest rate of Poisson arrivals at which enough requests are within "
        "the limits of TTFT and TPOT.",
        epilog=list_statuses("some rate meets the goal", "no rate meets the goal"),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    target.add_flags(made)
    of = made.add_argument_group("search")
    of.add_argument(
        "--start",
        type=read_as(read_positive),
        metavar="RATE",
        help="requests a second to begin with (default: from the time of single requests)",
    )
    of.add_argument(
        "--most",
        type=read_as(read_positive),
        default=inf,
        metavar="RATE",
        help="probe no higher rate",
    )
    of.add_argument(
        "--probe",
        type=read_as(read_seconds),
        default=60.0,
        metavar="TIME",
        help=f"length of a probe whose goal is in reach; at least {_LEAST_REQUESTS} requests "
        "(default 1m)",
    )
    of.add_argument(
        "--precision",
        type=read_as(read_share),
        default=0.05,
        metavar="SHARE",
        help="stop when a rate that meets the goal is this near one that misses it (default 5%%)",
    )
    of.add_argument(
        "--gpus",
        type=read_as(read_count),
        metavar="N",
        help="that serve: the goodput is also printed per GPU (default: those of the fleet)",
    )
    of.add_argument("--json", type=read_as(read_out), metavar="FILE")
    return made


def main(argv: list[str]) -> int:
    """Entry point of the `argosy goodput` command; returns the exit status."""
    given = parser().parse_args(argv)
    probes: list[Probe] = []
    try:
        target.check_place(given)
        found = asyncio.run(_measure(given, probes))
    except (UsageError, ServerError, OSError) as error:
        return fail("goodput", error)
    except KeyboardInterrupt:
        sys.stderr.write("argosy goodput: interrupted; the rates above are what is known\n")
        return INTERRUPTED
    return MET if found.rate else MISSED


async def _measure(given: Namespace, probes: list[Probe]) -> Found:
    shape, console = target.read_shape(given), Console(highlight=False)
    async with target.connect(given) as to:
        gpus = given.gpus or to.gpus
        alone = await _send_alone(to, shape)

        async def probe(rate: float) -> Probe:
            seconds = max(given.probe, _LEAST_REQUESTS / rate)
            got = await run_probe(to, shape, rate, seconds, f"probe {len(probes)}")
            probes.append(got)
            console.print(describe(got), soft_wrap=True)
            if given.json:
                best = max((p.rate for p in probes if p.verdict), default=0.0)
                given.json.write_text(_figures(Found(best, tuple(probes)), to, gpus))
            return got

        console.print(
            f"{to.url}: {to.limits.goal:g} of the requests within TTFT "
            f"{write_ms(to.limits.ttft_s)} and TPOT {write_ms(to.limits.tpot_s)}",
            soft_wrap=True,
        )
        if not any(row.meets(to.limits) for row in alone):
            took = f"TTFT {write_ms(alone[-1].ttft_s)}, TPOT {write_ms(alone[-1].tpot_s)}"
            console.print(f"goodput 0: requests that are sent one by one miss the limits: {took}")
            found = Found(0.0, ())
        else:
            start = given.start or _BEGIN / min(row.ended_s - row.at_s for row in alone)
            found = await search(probe, start, given.precision, given.most)
        if given.json:
            given.json.write_text(_figures(found, to, gpus))
        if not found.probes:
            return found
        per = f", {found.rate / gpus:.3g} per GPU of {gpus}" if gpus else ""
        most = f" and less than {found.high:.3g}" if found.high < inf else ""
        console.print(
            f"goodput {found.rate:.3g} requests/s{per}; at least {found.low:.3g}{most} with 99 % "
            "certainty",
            soft_wrap=True,
        )
        for sentence in summarise(found):
            console.print(sentence, soft_wrap=True)
        return found


async def _send_alone(to: Target, shape: Shape) -> list[Row]:
    """Send some requests one by one, and return the whole answers. ServerError if all fail."""
    rows = []
    for request in itertools.islice(shape.draw("alone"), _ALONE):
        rows.append(row_of(await to.send(request), 0.0))
    whole = [row for row in rows if row.error is None]
    if not whole:
        raise ServerError(f"{to.url} fails every request: {rows[-1].error}")
    return whole


async def run_probe(to: Target, shape: Shape, rate: float, seconds: float, name: str) -> Probe:
    """Send requests at a rate for `seconds`, or until the goal is out of reach.

    The requests of a probe are not independent: a burst, or a queue that grows slowly, decides over
    many of them. So no probe ends because those of its beginning met the limits.

    ServerError if the server cannot be reached any more.
    """
    clock, judge = asyncio.get_running_loop().time, Judge(to.limits, _WARMUP_SHARE * seconds)
    begin, sent, late, lost = clock(), 0, 0, 0
    may_miss = (1 - to.limits.goal) * rate * (1 - _WARMUP_SHARE) * seconds

    async def send(request: Request) -> Answer:
        nonlocal sent
        sent += 1
        judge.note_sent(request, clock() - begin)
        return await to.send(request)

    def note(answer: Answer) -> None:
        nonlocal late, lost
        late += answer.late_s > LATE_SHARE * to.limits.ttft_s
        lost += answer.status is None
        judge.note_ended(row_of(answer, begin))

    drawn = draw_open(shape, rate, 1.0, name)
    due = itertools.takewhile(lambda request: request.at_s <= seconds, drawn)
    playing = asyncio.create_task(play_open(send, due, note))
    try:
        while True:
            await asyncio.wait({playing}, timeout=_LOOK_S)
            now = clock() - begin
            whole = judge.judge(now) and (now > seconds or playing.done())
            got = Probe(rate, to.limits.goal, judge.met, judge.of, now, late > MOST_LATE * sent)
            if whole or (got.verdict is False and judge.of - judge.met > may_miss):
                break
    finally:
        playing.cancel()
        await asyncio.wait({playing})
    if playing.done() and not playing.cancelled() and playing.exception():
        raise playing.exception() or AssertionError
    if sent and lost == sent:
        raise ServerError(f"{to.url} does not answer any more")
    return got


def describe(got: Probe) -> str:
    """Write the result of a probe as a line."""
    low, high = got.interval
    words = {True: "meets the goal", False: "misses the goal", None: "undecided"}
    return (
        f"{got.rate:8.3g} requests/s: {got.attainment:.3f} ({low:.3f} to {high:.3f}) of {got.of} "
        f"in {got.seconds:.0f} s, {words[got.verdict]}{', client late' if got.late else ''}"
    )


def _figures(found: Found, to: Target, gpus: int) -> str:
    high = found.high
    return json.dumps(
        {
            "goodput_per_s": found.rate,
            "goodput_per_s_per_gpu": found.rate / gpus if gpus else None,
            "low_per_s": found.low,
            "high_per_s": high if high < inf else None,
            "gpus": gpus or None,
            **asdict(to.limits),
            "probes": [
                {**asdict(one), "attainment": one.attainment, "meets": one.verdict}
                for one in found.probes
            ],
        },
        indent=2,
    )
