"""The `argosy` command: one name for all programs.

The first word after `argosy` decides which package is imported: the operator's image has no torch,
and the gateway's image has no kopf. All programs may import the other modules of this package.
"""

import importlib
import sys
from typing import NoReturn

_PROGRAMS = {
    "operator": ("argosy_operator.cli", "operator", "run the operator; explain, crds"),
    "gateway": ("argosy_gateway.cli", "gateway", "run a fleet's gateway"),
    "engine": ("argosy_engine.cli", "engine", "serve a model"),
    "fetch": ("argosy_fetch.cli", "fetch", "fetch a fleet's model into its claim"),
    "profile": ("argosy_measure.profile", "measure", "measure how long an engine's steps take"),
    "tune": ("argosy_measure.tune", "measure", "find the limits that serve most, by measuring"),
    "simulate": ("argosy_law.sim.cli", "simulate", "replay a trace of requests in virtual time"),
    "bench": ("argosy_measure.bench", "measure", "send a load, and score it by TTFT and TPOT"),
    "goodput": ("argosy_measure.goodput", "measure", "find the highest rate that keeps an SLO"),
    "plan": ("argosy_measure.plan", "measure", "say which fleet meets an SLO, and what binds"),
    "reproduce": ("argosy_measure.reproduce.cli", "measure", "play what four texts claim again"),
}
"""Command → the module whose `main` it is, the extra that installs what it needs, and a line."""
_PLUGIN = "argosy_operator.cli.kubectl.app"


def main() -> NoReturn:
    """Dispatch `argosy <program> …` to that program's `main`; exit status 2 names the programs."""
    words = sys.argv[1:]
    if words[:1] == ["--version"]:
        _print_version()
    if not words or words[0] not in _PROGRAMS:
        usage = "\n".join(f"  argosy {name:9} {what}" for name, (*_, what) in _PROGRAMS.items())
        usage += "\n  argosy --version"
        asked_for_help = bool(words) and words[0] in {"-h", "--help", "help"}
        stream = sys.stdout if asked_for_help else sys.stderr
        stream.write(f"usage:\n{usage}\n")
        sys.exit(0 if asked_for_help else 2)
    # Not above: kubectl's plugin also runs where the module `resource` does not exist.
    from argosy.descriptors import raise_limit

    raise_limit()
    _run(words[0], words[1:])


def kubectl_plugin() -> NoReturn:
    """Entry point of `kubectl argosy …` (kubectl finds `kubectl-argosy` on the PATH)."""
    _run("kubectl", sys.argv[1:])


def kubectl_completion() -> NoReturn:
    """Entry point of `kubectl_complete-argosy`, which kubectl's shell completion calls."""
    _run("kubectl", sys.argv[1:], "complete")


def _print_version() -> NoReturn:
    """Print the version of the distribution, which all programs have."""
    from importlib.metadata import version

    sys.stdout.write(f"argosy {version('argosy')}\n")
    sys.exit(0)


def _run(program: str, argv: list[str], function: str = "main") -> NoReturn:
    # Before the import: it needs the program's extra, and torch takes seconds.
    if argv[-1:] == ["--version"] and function == "main":
        _print_version()
    module, extra, _ = _PROGRAMS.get(program, (_PLUGIN, "operator", ""))
    try:
        entry = importlib.import_module(module)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"argosy {program}: {error}. Install it: pip install 'argosy[{extra}]'\n")
        sys.exit(1)
    sys.exit(getattr(entry, function)(argv))
