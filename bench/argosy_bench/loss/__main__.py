"""`make test-loss`: events of every kind, one after the other, while requests arrive.

    python -m argosy_bench.loss [--events N] [--seed N] [--rate N] [--json FILE]

Starts a one-machine Kubernetes of its own with one fleet of simulated engines, two prefill and two
decode pods and two gateways. The next event begins when the fleet is whole again.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.loss.faults import Faults, may_change_networks
from argosy_bench.loss.fleet import Fleet, NotWholeError, running
from argosy_bench.loss.judge import Happened, Outcome, Seen, Verdict, by_kind, judge
from argosy_bench.loss.leftovers import Leftovers, left
from argosy_bench.loss.schedule import schedule

EVENTS = 1000
_LOSSES_SHOWN = 200
_HOPELESS = 3
"""Events in a row after which the fleet did not become whole: the run ends."""


def figures_of(events: int) -> tuple[Figure, ...]:
    """The table; `events` is how many the run asks for."""
    none = Target("==", 0)
    return (
        Figure("scale_events", target=Target(">=", events), digits=0),
        Figure("events_unrecovered", target=none, digits=0),
        Figure("requests_total", digits=0),
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


class Client:
    """The process that sends requests, and what it has reported."""

    def __init__(self, url: str, model: str, rate: float) -> None:
        words = [sys.executable, "-m", "argosy_bench.loss.client", url, model, str(rate)]
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
def requests_to(url: str, model: str, rate: float) -> Iterator[Client]:
    """A client that sends while the block runs; the block begins when a request has ended."""
    client = Client(url, model, rate)
    try:
        deadline = time.monotonic() + 60
        while not client.ended():
            if time.monotonic() > deadline:
                raise RuntimeError("no request was answered within 60 s")
            time.sleep(0.05)
        yield client
    finally:
        client.kill()


def disturb(fleet: Fleet, client: Client, asked: argparse.Namespace) -> list[Happened]:
    """Carry out the schedule; ends early when the fleet no longer becomes whole."""
    faults, happened = Faults(fleet, client.ended), list[Happened]()
    for event in schedule(asked.seed, asked.events, network=may_change_networks()):
        found = faults.carry_out(event)
        happened.append(found)
        problem = "" if found.recovered else " NOT WHOLE"
        say(
            f"{event.number} {event.name} {found.whole_s - found.began_s:.1f} s{problem} "
            f"{found.detail}; {client.ended()} requests ended"
        )
        if len(happened) >= _HOPELESS and not any(h.recovered for h in happened[-_HOPELESS:]):
            say(f"the fleet did not become whole {_HOPELESS} times in a row: the run ends")
            break
    return happened


def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Put every figure."""
    began_s = time.monotonic()
    with running(say) as (fleet, url), requests_to(url, "loss", asked.rate) as client:
        happened = disturb(fleet, client, asked)
        verdict = judge(client.finish(), happened)
        stuck = stuck_pods(fleet, happened)
        held, by_pod = left(fleet)
    put(figures, happened, verdict, held)
    figures.put("stuck_pods", stuck)
    figures.put("seconds_total", time.monotonic() - began_s)
    figures.notes |= {"seed": asked.seed, "requests_per_s": asked.rate}
    figures.notes["network_faults"] = int(may_change_networks())
    figures.lists["left"] = [{"held": one} for one in by_pod]


def stuck_pods(fleet: Fleet, happened: list[Happened]) -> int:
    """Pods that are not as they should be at the end."""
    try:
        fleet.until_whole(happened[-1].event.replicas)
    except NotWholeError as error:
        return max(1, str(error).count(";"))
    return 0


def put(figures: Figures, happened: list[Happened], verdict: Verdict, held: Leftovers) -> None:
    """What the pure parts found."""
    took = sorted(h.whole_s - h.began_s for h in happened)
    figures.put("scale_events", len(happened))
    figures.put("events_unrecovered", sum(not h.recovered for h in happened))
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


def main() -> int:
    """Run; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make test-loss", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of events (default 1)")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (default 4)")
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    if asked.events < 1:
        parser.error(f"--events {asked.events}: write 1 or more")
    if asked.rate <= 0:
        parser.error(f"--rate {asked.rate:g}: write more than 0")
    figures = Figures(figures_of(asked.events), f"make test-loss LOSS='--events {asked.events}'")
    measure(figures, asked)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
