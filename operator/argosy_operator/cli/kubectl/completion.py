"""What the shell may complete after `kubectl argosy`, in the protocol of kubectl's completion.

kubectl runs `kubectl_complete-argosy` with the words after `argosy`, of which the last is the one
to complete. The answer is one candidate a line and, last, a colon with cobra's directive. Pure but
for `named`, which is called where the name of a fleet or of a pod is due.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, get_args, get_origin

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


def grammar(command: Any) -> Verb:
    """A command of typer as completion sees it."""
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
