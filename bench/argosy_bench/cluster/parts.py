"""What faults, attacks and the edits of a first day cost whole fleets.

loss       events of every kind under load on a one-machine Kubernetes: 55 min (--events 26: 3)
attack     attacks on every port of a fleet of processes: 5 min
first-day  renames, edits and upgrades on a one-machine Kubernetes: 5 min
vllm       a fleet of vLLM that scales on its SLO: 10 min, only with --peer
vllm-apart a fleet of vLLM with prefill and decode apart: 15 min, only with --peer
"""

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from argosy_bench.cluster import attack, first_day, loss, vllm, vllm_apart
from argosy_bench.cluster.attackers import ATTACKS, MOST_S
from argosy_bench.cluster.schedule import NAMES
from local.figures import Figures

Measure = Callable[[Figures, argparse.Namespace], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument_group("loss").add_argument
    add("--events", type=int, default=1000, help="how many (1000)")
    add("--fleets", type=int, default=4, help="side by side (4)")
    add("--simulated", action="store_true", help="no fleet of real weights, and no torch")
    add("--kinds", nargs="+", default=(), choices=NAMES, help="no other kinds of events")
    add("--seed", type=int, default=1, help="of the order of events (1)")
    add("--rate", type=float, default=3.0, help="requests a second and fleet (3)")
    add = parser.add_argument_group("attack").add_argument
    add("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS), help="only these")
    add("--attack-s", type=float, default=10.0, help="of each (10)")
    add("--open", action="store_true", help="engines ask for no proof: shows what is noticed")
    add("--queue", default="deadline", help="of the gateway (deadline)")
    parser.add_argument("--peer", type=Path, help="environment with vLLM's CPU build")


def _measure_loss(figures: Figures, asked: argparse.Namespace) -> None:
    for name in ("events", "fleets", "rate"):
        if getattr(asked, name) <= 0:
            raise SystemExit(f"--{name} {getattr(asked, name):g}: write more than 0")
    loss.measure(figures, asked)


def _measure_attack(figures: Figures, asked: argparse.Namespace) -> None:
    if not 1 <= asked.attack_s <= MOST_S:
        raise SystemExit(f"--attack-s {asked.attack_s:g}: write a number from 1 to {MOST_S:.0f}")
    asyncio.run(attack.measure(figures, asked))


def _with_peer(part: str, measure: Callable[[Path, Figures], None]) -> Measure:
    def run(figures: Figures, asked: argparse.Namespace) -> None:
        if asked.peer is None:
            figures.notes[part] = "not run: name its environment with --peer"
            return
        measure(asked.peer, figures)

    return run


PARTS: dict[str, Measure] = {
    "loss": _measure_loss,
    "attack": _measure_attack,
    "first-day": lambda figures, _: first_day.measure(figures),
    "vllm": _with_peer("vllm", vllm.measure),
    "vllm-apart": _with_peer("vllm-apart", vllm_apart.measure),
}
