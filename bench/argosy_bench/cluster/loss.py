"""Events of every kind while requests arrive: what is lost, and what is left at the end.

Starts a one-machine Kubernetes of its own with several fleets side by side, each of two to four
prefill and decode pods and two gateways. One of them computes real, tiny weights, the others are
simulated. Each fleet has a client, a schedule and a thread of its own: its events follow each
other, and those of several fleets overlap. SIGTERM ends the events early; what happened until then
is judged.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from argosy_bench.cluster.faults import Faults, may_change_networks
from argosy_bench.cluster.fleet import Fleet, Leftovers, NotWholeError, Wanted, left, running
from argosy_bench.cluster.judge import Happened, Mark, Outcome, Seen, Verdict, by_kind, judge
from argosy_bench.cluster.requests import ask_of, asks_in
from argosy_bench.cluster.schedule import schedule
from local.figures import Figure, Figures, Target

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
        words = [sys.executable, "-m", "argosy_bench.cluster.client", url, model, str(part.rate)]
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


EVENTS, FLEETS, RATE = 1000, 4, 3.0
_REAL_RATE = 1.0
"""Requests a second to the fleet with real weights, whose tokens take processor time."""
_REAL_SHARE = 0.1
"""Of all events; a pod that loads torch takes 8 s of processor time, a simulated one 1 s."""
_LOSSES_SHOWN = 200


def figures_of(events: int) -> tuple[Figure, ...]:
    """The table; `events` is how many the run asks for."""
    none = Target("==", 0)
    return (
        Figure("scale_events", target=Target(">=", events), digits=0),
        Figure("events_unrecovered", target=none, digits=0),
        Figure("events_at_once_share", digits=2),
        Figure("roles_flipped", digits=0),
        Figure("operators_killed_between_writes", digits=0),
        Figure("requests_total", digits=0),
        Figure("requests_of_real_weights", digits=0),
        Figure("requests_lost", target=none, digits=0),
        Figure("text_mismatches", target=none, digits=0),
        Figure("requests_shed", digits=0),
        Figure("requests_sent_again", digits=0),
        Figure("streams_cut_with_gateway", digits=0),
        Figure("kv_blocks_leaked", target=none, digits=0),
        Figure("leases_left", target=none, digits=0),
        Figure("requests_left", target=none, digits=0),
        Figure("sockets_left", target=none, digits=0),
        Figure("stuck_pods", target=none, digits=0),
        Figure("whole_again_s_p50", "s", digits=1),
        Figure("seconds_total", "s", digits=0),
    )


@contextlib.contextmanager
def real_weights(*, wanted: bool) -> Iterator[tuple[Path, Path] | None]:
    """Folder of the weights, and the file with requests and their answers."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="argosy-loss-weights-") as name:
        Path(name).chmod(0o755)  # engines run as another user
        folder, file = Path(name) / "tiny", Path(name) / "answers.json"
        say("Hugging Face's model answers the requests for real weights")
        words = [sys.executable, "-m", "argosy_bench.cluster.answers", str(folder), str(file)]
        subprocess.run(words, check=True, stdout=sys.stderr)
        yield folder, file


def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Put every figure."""
    figures.declare(figures_of(asked.events))
    began_s = time.monotonic()
    with real_weights(wanted=not asked.simulated) as real:
        weights, answers = real or (None, None)
        last = asked.fleets - 1
        wanted = [Wanted(n, weights if n == last else None) for n in range(asked.fleets)]
        with running(wanted, say) as fleets:
            parts = [
                Part(
                    fleet,
                    min(asked.rate, _REAL_RATE) if fleet.wanted.weights else asked.rate,
                    100 * asked.seed + fleet.wanted.number,
                    _REAL_SHARE if fleet.wanted.weights and asked.fleets > 1 else 1.0,
                    tuple(asked.kinds),
                    answers if fleet.wanted.weights else None,
                )
                for fleet in fleets
            ]
            results = run(parts, asked.events, say)
    put(figures, results)
    real_requests = sum(
        result.verdict.outcomes.total()
        for part, result in zip(parts, results, strict=True)
        if part.answers
    )
    figures.put("requests_of_real_weights", real_requests)
    figures.put("seconds_total", time.monotonic() - began_s)
    figures.notes |= {"seed": asked.seed, "requests_per_s": asked.rate, "fleets": asked.fleets}
    figures.notes["network_faults"] = int(may_change_networks())


def put(figures: Figures, results: list[Result]) -> None:
    """What all fleets together went through."""
    happened = [one for result in results for one in result.happened]
    verdict, held = Verdict(), Leftovers()
    for result in results:
        verdict += result.verdict
        held += result.held
    took = sorted(h.whole_s - h.began_s for h in happened)
    figures.put("scale_events", len(happened))
    figures.put("events_unrecovered", sum(not h.recovered for h in happened))
    figures.put("events_at_once_share", at_once(results))
    figures.put("roles_flipped", sum(Mark.FLIPPED in h.marks for h in happened))
    between = sum(Mark.BETWEEN_WRITES in h.marks for h in happened)
    figures.put("operators_killed_between_writes", between)
    figures.put("stuck_pods", sum(result.stuck_pods for result in results))
    figures.put("requests_total", verdict.outcomes.total())
    figures.put("requests_lost", verdict.outcomes[Outcome.LOST])
    figures.put("text_mismatches", verdict.outcomes[Outcome.MISMATCH])
    figures.put("requests_shed", verdict.outcomes[Outcome.SHED])
    figures.put("requests_sent_again", verdict.sent_again)
    figures.put("streams_cut_with_gateway", verdict.outcomes[Outcome.CUT_WITH_GATEWAY])
    figures.put("kv_blocks_leaked", held.kv_blocks)
    figures.put("leases_left", held.leases)
    figures.put("requests_left", held.requests)
    figures.put("sockets_left", held.sockets)
    figures.put("whole_again_s_p50", took[len(took) // 2])
    figures.lists["events"] = by_kind(happened, verdict.losses)
    figures.lists["left"] = [{"held": one} for result in results for one in result.by_pod]
    figures.lists["unrecovered"] = [
        {"number": h.event.number, "event": h.event.name, "detail": h.detail}
        for h in happened
        if not h.recovered
    ]
    figures.lists["losses"] = [asdict(loss) for loss in verdict.losses[:_LOSSES_SHOWN]]


def say(line: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
