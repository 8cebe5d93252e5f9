"""`argosy plan`: together or apart, and how many pods of which type, for an SLO and a workload.

`--rate R`: the fewest GPUs that meet the SLO at R requests per second (the lowest price, where the
profiles have prices). `--gpus N`: the highest rate with N GPUs. Answers are predictions: each fleet
is played by the simulator with as many seeds as `--seeds` says.

Exit status 0: there is a plan. 1: no fleet meets the goal; what binds is printed, and what to
change. 2: a flag, the profile or the workload is wrong; the message says what to write.
"""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from argosy_law.goals import SLO
from argosy_law.sim.flags import UsageError
from argosy_measure import profiles, workloads
from argosy_measure.candidates import Option, cheapest, shapes, strongest
from argosy_measure.command import (
    MET,
    MISSED,
    fail,
    read_as,
    read_count,
    read_out,
    read_positive,
    read_seconds,
    read_share,
)
from argosy_measure.predict import LEAST_RATE, Alone, Fleet, Predictor, Types
from argosy_measure.profiles import PodProfile, ProfileError
from argosy_measure.workloads import Workload, WorkloadError

SEEDS = 3
MOST_RATE = 10_000.0
"""Requests per second; a play of more takes minutes."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, checked."""

    pods: list[PodProfile]
    slo: SLO
    workload: Workload
    rate: float | None
    """Requests per second; None: `gpus` is given."""
    gpus: int | None
    seeds: int = SEEDS


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: fleets that meet the goal, the best first; and what requests attain alone."""

    options: list[Option]
    alone: dict[Types, Alone]
    """Of each shape, where there is no option."""


def main(argv: list[str]) -> int:
    """Entry point of the `argosy plan` command; returns the exit status."""
    begun = time.monotonic()
    try:
        given = parser().parse_args(argv)
        question = parse(given)
        plan = answer(question)
        if given.json:
            text = json.dumps(as_json(question, plan, time.monotonic() - begun), indent=2)
            given.json.write_text(text + "\n")
    except (UsageError, ProfileError, WorkloadError, OSError) as error:
        return fail("plan", error)
    if not plan.options:
        sys.stderr.write(f"argosy plan: {unmet(question, plan)}\n")
        return MISSED
    if given.fragment:
        sys.stdout.write(fragment(plan.options[0].fleet, question.slo))
        return MET
    wide = None if sys.stdout.isatty() else 140
    console = Console(highlight=False, width=wide)
    console.print(_table(question, plan))
    console.print(_summary(question, plan), soft_wrap=True)
    return MET


def answer(question: Question) -> Plan:
    """Search for the fleets. UsageError if not one fits into the GPUs."""
    predictor = Predictor(question.slo, question.workload, question.seeds)
    every = shapes(question.pods)
    if question.gpus is not None:
        least = min(sum(pod.gpus for pod in types) for types in every)
        if question.gpus < least:
            raise UsageError(f"--gpus {question.gpus}: a pod takes {least}; write at least that")
        every = [of for of in every if sum(pod.gpus for pod in of) <= question.gpus]
    alone = {types: predictor.alone(types) for types in every}
    able = [types for types in every if alone[types].attainment >= question.slo.attainment]
    options: list[Option] = []
    if able and question.rate is not None:
        options = cheapest(able, predictor, question.rate)
    elif able and question.gpus is not None:
        options = strongest(able, predictor, question.gpus)
    return Plan(options, alone)


# --- what is printed ----------------------------------------------------------------------------


def describe(fleet: Fleet) -> str:
    """Write a fleet, such as `2 prefill + 1 decode of h100`."""
    roles = " + ".join(f"{n} {role}" for n, role in zip(fleet.replicas, fleet.roles, strict=True))
    return f"{roles} of {' and '.join(dict.fromkeys(pod.name for pod in fleet.types))}"


def _table(question: Question, plan: Plan) -> Table:
    at = "" if question.rate is None else f" at {question.rate:g}/s"
    priced = any(option.fleet.price is not None for option in plan.options)
    prices = ["price/h"] if priced else []
    table = Table("fleet", "GPUs", *prices, f"attainment{at}", "goodput, 1/s", "a GPU",
                  "binds first", box=box.SIMPLE)  # fmt: skip
    for option in plan.options:
        fleet, met, most = option.fleet, option.attainment, option.goodput
        table.add_row(
            describe(fleet),
            str(fleet.gpus),
            *(["unknown" if fleet.price is None else f"{fleet.price:.2f}"] if priced else []),
            f"{met.median:.1%} ({met.low:.1%} to {met.high:.1%})",
            f"{most.median:.3g} ({most.low:.3g} to {most.high:.3g})",
            f"{most.median / fleet.gpus:.3g}",
            str(option.binding),
        )
    return table


def _summary(question: Question, plan: Plan) -> str:
    best, *others = plan.options
    if question.rate is None:
        why = f"the highest rate with {question.gpus} GPUs"
    else:
        what = "fewest GPUs" if best.fleet.price is None else "lowest price"
        why = f"the {what} at {question.rate:g} requests per second"
    resource = best.binding.resource
    text = f"{describe(best.fleet)}: {why}. Above its goodput it misses {best.binding.limit} first"
    text += f"; to serve more, {resource.advice}, or add pods." if resource else "; add pods."
    if others:
        text += f" Runner-up: {describe(others[0].fleet)}."
    return f"{text} Medians of {question.seeds} seeds, the lowest and the highest."


def unmet(question: Question, plan: Plan) -> str:
    """Say what binds where no fleet meets the goal, and what to change."""
    slo = question.slo
    types, best = max(plan.alone.items(), key=lambda item: item[1].attainment)
    where = describe(Fleet(types, (1,) * len(types)))
    if best.attainment >= slo.attainment:
        return (
            f"no fleet meets {slo.attainment:.1%} at this load, up to 1000 replicas of a role: "
            f"lower --rate, or {_advice(best)}"
        )
    return (
        f"no fleet meets {slo.attainment:.1%}: even alone, {best.attainment:.1%} of the requests "
        f"do ({where}). {best.binding} binds. {slo.attainment:.0%} of them have "
        f"TTFT of at most {1000 * best.ttft_s:.0f} ms and TPOT of at most "
        f"{1000 * best.tpot_s:.1f} ms: allow more than that, or {_advice(best)}"
    )


def _advice(alone: Alone) -> str:
    resource = alone.binding.resource
    return resource.advice if resource else "take faster pods"


def as_json(question: Question, plan: Plan, wall_s: float) -> dict[str, Any]:
    """Return the answer as `--json` writes it."""

    return {
        "slo": asdict(question.slo),
        "workload": {"prompt": question.workload.prompt, "output": question.workload.output},
        "rate": question.rate,
        "gpus": question.gpus,
        "seeds": question.seeds,
        "options": [
            {
                "mode": mode_of(option.fleet),
                "replicas": dict(zip(option.fleet.roles, option.fleet.replicas, strict=True)),
                "types": [pod.name for pod in option.fleet.types],
                "gpus": option.fleet.gpus,
                "price_per_hour": option.fleet.price,
                "attainment": asdict(option.attainment),
                "goodput": asdict(option.goodput),
                "limit": option.binding.limit,
                "binds": option.binding.resource.name if option.binding.resource else None,
            }
            for option in plan.options
        ],
        "unmet": None if plan.options else unmet(question, plan),
        "wall_s": wall_s,
    }


def mode_of(fleet: Fleet) -> str:
    """Return its `spec.mode`."""
    return "colocated" if len(fleet.types) == 1 else "disaggregated"


def fragment(fleet: Fleet, slo: SLO) -> str:
    """Return the part of a ServingDeployment that this fleet is, as YAML.

    The replicas of the plan are the least ones; the law may double them.
    """
    priced = all(pod.price for pod in fleet.types)
    roles: dict[str, object] = {}
    for role, pod, n in zip(fleet.roles, fleet.types, fleet.replicas, strict=True):
        of: dict[str, object] = {
            "replicas": {"min": n, "max": min(2 * n, 1000)},
            "resources": {"gpu": pod.gpus},
        }
        if pod.gpus > 1:
            of["parallelism"] = {"tensor": pod.gpus}
        if priced:
            of["gpuTypes"] = [pod.name]
        roles[role] = of
    spec: dict[str, object] = {
        "mode": mode_of(fleet),
        "roles": roles,
        "slo": {
            "ttft": {"target": f"{round(slo.ttft_s * 1000)}ms"},
            "tpot": {"target": f"{round(slo.tpot_s * 1000)}ms"},
            "attainment": f"{slo.attainment * 100:g}%",
        },
    }
    if priced:
        types = dict.fromkeys(fleet.types)
        spec["gpuTypes"] = yaml.safe_load(profiles.write(list(types)))["gpuTypes"]
    return yaml.safe_dump({"spec": spec}, sort_keys=False)


# --- the command line ---------------------------------------------------------------------------


def parser() -> ArgumentParser:
    """Make the parser of the command line."""
    made = ArgumentParser(
        prog="argosy plan",
        description="Say which fleet meets an SLO: prefill and decode together or apart, how many "
        "pods of which type, and what binds.",
        epilog="exit status: 0 there is a plan, 1 no fleet meets the goal, 2 wrong input",
        allow_abbrev=False,
    )
    add, seconds = made.add_argument, read_as(read_seconds)
    add(
        "--profile",
        metavar="FILE",
        action="append",
        required=True,
        help="file of argosy profile, or a preset such as llama-70b-h100-tp4; several are compared",
    )
    add(
        "--workload",
        metavar="WHAT",
        required=True,
        help=f"{', '.join(workloads.WORKLOADS)}; mean "
        f"tokens PROMPT,ANSWER or PROMPT,ANSWER,SPREAD (default {workloads.SPREAD}); or a CSV file "
        "whose lengths are drawn",
    )
    add("--ttft", metavar="TIME", type=seconds, help="as 200ms (default: a named workload's)")
    add("--tpot", metavar="TIME", type=seconds, help="as 50ms (likewise)")
    add(
        "--goal",
        metavar="SHARE",
        type=read_as(read_share),
        default=0.9,
        help="share of requests that should be within both limits (default 0.9)",
    )
    load = made.add_mutually_exclusive_group(required=True)
    load.add_argument(
        "--rate",
        type=read_as(read_positive),
        metavar="RATE",
        help="find the fewest GPUs for so many requests a second",
    )
    load.add_argument(
        "--gpus",
        type=read_as(read_count),
        metavar="N",
        help="find the highest rate with so many GPUs",
    )
    add(
        "--seeds",
        metavar="N",
        type=read_as(read_count),
        default=SEEDS,
        help=f"plays of each fleet (default {SEEDS})",
    )
    add("--json", metavar="FILE", type=read_as(read_out), help="where the answer goes, too")
    add(
        "--fragment",
        action="store_true",
        help="print the best fleet as a part of a ServingDeployment",
    )
    return made  # fmt: skip


def parse(given: Namespace) -> Question:
    """Return the question. UsageError, ProfileError or WorkloadError for what cannot be asked."""
    pods = [pod for source in given.profile for pod in profiles.read(source)]
    names = [pod.name for pod in pods]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--profile: two GPU types are called {name}; rename one")
    most = min(int(pod.replica.profile.kv_tokens) for pod in pods)
    workload = workloads.read(given.workload, most)
    ttft_s, tpot_s = workload.slo or (None, None)
    ttft_s, tpot_s = given.ttft or ttft_s, given.tpot or tpot_s
    if ttft_s is None or tpot_s is None:
        raise UsageError(f"--workload {given.workload} has no limits: write --ttft and --tpot")
    if given.rate is not None and not LEAST_RATE <= given.rate <= MOST_RATE:
        raise UsageError(f"--rate {given.rate:g}: write {LEAST_RATE:g} to {MOST_RATE:g} a second")
    slo = SLO(ttft_s, tpot_s, given.goal)
    return Question(pods, slo, workload, given.rate, given.gpus, given.seeds)
