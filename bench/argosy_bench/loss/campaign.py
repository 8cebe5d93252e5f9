"""All fleets of a run: each has a client, a schedule and a thread of its own.

The events of one fleet follow each other; those of several fleets overlap, on one cluster with one
operator. A fleet begins its next event while fewer than the asked number have begun in all.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from argosy_bench.loss.faults.events import Faults
from argosy_bench.loss.faults.network import may_change_networks
from argosy_bench.loss.fleet import Fleet, NotWholeError
from argosy_bench.loss.judge import Happened, Seen, Verdict, judge
from argosy_bench.loss.leftovers import Leftovers, left
from argosy_bench.loss.requests import ask_of, asks_in
from argosy_bench.loss.schedule import schedule

_HOPELESS = 3
"""Events in a row after which a fleet did not become whole: it gets no more."""


_LOOK_EVERY_S = 0.25


class Turns:
    """How many events may still begin, for all fleets together."""

    def __init__(self, events: int) -> None:
        self._left, self._begun = events, 0
        self._lock = threading.RLock()  # a signal stops them in the midst of anything

    def take(self, own: int = 0, share: float = 1.0) -> bool | None:
        """Whether a fleet that has had `own` events may begin one more; None: not yet, because that
        would be more than its share of all."""
        with self._lock:
            if self._left <= 0:
                return False
            if own > share * self._begun:
                return None
            self._left -= 1
            self._begun += 1
            return True

    def stop(self) -> None:
        """None may begin any more."""
        with self._lock:
            self._left = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one fleet is to go through."""

    fleet: Fleet
    rate: float
    """Requests a second."""
    seed: int
    share: float = 1.0
    """Of all events, which this fleet has at most."""
    only: tuple[str, ...] = ()
    """Kinds of events; empty: all."""
    answers: Path | None = None
    """The requests for real weights; None: those of simulated engines."""

    @property
    def name(self) -> str:
        """As progress and losses name the fleet."""
        return f"fleet {self.fleet.wanted.number}"


@dataclass(frozen=True, slots=True)
class Result:
    """What one fleet went through."""

    happened: list[Happened]
    verdict: Verdict
    stuck_pods: int
    held: Leftovers
    by_pod: list[str]
    """What is held, by pod."""


class Client:
    """The process that sends requests, and what it has reported."""

    def __init__(self, url: str, model: str, part: Part) -> None:
        words = [sys.executable, "-m", "argosy_bench.loss.client", url, model, str(part.rate)]
        words += [str(part.answers)] if part.answers else []
        self.seen: list[Seen] = []
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            self.seen.append(Seen(**fields | {"unanswered_s": tuple(fields["unanswered_s"])}))

    def ended(self) -> int:
        """Requests that have ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the client ended with exit status {self._process.returncode}")
        return len(self.seen)

    def finish(self) -> list[Seen]:
        """Send no more, and return all answers when the last one has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.close()
        self._process.wait(timeout=300)
        self._reader.join()
        return self.seen

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def requests_to(url: str, model: str, part: Part) -> Iterator[Client]:
    """A client that sends while the block runs; the block begins when a request has ended."""
    client = Client(url, model, part)
    try:
        deadline = time.monotonic() + 60
        while not client.ended():
            if time.monotonic() > deadline:
                raise RuntimeError("no request was answered within 60 s")
            time.sleep(0.05)
        yield client
    finally:
        client.kill()


Say = Callable[[str], None]


def run(parts: list[Part], events: int, say: Say) -> list[Result]:
    """Carry out so many events. If one fleet's thread fails, the others begin no more. After
    SIGTERM none begins either, and what happened until then is the result."""
    turns, url_of = Turns(events), [part.fleet.create() for part in parts]
    signal.signal(signal.SIGTERM, lambda *_: turns.stop())
    with ThreadPoolExecutor(len(parts)) as pool:
        going = [
            pool.submit(_go_through, part, url, turns, events, say)
            for part, url in zip(parts, url_of, strict=True)
        ]
        return [one.result() for one in going]


def _go_through(part: Part, url: str, turns: Turns, events: int, say: Say) -> Result:
    try:
        with requests_to(url, "loss", part) as client:
            happened = _disturb(part, client, turns, events, say)
            seen = client.finish()
    except BaseException:
        turns.stop()
        raise
    asks = asks_in(part.answers) if part.answers else ask_of
    verdict = judge(seen, happened, asks, part.name)
    stuck = stuck_pods(part.fleet, happened)
    held, by_pod = left(part.fleet)
    return Result(happened, verdict, stuck, held, [f"{part.name} {one}" for one in by_pod])


def _disturb(part: Part, client: Client, turns: Turns, events: int, say: Say) -> list[Happened]:
    """One event after the other; ends early when the fleet no longer becomes whole."""
    faults, happened = Faults(part.fleet, client.ended), list[Happened]()
    network = may_change_networks()
    for event in schedule(part.seed, events, network=network, only=part.only):
        while (may := turns.take(event.number, part.share)) is None:
            time.sleep(_LOOK_EVERY_S)
        if not may:
            break
        found = faults.carry_out(event)
        happened.append(found)
        problem = "" if found.recovered else " NOT WHOLE"
        say(
            f"{part.name} {event.number} {event.name} {found.whole_s - found.began_s:.1f} s"
            f"{problem} {found.detail}; {client.ended()} requests ended"
        )
        if len(happened) >= _HOPELESS and not any(h.recovered for h in happened[-_HOPELESS:]):
            say(f"{part.name} did not become whole {_HOPELESS} times in a row: its events end")
            break
    return happened


def stuck_pods(fleet: Fleet, happened: list[Happened]) -> int:
    """Pods that are not as they should be at the end."""
    if not happened:
        return 0
    try:
        fleet.until_whole(happened[-1].event.replicas)
    except NotWholeError as error:
        return max(1, str(error).count(";"))
    return 0


def at_once(results: list[Result]) -> float:
    """Seconds in which events of two or more fleets overlapped, as a share of all seconds with an
    event."""
    edges = sorted(
        edge
        for result in results
        for one in result.happened
        for edge in ((one.began_s, 1), (one.whole_s, -1))
    )
    some_s = several_s = 0.0
    going = 0
    for (now_s, change), (next_s, _) in pairwise(edges):
        going += change
        some_s += (going >= 1) * (next_s - now_s)
        several_s += (going >= 2) * (next_s - now_s)
    return several_s / some_s if some_s else 0.0
