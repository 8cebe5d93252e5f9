"""The typer application of `kubectl argosy`: its verbs, and how a failure becomes a sentence."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, get_args, get_origin

import typer

from argosy_operator.cli.kubectl import rollout
from argosy_operator.cli.kubectl.command import CommandError, Exit
from argosy_operator.cli.kubectl.drain import drain
from argosy_operator.cli.kubectl.explain import explain
from argosy_operator.cli.kubectl.import_deployment import import_
from argosy_operator.cli.kubectl.lint import lint
from argosy_operator.cli.kubectl.render import render
from argosy_operator.cli.kubectl.status import status

NO_FILES, FILES = ":4", ":0"
"""Directives of cobra: complete nothing else, or names of files, too."""
WHERE = ("namespace", "context", "kubeconfig")
Named = Callable[[str, dict[str, str]], list[str]]
"""What the cluster has: of `Verb.argument`, "name" or "pod", and of the flags that say where."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a verb."""

    names: tuple[str, ...]
    help: str
    takes: tuple[str, ...] | None
    """Values that it may have; () for any, None for a flag without a value."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What completion knows of a verb."""

    help: str
    flags: tuple[Flag, ...]
    argument: str
    """Name of its argument: "name" of a fleet, "pod", or "files"."""
    optional: bool = False
    """Whether the argument may be left out."""
    verbs: Mapping[str, "Verb"] = field(default_factory=dict)
    """Of a group, such as rollout: the verbs below it."""


def grammar(command: Any) -> Verb:
    """A command of typer as completion sees it."""
    if below := getattr(command, "commands", None):
        verbs = {name: grammar(one) for name, one in below.items()}
        return Verb(command.help or "", (), "", verbs=verbs)
    flags, argument, optional = list[Flag](), "", False
    for one in command.params:
        if one.param_type_name == "argument":
            argument, optional = str(one.name), not one.required
            continue
        descriptor = getattr(one, "type_descriptor", None)  # --help has none
        annotation = getattr(descriptor, "annotation", None)
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        names = (*one.opts, *one.secondary_opts)
        flags.append(Flag(names, one.help or "", None if one.is_flag else choices))
    return Verb(command.help or "", tuple(flags), argument, optional)


def completed(verbs: Mapping[str, Verb], words: list[str], named: Named) -> str:
    """The answer for these words; the last of them is the one to complete, possibly empty."""
    *before, last = words or [""]
    if not before:
        return _answer(last, {name: verb.help for name, verb in verbs.items()})
    verb = verbs.get(before[0])
    if verb is None:
        return NO_FILES
    if verb.verbs:
        return completed(verb.verbs, words[1:], named)
    flags = {name: flag for flag in verb.flags for name in flag.names}
    asked = flags.get(before[-1])
    if asked is not None and asked.takes is not None:
        files = FILES if "--kubeconfig" in asked.names else NO_FILES
        return _answer(last, dict.fromkeys(asked.takes, ""), files)
    if last.startswith("-"):
        return _answer(last, {name: flag.help for name, flag in flags.items()})
    if verb.argument in ("name", "pod") and _given(before[1:], flags) == 0:
        return _answer(last, dict.fromkeys(named(verb.argument, _where(before[1:], flags)), ""))
    return FILES if verb.argument == "files" else NO_FILES


def _answer(begin: str, candidates: Mapping[str, str], directive: str = NO_FILES) -> str:
    lines = [
        f"{name}\t{text.splitlines()[0]}" if text else name
        for name, text in candidates.items()
        if name.startswith(begin)
    ]
    return "\n".join([*lines, directive])


def _given(words: list[str], flags: Mapping[str, Flag]) -> int:
    """How many words are arguments, and not flags or their values."""
    count, value = 0, False
    for word in words:
        flag = flags.get(word)
        if value:
            value = False
        elif flag is not None:
            value = flag.takes is not None
        elif not word.startswith("-"):
            count += 1
    return count


def _where(words: list[str], flags: Mapping[str, Flag]) -> dict[str, str]:
    """The flags that name the cluster and the namespace, by name without dashes."""
    found = dict[str, str]()
    for word, value in zip_longest(words, words[1:], fillvalue=""):
        name, equals, rest = word.partition("=")
        if (flag := flags.get(name)) is not None:
            key = max(flag.names, key=len).lstrip("-")
            if key in WHERE:
                found[key] = rest if equals else value
    return found


NAME = "kubectl argosy"


def application(about: str, verbs: Iterable[Callable[..., object]]) -> typer.Typer:
    """A command line of these verbs, whose failures `invoked` shows."""
    made = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help=about,
        epilog="--version as the last word of any command prints the version.",
    )
    for verb in verbs:
        made.command(verb.__name__.rstrip("_"))(verb)
    return made


VERBS = (status, explain, drain, render, lint, import_)
app = application("See and steer fleets that Argosy serves.", VERBS)
STEER = "Watch a rollout, hold it, or go back to an earlier revision."
app.add_typer(application(STEER, rollout.VERBS), name="rollout")


def main(argv: list[str]) -> int:
    """Entry point of `kubectl argosy`; returns the exit status."""
    return invoked(app, argv, NAME)


def complete(argv: list[str]) -> int:
    """Entry point of `kubectl_complete-argosy`: kubectl's shell completion asks it."""
    command = typer.main.get_command(app)
    verbs = getattr(command, "commands", {})
    print(completed({name: grammar(verb) for name, verb in verbs.items()}, argv, completions))
    return Exit.OK


def completions(of: str, where: dict[str, str]) -> list[str]:
    """Names of fleets, or for "pod" of engine pods; none if the cluster does not say."""
    from argosy_operator.cli.kubectl.session import engine_pod_names, fleet_names, names_or_none

    names = engine_pod_names if of == "pod" else fleet_names
    return names_or_none(
        names, where.get("namespace"), where.get("context"), where.get("kubeconfig")
    )


def invoked(of: typer.Typer, argv: list[str], name: str) -> int:
    """Run a command line of the application `of`; failures go to stderr as sentences."""
    try:
        result = of(args=argv, prog_name=name, standalone_mode=False)
    except CommandError as error:
        verb = next((word for word in argv if not word.startswith("-")), "")
        print(f"{name} {verb}: {error}", file=sys.stderr)
        return error.status
    except typer.Exit as exit_:
        return exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `| head`: its reader has enough
        sys.stderr.close()
        return Exit.OK
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors print their own message
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", Exit.USAGE))
    return result if isinstance(result, int) else Exit.OK
