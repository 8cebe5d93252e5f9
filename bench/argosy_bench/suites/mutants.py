"""The share of small changes to the code that the tests notice, by area.

    python -m argosy_bench.suites.mutants [--area NAME] [--only PATTERN] [--sample N] [--fresh]
        [--tests FILE …]

mutmut changes one expression at a time and runs the tests that enter the changed function. A mutant
that no test notices survives. The code comes from the working tree: it is copied to
`build/mutants/`, where mutmut keeps its results too. A later run goes on where an ended one stopped
and tries survivors again when a test changed, or with `--again`. The figures and all survivors go
to the figures file; with `--write` also to docs/measured/mutants.md. Accepted survivors stand with
their reason in `argosy_bench/mutation/accepted.toml`. An area whose mutants were not all run before
the time ended is not written.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from pathlib import Path

from argosy_bench.figures import Figure, Figures, Target, conclude, environment
from argosy_bench.mutation.page import Outcome, page
from argosy_bench.mutation.record import read_record, write_record
from argosy_bench.mutation.survivors import (
    Accepted,
    function_of,
    read_accepted,
    reason_of,
    survivor_of,
)
from argosy_bench.mutation.workspace import (
    INTERRUPTED,
    NO_TESTS,
    PASSED,
    SKIPPED,
    TIMED_OUT,
    Workspace,
    commit,
)

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = _ROOT / "docs" / "measured" / "mutants.md"
# On a busy machine tests run out of time that notice nothing.
_NOT_RUN = {None, INTERRUPTED, SKIPPED} | TIMED_OUT
_UNRUN = {None, INTERRUPTED}
"""Codes of chosen mutants after a run whose time ended before."""
_SURVIVED = {PASSED, NO_TESTS}
_SAMPLE = 300
"""Mutants that are run in an area without a bound: its share is then known to 5 points."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is mutated in one go, with the tests that run on it."""

    name: str
    packages: tuple[str, ...]
    """Folders that hold the packages, from the root. Only the modules of its areas are changed."""
    tests: tuple[str, ...]
    torch: bool = False
    """Tests that need torch are run, too."""


@dataclass(frozen=True, slots=True)
class Area:
    """A part of a program whose share is a figure."""

    name: str
    program: str
    modules: tuple[str, ...]
    """Patterns of module names. A module belongs to the first area that has it."""
    bound: float | None = None
    """The share must reach it. None: measured on a sample, because it is about to be rebuilt."""


_OPERATOR = "argosy_operator"
_LAW = f"{_OPERATOR}.core.scaling"
_SIM = f"{_OPERATOR}.sim"
_KUBECTL = f"{_OPERATOR}.cli.kubectl"
_ENGINE = "argosy_engine.core"
_SERVER = "argosy_engine.server"
_GATEWAY = "argosy_gateway"
_BOUND = 0.85

PROGRAMS = (
    Program(
        "operator",
        ("operator/argosy", "operator/argosy_operator"),
        ("tests/core", "tests/render", "tests/properties", "tests/shell", "tests/ports"),
    ),
    Program(
        "law", ("operator/argosy", "operator/argosy_operator"), ("tests/core", "tests/scaling")
    ),
    Program("kubectl", ("operator/argosy", "operator/argosy_operator"), ("tests/cli",)),
    Program("simulator", ("operator/argosy", "operator/argosy_operator"), ("tests/sim",)),
    Program(
        "fetch", ("engine/argosy_fetch",), ("tests/fetch", "tests/contract/test_model_configs.py")
    ),
    Program(
        "engine",
        ("engine/argosy_engine",),
        ("tests/engine/core", "tests/engine/runtime/test_ahead.py", "tests/kv"),
    ),
    Program(
        "engine_ends",
        ("engine/argosy_engine",),
        ("tests/kv", "tests/engine/trust", "tests/engine/server", "tests/engine/runtime"),
    ),
    Program("engine_http", ("engine/argosy_engine",), ("tests/engine",)),
    Program(
        "engine_torch",
        ("engine/argosy_engine",),
        (
            "tests/engine_torch",
            "tests/engine/test_model_spec.py",
            "tests/engine/test_native_choice.py",
            "tests/engine/test_native_library.py",
            "tests/engine/server/test_streams.py",
            "tests/engine/server/test_structured.py",
            "tests/engine/server/test_deep_grammars.py",
        ),
        torch=True,
    ),
    Program("gateway", ("engine/argosy_gateway", "engine/argosy_engine"), ("tests/gateway",)),
)

AREAS = (
    Area("law_size", "law", (f"{_LAW}.size.*",), _BOUND),
    Area("law_estimate", "law", (f"{_LAW}.estimate.*",), _BOUND),
    Area("law_shift", "law", (f"{_LAW}.pace.shift",), _BOUND),
    Area("law_pace", "law", (f"{_LAW}.pace.*",), _BOUND),
    Area("law_signals", "law", (f"{_LAW}.signals.*",), _BOUND),
    Area("law_advice", "law", (f"{_LAW}.advice.*",), _BOUND),
    Area("law_rivals", "law", (f"{_LAW}.rivals.*",), _BOUND),
    Area("law_decide", "law", (f"{_LAW}.*",), _BOUND),
    Area("operator_budgets", "law", (f"{_OPERATOR}.core.budgets.*",), _BOUND),
    Area("operator_slo", "law", (f"{_OPERATOR}.core.slo.*",), _BOUND),
    Area("operator_recall", "law", (f"{_OPERATOR}.core.recall.*",), _BOUND),
    Area("operator_gpu_types", "law", (f"{_OPERATOR}.core.gpu_types.*",), _BOUND),
    Area("operator_revision", "operator", (f"{_OPERATOR}.core.fleet.revision",), _BOUND),
    Area("operator_fleet", "operator", (f"{_OPERATOR}.core.fleet.*",), _BOUND),
    Area("operator_plan", "operator", (f"{_OPERATOR}.core.plan",), _BOUND),
    Area("operator_reconcile", "operator", (f"{_OPERATOR}.core.reconcile.*",), _BOUND),
    Area("operator_flips", "operator", (f"{_OPERATOR}.core.flips.*",), _BOUND),
    Area("operator_recycling", "operator", (f"{_OPERATOR}.core.recycling.*",), _BOUND),
    Area(
        "operator_peers",
        "operator",
        (
            f"{_OPERATOR}.ports.trust",
            f"{_OPERATOR}.ports.gateways",
            f"{_OPERATOR}.ports.engines",
            f"{_OPERATOR}.shell.gather",
        ),
        _BOUND,
    ),
    Area("operator_status", "operator", (f"{_OPERATOR}.core.status.*",), _BOUND),
    Area(
        "operator_upgrades",
        "operator",
        (
            f"{_OPERATOR}.render.common",
            f"{_OPERATOR}.render.images",
            f"{_OPERATOR}.shell.boards.rollouts",
        ),
        _BOUND,
    ),
    Area(
        "operator_pods",
        "operator",
        (f"{_OPERATOR}.render.pods.*", f"{_OPERATOR}.api.v1alpha1.pods.merged"),
        _BOUND,
    ),
    Area(
        "operator_models",
        "operator",
        (f"{_OPERATOR}.core.models.*", f"{_OPERATOR}.render.models.*"),
        _BOUND,
    ),
    Area("operator_settings", "operator", (f"{_OPERATOR}.render.gateway",), _BOUND),
    Area("operator_installs", "operator", (f"{_OPERATOR}.shell.installs",), _BOUND),
    Area(
        "operator_warnings",
        "operator",
        (
            f"{_OPERATOR}.core.warnings.*",
            f"{_OPERATOR}.shell.webhook.answer",
            f"{_OPERATOR}.shell.webhook.certificates",
            f"{_OPERATOR}.shell.webhook.rotation",
        ),
        _BOUND,
    ),
    Area("operator_engines", "operator", (f"{_OPERATOR}.render.engines.*",), _BOUND),
    Area("operator_render", "operator", (f"{_OPERATOR}.render.*",), _BOUND),
    Area("kubectl_views", "kubectl", (f"{_KUBECTL}.views.*",), _BOUND),
    Area("kubectl_verbs", "kubectl", (f"{_KUBECTL}.verbs.*",), _BOUND),
    Area("fetch", "fetch", ("argosy_fetch.*",), _BOUND),
    Area("sim_world", "simulator", (f"{_SIM}.world.*", f"{_SIM}.inbox"), _BOUND),
    Area("sim_reference", "simulator", (f"{_SIM}.reference.*",), _BOUND),
    Area("sim_report", "simulator", (f"{_SIM}.report.*", f"{_SIM}.figures"), _BOUND),
    Area(
        "sim_traces",
        "simulator",
        tuple(f"{_SIM}.{part}" for part in ("traces", "rates", "limits", "replay")),
        _BOUND,
    ),
    Area("engine_blocks", "engine", (f"{_ENGINE}.blocks.*",), _BOUND),
    Area("engine_handover", "engine", (f"{_ENGINE}.handover.*",), _BOUND),
    Area(
        "engine_limits",
        "engine",
        tuple(
            f"{_ENGINE}.{part}"
            for part in ("capacity", "batching", "preemption", "live", "limits", "costs.*")
        ),
        _BOUND,
    ),
    Area("engine_scheduler", "engine", (f"{_ENGINE}.*",), _BOUND),
    Area("engine_http", "engine_http", (f"{_SERVER}.openai.*", "argosy_engine.metrics.*"), _BOUND),
    Area("engine_text", "engine_torch", ("argosy_engine.text.*",), _BOUND),
    Area(
        "engine_sampling",
        "engine_torch",
        tuple(
            f"argosy_engine.runtime.torch.{part}"
            for part in ("sampler", "penalty", "masks", "allowed", "likely")
        ),
        _BOUND,
    ),
    Area(
        "engine_models",
        "engine_torch",
        tuple(f"argosy_engine.model.{part}" for part in ("spec", "loader", "rope", "share")),
        _BOUND,
    ),
    # Not `trial`: it runs in a process of its own, where no mutant is in force.
    Area(
        "engine_native",
        "engine_torch",
        tuple(f"argosy_engine.native.{part}" for part in ("choose", "compile", "library")),
        _BOUND,
    ),
    Area("engine_nixl", "engine_ends", ("argosy_engine.transfer.nixl.*",)),
    Area(
        "engine_transfer",
        "engine_ends",
        ("argosy_engine.transfer.*", "argosy_engine.runtime.shared_leases"),
        _BOUND,
    ),
    Area("engine_trust", "engine_ends", ("argosy_engine.trust.*",), _BOUND),
    Area(
        "engine_server",
        "engine_ends",
        (
            f"{_SERVER}.proof",
            f"{_SERVER}.candidates",
            f"{_SERVER}.drain",
            f"{_SERVER}.identity",
            f"{_SERVER}.role",
            f"{_SERVER}.external.*",
            f"{_SERVER}.openai.resume",
        ),
        _BOUND,
    ),
    Area(
        "gateway_load",
        "gateway",
        (f"{_GATEWAY}.accounting.misses", f"{_GATEWAY}.server.admin", f"{_GATEWAY}.routing.load"),
        _BOUND,
    ),
    Area("gateway_hold", "gateway", (f"{_GATEWAY}.queue.queue", f"{_GATEWAY}.relay.fleet"), _BOUND),
    Area(
        "gateway_settings",
        "gateway",
        (f"{_GATEWAY}.options", f"{_GATEWAY}.pods.settings"),
        _BOUND,
    ),
    Area("gateway_accounting", "gateway", (f"{_GATEWAY}.accounting.*",), _BOUND),
    Area("gateway_pods", "gateway", (f"{_GATEWAY}.pods.*",), _BOUND),
    Area("gateway_sse", "gateway", (f"{_GATEWAY}.wire.sse",), _BOUND),
    Area("gateway_routing", "gateway", (f"{_GATEWAY}.routing.*",), _BOUND),
    Area("gateway_queue", "gateway", (f"{_GATEWAY}.queue.*",), _BOUND),
    Area("gateway_relay", "gateway", (f"{_GATEWAY}.relay.*",), _BOUND),
    Area("gateway_wire", "gateway", (f"{_GATEWAY}.wire.*",), _BOUND),
    Area("gateway_server", "gateway", (f"{_GATEWAY}.server.*",), _BOUND),
)


def rows(outcomes: Mapping[str, Outcome]) -> Iterator[Figure]:
    """The figures' table: of the areas that were measured."""
    yield Figure("mutants_killed_share", target=Target(">=", _BOUND))
    yield Figure("mutants_run", digits=0)
    for area in AREAS:
        if area.name in outcomes:
            bound = Target(">=", area.bound) if area.bound is not None else None
            yield Figure(f"{area.name}_killed_share", target=bound)
            yield Figure(f"{area.name}_mutants", digits=0)


def area_of(function: str, program: str) -> Area | None:
    """The area that a function belongs to; None outside all."""
    names = list(accumulate(function.split("."), "{}.{}".format))
    for area in AREAS:
        patterns = area.modules if area.program == program else ()
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            return area
    return None


def chosen(
    names: Iterable[str], program: str, only: str | None, sample: int | None = None
) -> set[str]:
    """The mutants to run: all of an area with a bound, a fixed sample of the others.

    `only` is a pattern of functions; with it, all mutants that it matches. `sample` is the most
    mutants that any area gets.
    """
    if only is not None:
        return {name for name in names if fnmatchcase(function_of(name), only)}
    by_area: dict[Area, list[str]] = {}
    for name in sorted(names):
        area = area_of(function_of(name), program)
        if area is not None:
            by_area.setdefault(area, []).append(name)
    picked: set[str] = set()
    for area, members in by_area.items():
        most = sample if area.bound is not None else min(_SAMPLE, sample or _SAMPLE)
        if most is not None and len(members) > most:
            members = random.Random(area.name).sample(members, most)  # noqa: S311
        picked |= set(members)
    return picked


def _area_name(mutant: str, program: str) -> str:
    area = area_of(function_of(mutant), program)
    return area.name if area is not None else ""


def workspace_of(program: Program, tests: list[str] | None = None) -> Workspace:
    """The copy of a program. `tests`: the only ones that are run; None: all of the program."""
    patterns = (p for area in AREAS if area.program == program.name for p in area.modules)
    files = [
        pattern.replace(".", "/") + ("" if pattern.endswith("*") else ".py") for pattern in patterns
    ]
    return Workspace(
        program.name,
        packages=program.packages,
        mutate=sorted(set(files)),
        tests=tuple(tests or program.tests),
        torch=program.torch,
    )


def measure(asked: argparse.Namespace) -> tuple[dict[str, Outcome], Counter[str]]:
    """Run the mutants until the time ends; by area what came out, and how many were left unrun."""
    outcomes: dict[str, Outcome] = {}
    left: Counter[str] = Counter()
    ends = time.monotonic() + 60 * asked.minutes
    for program in PROGRAMS:
        if asked.program not in (None, program.name):
            continue
        workspace = workspace_of(program, asked.tests)
        workspace.prepare(fresh=asked.fresh)
        made = workspace.results()
        names = chosen(made, program.name, asked.only, asked.sample)
        if asked.area:
            names = {n for n in names if _area_name(n, program.name) in asked.area}
        if not names:
            continue
        workspace.edit(partial(_code_before, names, again=asked.again))
        workspace.run(seconds=max(1, ends - time.monotonic()), processes=asked.processes)
        codes = {name: code for name, code in workspace.results().items() if name in names}
        unrun = (name for name, code in codes.items() if code in _UNRUN)
        left.update(filter(None, (_area_name(name, program.name) for name in unrun)))
        results = {name: code for name, code in codes.items() if code not in _NOT_RUN}
        diffs = workspace.diffs(name for name, code in results.items() if code in _SURVIVED)
        for name in results:
            area = area_of(function_of(name), program.name)
            if area is None:
                continue
            outcome = outcomes.setdefault(area.name, Outcome(least=bool(asked.tests)))
            outcome.ran += 1
            if name in diffs:
                source = _source_of(name, program)
                outcome.survivors.append(survivor_of(name, diffs[name], source, _ROOT))
        for name in made:
            area = area_of(function_of(name), program.name)
            if area is not None and area.name in outcomes:
                outcomes[area.name].made += 1
    return outcomes, left


def _code_before(
    chosen: set[str], name: str, code: int | None, *, again: bool = False
) -> int | None:
    """The result from before, None if the mutant is to be run.

    One that was left out earlier and is chosen now has none; and the reverse. `again`: those that
    survived are run once more, by other tests for example.
    """
    if code in _NOT_RUN:
        return None if name in chosen else SKIPPED
    return None if again and code in _SURVIVED and name in chosen else code


def _source_of(mutant: str, program: Program) -> Path:
    module = mutant.partition("__mutmut_")[0].rpartition(".")[0].replace(".", "/")
    for package in program.packages:
        home = (_ROOT / package).parent
        for path in (home / f"{module}.py", home / module / "__init__.py"):
            if path.exists():
                return path
    raise FileNotFoundError(f"no source file of {mutant}")


def write(outcomes: Mapping[str, Outcome], accepted: list[Accepted]) -> None:
    """The record and the page, with these areas in place of their older rows."""
    machine = environment()
    for outcome in outcomes.values():
        outcome.at = f"{machine['date']} {commit()}"
    record = read_record() | dict(outcomes)
    record = {area.name: record[area.name] for area in AREAS if area.name in record}
    write_record(record)
    bounds = {area.name: area.bound for area in AREAS if area.bound is not None}
    _PAGE.write_text(page(record, bounds, accepted, machine))


def whole(outcomes: Mapping[str, Outcome], left: Mapping[str, int]) -> dict[str, Outcome]:
    """The areas of which no mutant was left; the others are named on stderr."""
    for name, count in left.items():
        mutants = "1 mutant" if count == 1 else f"{count} mutants"
        sys.stderr.write(
            f"{name} is not written: the time ended with {mutants} left. Run it again with a "
            "larger --minutes, or a smaller --sample\n"
        )
    return {name: outcome for name, outcome in outcomes.items() if name not in left}


def _terminated(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=[p.name for p in PROGRAMS], help="only this one")
    parser.add_argument("--only", help="only functions whose dotted name matches this pattern")
    names = [area.name for area in AREAS]
    parser.add_argument("--area", action="append", choices=names, help="only this one; repeatable")
    parser.add_argument("--tests", nargs="+", help="run these alone: the share is a lower bound")
    parser.add_argument("--sample", type=int, help="at most so many mutants of each area")
    parser.add_argument("--minutes", type=float, default=90, help="stop after so long")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--again", action="store_true", help="run survivors once more")
    parser.add_argument("--json", type=Path, help="the figures file")
    parser.add_argument("--write", action="store_true", help="write docs/measured/mutants.md")
    asked = parser.parse_args()
    if asked.only and asked.write:
        parser.error(
            "--only runs a part of an area, which is no row of the page: leave out --write"
        )
    signal.signal(signal.SIGTERM, _terminated)
    outcomes, left = measure(asked)
    figures = Figures(rows(outcomes), "make mutants")
    bound = [outcomes[area.name] for area in AREAS if area.bound and area.name in outcomes]
    if bound:
        ran, survived = sum(o.ran for o in bound), sum(len(o.survivors) for o in bound)
        figures.put("mutants_killed_share", 1 - survived / ran)
        figures.put("mutants_run", ran)
    for name, outcome in outcomes.items():
        figures.put(f"{name}_killed_share", outcome.share)
        figures.put(f"{name}_mutants", outcome.ran)
    accepted = read_accepted()
    for name, outcome in outcomes.items():
        figures.lists[f"survivors_{name}"] = [
            {**asdict(survivor), "accepted": reason_of(survivor, accepted)}
            for survivor in outcome.survivors
        ]
    for survivor in (s for o in outcomes.values() for s in o.survivors):
        if reason_of(survivor, accepted) is None:
            print(f"{survivor.file}:{survivor.line}: {survivor.change}")
    if asked.write:
        write(whole(outcomes, left), accepted)
    return conclude(figures, asked.json) or int(asked.write and bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
