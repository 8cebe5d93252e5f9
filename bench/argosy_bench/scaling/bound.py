"""What holds the replicas of one run of the operator's law above what its load keeps busy.

    python -m argosy_bench.scaling.bound --trace requests.csv --profile llama-70b-h100-tp4 …

Takes the flags of `argosy simulate` and prints one line for each role, in replicas on average from
the end of the warm-up on: what the planned load keeps busy, what is needed for the goal, for queue
and requests in flight, what was asked for after holds and limits, and what was paid for, from
creation to deletion. Then the share of the decisions that each rule bound.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field

from argosy_operator.core.scaling.decision import Decision
from argosy_operator.sim import cli
from argosy_operator.sim.flags import UsageError
from argosy_operator.sim.replay import EPOCH, Run
from argosy_operator.sim.traces import TraceError
from argosy_operator.sim.world.fleet import PoolName


@dataclass(slots=True)
class Bound:
    """One role, on average over the decisions that count."""

    role: PoolName
    busy: float = 0.0
    """Load of the planned rate, in replicas."""
    needed: float = 0.0
    """For the goal, the queue and the requests in flight."""
    asked: float = 0.0
    """After hysteresis, holds, steps and limits."""
    paid: float = 0.0
    """From creation to deletion: starting and draining pods count, too."""
    rules: Counter[str] = field(default_factory=Counter)
    """Share of the decisions that each rule bound."""

    def shown(self) -> str:
        """One line, rules from the most frequent on."""
        rules = " ".join(f"{rule} {share:.0%}" for rule, share in self.rules.most_common())
        return (
            f"{self.role:8} busy {self.busy:6.2f}  needed {self.needed:6.2f}  "
            f"asked {self.asked:6.2f}  paid {self.paid:6.2f}  {rules}"
        )


def bounds(run: Run, warmup_s: float) -> list[Bound]:
    """The roles of a run. ValueError if the law decided nothing after the warm-up."""
    end = run.world.trace.end
    decisions = [d for d in run.decisions if d.active and warmup_s <= d.at - EPOCH <= end]
    if not decisions:
        raise ValueError("the law decided nothing after the warm-up: give a longer trace")
    return [_of_role(run, role, decisions, warmup_s) for role in run.world.roles]


def _of_role(run: Run, role: PoolName, decisions: list[Decision], warmup_s: float) -> Bound:
    count, end, found = len(decisions), run.world.trace.end, Bound(role)
    for decision in decisions:
        target = next(t for t in decision.targets if t.role == role)
        found.busy += decision.numbers.get(f"{role}_load_replicas", 0.0) / count
        found.needed += target.demanded / count
        found.asked += target.replicas / count
        found.rules[target.rule.value] += 1
    found.rules = Counter({rule: n / count for rule, n in found.rules.items()})
    alive = (min(pod.gone_at, end) - max(pod.created_at, warmup_s) for pod in run.world.pods[role])
    found.paid = sum(max(seconds, 0.0) for seconds in alive) / (end - warmup_s)
    return found


def main(argv: list[str]) -> int:
    """Print every role; exit status 2 for flags or a trace that cannot be played."""
    try:
        options = cli.parse(argv)
        run = cli.play(options, cli.trace_of(options), options.best)
        found = bounds(run, options.warmup_s)
    except (UsageError, TraceError, ValueError) as error:
        sys.stderr.write(f"argosy_bench.scaling.bound: {error}\n")
        return 2
    sys.stdout.writelines(f"{bound.shown()}\n" for bound in found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
