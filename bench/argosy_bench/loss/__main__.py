"""`make test-loss`: events of every kind, while requests arrive.

    python -m argosy_bench.loss [--events N] [--fleets N] [--simulated] [--only KIND…] [--seed N]
                                [--rate N] [--json FILE]

Starts a one-machine Kubernetes of its own with several fleets side by side, each of two to four
prefill and decode pods and two gateways. One of them computes real, tiny weights, the others are
simulated. In each fleet the next event begins when the fleet is whole again. SIGTERM ends the
events early; what happened until then is judged.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.loss.campaign import Part, Result, at_once, run
from argosy_bench.loss.faults.network import may_change_networks
from argosy_bench.loss.fleet import Wanted, running
from argosy_bench.loss.judge import Mark, Outcome, Verdict, by_kind
from argosy_bench.loss.leftovers import Leftovers
from argosy_bench.loss.schedule import NAMES

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
        words = [sys.executable, "-m", "argosy_bench.loss.answers", str(folder), str(file)]
        subprocess.run(words, check=True, stdout=sys.stderr)
        yield folder, file


def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Put every figure."""
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
                    tuple(asked.only),
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


def main() -> int:
    """Run; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make test-loss", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="how many (default 1000)")
    parser.add_argument(
        "--fleets", type=int, default=FLEETS, help=f"side by side (default {FLEETS})"
    )
    parser.add_argument(
        "--simulated", action="store_true", help="no fleet of real weights, and no torch"
    )
    parser.add_argument(
        "--only", nargs="+", default=(), choices=NAMES, help="no other kinds of events"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of events (default 1)")
    parser.add_argument(
        "--rate", type=float, default=RATE, help=f"requests a second and fleet (default {RATE:g})"
    )
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    if asked.events < 1:
        parser.error(f"--events {asked.events}: write 1 or more")
    if asked.fleets < 1:
        parser.error(f"--fleets {asked.fleets}: write 1 or more")
    if asked.rate <= 0:
        parser.error(f"--rate {asked.rate:g}: write more than 0")
    figures = Figures(figures_of(asked.events), f"make test-loss LOSS='--events {asked.events}'")
    measure(figures, asked)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
