"""`argosy simulate`: what a policy would have cost on a trace, and how many requests it had served.

It reads the trace, plays it under the policy and under the best constant fleet, and writes the
figures to a file. Exit status 2 means that a flag or the trace is wrong: the message says what to
write.
"""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from argosy_law.goals import SLO, FirstToken, Goals, Profile, RoleGoal, Serving
from argosy_law.pace.schedules import Window
from argosy_law.sim import figures, hindsight, limits, rates, traces
from argosy_law.sim.flags import FIGURES, FLAGS, Flag, UsageError
from argosy_law.sim.laws import LAWS
from argosy_law.sim.limits import MOST_REPLICAS, read_number, read_whole
from argosy_law.sim.replay import Replicas, Run, replay, static
from argosy_law.sim.report import describe_rollout, page
from argosy_law.sim.rollout import Plan
from argosy_law.sim.traces import Trace, TraceError
from argosy_law.sim.world.machine import QUEUE_TIMEOUT_S, Asks, ColdStart, Programs, Replica, Setup

__all__ = ["main"]

SEPARATE = frozenset({"dynamo", "wva"})
"""Policies that size prefill and decode, and no colocated replicas."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    requests: Path
    """The trace, or where the lengths are taken from."""
    rates: Path | None
    """None: the requests are played as they are."""
    scale: float
    prefix: bool
    warmup_s: float
    setup: Setup
    goals: Goals
    windows: tuple[Window, ...]
    """Schedules that bound the law."""
    plan: Plan | None
    """The rollout of a new revision."""
    goal: float
    law: str | None
    """Name in `LAWS`; None: a constant fleet."""
    start: Replicas | None
    """Replicas at the start, those of a constant fleet included."""
    best: Replicas | None
    """The smallest constant fleet, FIFO and first tokens at once; None: it is searched for."""
    best_same_engine: Replicas | None
    """The same with the order and first tokens of the run; None: it is searched for."""
    out: Path
    report: Path | None


def main(argv: list[str]) -> int:
    """Entry point of the `argosy simulate` command; returns the exit status."""
    begun = time.monotonic()
    try:
        options = parse(argv)
        trace = trace_of(options)
        run, result = simulate(options, trace)
        result["wall_s"] = time.monotonic() - begun
        text = json.dumps({name: result[name] for name in FIGURES}, indent=2)
        options.out.write_text(text + "\n")
        sys.stdout.write(describe_rollout(run, result))
        if options.report is not None:
            command = shlex.join(["argosy", "simulate", *argv])
            shown = page(run, result, command=command, warmup_s=options.warmup_s, goal=options.goal)
            options.report.write_text(shown)
    except (UsageError, TraceError) as error:
        sys.stderr.write(f"argosy simulate: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"argosy simulate: {error.filename}: {error.strerror}\n")
        return 2
    return 0


def simulate(options: Options, trace: Trace) -> tuple[Run, dict[str, float | str | None]]:
    """The run, and its figures, all but `wall_s`."""
    setup, warmup_s = options.setup, options.warmup_s
    best, same = _constant_fleets(options, trace)
    run = play(options, trace, best)
    return run, {
        **figures.attainment(run.world, warmup_s),
        "gpu_hours": figures.gpu_hours(run.world, warmup_s, trace.end),
        "gpu_hours_static": _cost(best, setup, trace.end - warmup_s),
        "gpu_hours_static_same_engine": _cost(same, setup, trace.end - warmup_s),
        "gpu_hours_physical": figures.physical_gpu_hours(trace, setup, warmup_s, run.world.roles),
        "ttft_longest_s": figures.ttft_longest_s(run.world, warmup_s),
        "violation_minutes": figures.violation_minutes(run.world, warmup_s, options.goal),
        "reversals_per_hour": figures.reversals_per_hour(run, warmup_s, trace.end),
        "requests": sum(arrival >= warmup_s for arrival in trace.arrival),
        "requests_killed": run.world.killed,
        "requests_refused": run.world.refused,
        **_rollout_figures(options, trace, run, best),
        "replicas_static": _write_replicas(best),
        "replicas_static_same_engine": _write_replicas(same),
    }


def _rollout_figures(
    options: Options, trace: Trace, run: Run, best: Replicas | None
) -> dict[str, float | str | None]:
    if run.rollout is None:
        return dict.fromkeys(name for name in FIGURES if name.startswith("rollout_"))
    begun, ended = run.rollout.plan.at_s, run.rollout.ended_at
    without = play(replace(options, plan=None), trace, best)
    return {
        "rollout_s": ended - begun if ended < math.inf else None,
        "rollout_attainment": figures.attainment_between(run.world, begun, ended),
        "rollout_attainment_without": figures.attainment_between(without.world, begun, ended),
        "rollout_killed": run.rollout.killed,
        "rollout_gpus_over": run.rollout.most_over,
    }


def _constant_fleets(options: Options, trace: Trace) -> tuple[Replicas | None, Replicas | None]:
    """The smallest ones: FIFO with first tokens at once, and as this run serves."""
    plain = replace(options.setup, order="fifo", hold_first_token=False)
    of = hindsight.smallest
    if options.goals.mode == "colocated":
        of = hindsight.smallest_colocated
    search = partial(of, warmup_s=options.warmup_s, goal=options.goal)
    best = options.best or search(plain, trace)
    if options.best_same_engine is not None:
        return best, options.best_same_engine
    ways = [options.setup]
    if options.goals.serving.auto_first_token:
        ways.append(replace(options.setup, hold_first_token=True))
    found = (best if way == plain else search(way, trace, near=best) for way in ways)
    return best, min(filter(None, found), key=lambda of: sum(of.values()), default=None)


def _cost(fleet: Replicas | None, setup: Setup, seconds: float) -> float | None:
    if fleet is None:
        return None
    return sum(fleet.values()) * setup.replica.machine.gpus * seconds / 3600


def _write_replicas(fleet: Replicas | None) -> str | None:
    return None if fleet is None else ",".join(str(replicas) for replicas in fleet.values())


def play(options: Options, trace: Trace, best: Replicas | None) -> Run:
    """The trace under the policy. `best`: where a law starts unless --start says where."""
    setup, goals = options.setup, options.goals
    start = options.start or best or {bounds.role: bounds.min for bounds in goals.roles}
    if options.law is None:
        return static(setup, trace, start, options.plan)
    if goals.gpu_budget is not None and options.start is None:
        while sum(start.values()) * setup.replica.machine.gpus > goals.gpu_budget:
            largest = max(start, key=lambda role: start[role])
            start = {**start, largest: start[largest] - 1}
    return replay(setup, trace, LAWS[options.law], goals, start, options.windows, options.plan)


def trace_of(options: Options) -> Trace:
    """The requests that are played. TraceError or UsageError for what cannot be."""
    most = int(options.setup.replica.profile.kv_tokens)
    with options.requests.open(newline="") as lines:
        trace = traces.read(str(options.requests), lines, most_tokens=most)
    if options.rates is None:
        trace = traces.scaled(trace, options.scale, options.setup.seed)
    else:
        with options.rates.open(newline="") as lines:
            points = rates.read(str(options.rates), lines)
        trace = rates.drawn(points, trace, options.scale, options.setup.seed)
    if not options.prefix:
        trace = trace.without_cache()
    elif not trace.cached:
        raise UsageError(
            f"--prefix ideal needs a column {traces.CACHED} in {options.requests}: add it, or "
            "leave --prefix out"
        )
    if trace.end <= options.warmup_s:
        raise UsageError(
            f"--warmup is {options.warmup_s:g} and the last request arrives at {trace.end:g} s: no "
            "request would count; give a longer trace or a shorter --warmup"
        )
    if options.plan is not None and options.plan.at_s >= trace.end:
        raise UsageError(
            f"--rollout-at is {options.plan.at_s:g} and the last request arrives at "
            f"{trace.end:g} s: write an earlier second"
        )
    return trace


# --- the command line ---------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> Options:
    """The options. UsageError for what cannot be used; argparse exits on unknown flags."""
    parser = argparse.ArgumentParser(
        prog="argosy simulate",
        description="Replay a trace of requests in virtual time.",
        allow_abbrev=False,
    )
    for flag in FLAGS:
        default = f" (default {flag.default})" if flag.default is not None else ""
        parser.add_argument(
            flag.name,
            metavar=flag.value,
            default=flag.default,
            help=flag.help + (" (required)" if flag.required else default),
        )
    given = vars(parser.parse_args(argv))
    words = {flag.name: given[flag.name[2:].replace("-", "_")] for flag in FLAGS}
    for flag in FLAGS:
        _refuse(flag, words[flag.name])
    for flag in FLAGS:
        if flag.required and words[flag.name] is None:
            raise UsageError(f"{flag.name} is missing: {flag.help}")
    for name in ("--out", "--report"):
        path = Path(words[name] or "")
        if not path.parent.is_dir():
            raise UsageError(f"{name} {path}: there is no folder {path.parent}; make it first")
    return _options(words)


def _refuse(flag: Flag, value: str | None) -> None:
    """Raise UsageError for a value that is not there, with what is."""
    if value is not None and flag.choices and value not in flag.choices:
        raise UsageError(f"{flag.name} {value}: write one of {', '.join(flag.choices)}")


def _options(words: dict[str, str | None]) -> Options:
    replica = Replica.preset(words["--profile"] or "")
    slo = _slo(words)
    setup = Setup(
        replica,
        slo.ttft_s,
        slo.tpot_s,
        cold=ColdStart(read_number(words, "--cold", least=0)),
        seed=read_whole(words, "--seed", least=0),
        order="deadline" if words["--order"] == "deadline" else "fifo",
        hold_first_token=words["--first-token"] == "in-batch",
        resumes=words["--order"] == "deadline",
        queue_timeout_s=QUEUE_TIMEOUT_S,
        scrape_loss=read_number(words, "--scrape-loss", least=0, most=0.99),
        outage=_outage(words["--outage"]),
        ask_gateways=_read_asks(words["--ask-gateways"]),
        max_in_flight=read_whole(words, "--max-queue", least=1)
        if words["--max-queue"]
        else math.inf,
        role_flip=words["--role-flip"] == "yes",
        programs=Programs(),
        migrates=words["--drain-mode"] == "migrate",
    )
    law, start = _policy(words)
    if words["--first-token"] == "auto" and law != "goodput":
        raise UsageError(
            "--first-token auto is chosen by the operator's law: write --policy goodput, or "
            "--first-token at-once or in-batch"
        )
    _refuse_for_mode(words)
    zero, after_s = limits.scale_to_zero(words["--scale-to-zero"], setup.cold.median_s), None
    if zero is not None:
        if law != "goodput" or setup.order == "fifo":
            raise UsageError(
                "--scale-to-zero is the operator's, and requests wait in the gateway's queue: "
                "write --policy goodput and --order deadline, or leave it out"
            )
        after_s, wait_s = zero
        setup = replace(setup, wake_timeout_s=wait_s)
    requests, table = _sources(words)
    return Options(
        requests=requests,
        rates=table,
        scale=read_number(words, "--scale", least=0.01, most=10_000),
        prefix=words["--prefix"] == "ideal",
        warmup_s=read_number(words, "--warmup", least=0),
        setup=setup,
        goals=replace(_goals(words, setup, slo), zero_after_s=after_s),
        windows=limits.windows(words["--schedules"], limits.roles(words["--mode"])),
        plan=limits.plan(words),
        goal=slo.attainment,
        law=law,
        start=start,
        best=_fleet(words, "--static"),
        best_same_engine=_fleet(words, "--static-same-engine"),
        out=Path(words["--out"] or ""),
        report=None if words["--report"] is None else Path(words["--report"]),
    )


def _slo(words: dict[str, str | None]) -> SLO:
    return SLO(
        ttft_s=read_number(words, "--ttft", least=0.001),
        tpot_s=read_number(words, "--tpot", least=0.001),
        attainment=read_number(words, "--goal", least=0.01, most=0.999),
    )


def _goals(words: dict[str, str | None], setup: Setup, slo: SLO) -> Goals:
    """What the law gets: the operator's defaults, and what flags say."""
    replica, budget = setup.replica, None
    mode, roles = words["--mode"], limits.roles(words["--mode"])
    if words["--gpu-budget"] is not None:
        budget = read_whole(words, "--gpu-budget", least=len(roles) * replica.machine.gpus)
    return Goals(
        mode="colocated" if mode == "colocated" else "disaggregated",
        roles=tuple(RoleGoal(role, 1, MOST_REPLICAS) for role in roles),
        slo=slo,
        gpu_budget=budget,
        steps=limits.steps(words["--step-down"]),
        role_flip=setup.role_flip,
        prior=_prior(words, replica.profile),
        serving=Serving(
            setup.order,
            replica.max_num_batched_tokens,
            replica.max_num_seqs,
            _FIRST_TOKENS[words["--first-token"] or ""],
        ),
    )


_FIRST_TOKENS: dict[str, FirstToken] = {
    "at-once": "AtOnce",
    "in-batch": "WithinTarget",
    "auto": "Auto",
}


def _sources(words: dict[str, str | None]) -> tuple[Path, Path | None]:
    """(file of requests, file of rates if there is one)."""
    trace, table, lengths = (words[name] for name in ("--trace", "--rates", "--lengths"))
    if trace is not None and table is None and lengths is None:
        return Path(trace), None
    if trace is None and table is not None and lengths is not None:
        return Path(lengths), Path(table)
    raise UsageError("give either --trace, or both --rates and --lengths")


def _policy(words: dict[str, str | None]) -> tuple[str | None, Replicas | None]:
    """(the law's name or None, replicas at the start)."""
    policy, start = words["--policy"] or "", words["--start"]
    name, colon, replicas = policy.partition(":")
    roles = limits.roles(words["--mode"])
    form, example = ("N", "5") if len(roles) == 1 else ("P,D", "2,3")
    if name == "static":
        if start is not None:
            raise UsageError(f"--start is for laws: static:{form} has its replicas in --policy")
        if not colon:
            raise UsageError(f"--policy static: write the replicas too, such as static:{example}")
        return None, limits.replicas("--policy", policy, replicas, roles)
    if policy not in LAWS:
        laws = ", ".join(sorted(LAWS))
        raise UsageError(f"--policy {policy}: there is no such law; write {laws}, or static:P,D")
    return policy, _fleet(words, "--start")


def _fleet(words: dict[str, str | None], flag: str) -> Replicas | None:
    value = words[flag]
    if value is None:
        return None
    return limits.replicas(flag, value, value, limits.roles(words["--mode"]))


def _refuse_for_mode(words: dict[str, str | None]) -> None:
    """Raise UsageError for what a colocated fleet does not have."""
    if words["--mode"] != "colocated":
        return
    if words["--policy"] in SEPARATE:
        laws = ", ".join(sorted(LAWS.keys() - SEPARATE))
        raise UsageError(
            f"--policy {words['--policy']} sizes prefill and decode separately; with --mode "
            f"colocated write {laws}, or static:N"
        )
    for flag, given, why in (
        ("--role-flip yes", words["--role-flip"] == "yes", "its pods have one role"),
        ("--drain-mode migrate", words["--drain-mode"] == "migrate", "its KV does not move"),
        (
            f"--first-token {words['--first-token']}",
            words["--first-token"] != "at-once",
            "its KV does not move",
        ),
    ):
        if given:
            raise UsageError(f"{flag} is not for a colocated fleet: {why}; leave it out")


def _read_asks(word: str | None) -> Asks:
    return "no" if word == "no" else "yes" if word == "yes" else "outage"


def _outage(text: str | None) -> tuple[float, float]:
    """(from, to) in seconds; never, without the flag."""
    if text is None:
        return math.inf, math.inf
    try:
        begin, seconds = (float(part) for part in text.split(","))
    except ValueError:
        begin = seconds = math.nan
    if not (0 <= begin < math.inf and 0 < seconds < math.inf):
        raise UsageError(
            f"--outage {text}: write when it begins and how long it is, in seconds, such as 600,120"
        )
    return begin, begin + seconds


def _prior(words: dict[str, str | None], profile: Profile) -> Profile | None:
    """The law's prior: the profile, with all times wrong by the factor."""
    if words["--profile-error"] == "none":
        return None
    factor = read_number(words, "--profile-error", least=0.01, most=100)
    return replace(
        profile,
        prefill_base_s=profile.prefill_base_s * factor,
        per_prompt_token_s=profile.per_prompt_token_s * factor,
        per_prompt_token_squared_s=profile.per_prompt_token_squared_s * factor,
        decode_base_s=profile.decode_base_s * factor,
        per_sequence_s=profile.per_sequence_s * factor,
        per_context_token_s=profile.per_context_token_s * factor,
    )
