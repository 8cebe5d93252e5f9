"""`kubectl argosy rollout VERB NAME`: watch a rollout, hold it, and go back to an earlier revision.

`undo` and `promote` write status.refused, and never the spec: a Git that still asks for the new
revision is not fought. `pause` and `resume` write spec.rollout.paused.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.cli.kubectl.command import (
    CommandError,
    Context,
    Exit,
    Kubeconfig,
    Namespace,
    table,
)
from argosy_operator.cli.kubectl.drain import parse_duration
from argosy_operator.cli.kubectl.status import age, print_until_over, rollout_lines
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.history import KIND, Past, history_of
from argosy_operator.core.snapshot.objects import Object, rfc3339

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster

Name = Annotated[str, typer.Argument(help="Name of the fleet.")]

FAILED = frozenset(
    {
        Reason.ROLLED_BACK,
        Reason.SURGE_TOO_SMALL,
        Reason.SETTINGS_REFUSED,
        Reason.FOREIGN_OBJECT,
        Reason.INVALID_SPEC,
        Reason.FORBIDDEN,
    }
)
"""Reasons of RolledOut with which waiting does not help."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rollout is."""

    exit: Exit
    """What a pipeline is told."""
    lines: tuple[str, ...]


def status(
    name: Name,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Print each change, until it is over.")
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="With --watch: how long to wait, such as 90s or 30m.")
    ] = "1h",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show how far a rollout is: status 0 if it is over, 1 if it failed or went back, 6 if it goes
    on."""
    from argosy_operator.cli.kubectl.session import ask

    limit_s = parse_duration(timeout)

    async def show(cluster: "Cluster") -> Exit:
        async def look() -> tuple[str, Exit]:
            standing = standing_of(await cluster.fleet(name))
            return "\n".join(standing.lines), standing.exit

        return await print_until_over(look, limit_s if watch else 0.0)

    ends = ask(show, namespace, context, kubeconfig)
    if watch and ends == Exit.GOES_ON:
        print(f"not over after {timeout}", file=sys.stderr)
    return ends


def history(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """List the revisions whose rollout was completed, the newest first."""
    from argosy_operator.cli.kubectl.session import ask

    async def show(cluster: "Cluster") -> int:
        fleet = await cluster.fleet(name)
        past = await _history(cluster, fleet)
        if not past:
            print("No rollout was completed yet.")
        else:
            print(history_table(fleet, past, time.time()))
        return Exit.OK

    return ask(show, namespace, context, kubeconfig)


def pause(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Hold a rollout where it is: the pods of both revisions stay."""
    return _set_paused(name, True, (namespace, context, kubeconfig))


def resume(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Go on with a rollout that is held."""
    return _set_paused(name, False, (namespace, context, kubeconfig))


def promote(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Roll out the spec's revision although it was refused, or before its canary is won."""
    from argosy_operator.cli.kubectl.session import ask

    async def act(cluster: "Cluster") -> int:
        fleet = await cluster.fleet(name)
        revision = choose_promoted(name, fleet)
        change = {"status": {"refused": None, "promoted": revision}}
        await cluster.patch_fleet(fleet, change, status=True)
        print(f"{name}: revision {revision} is rolled out, without a canary. {_watch(name)}")
        return Exit.OK

    return ask(act, namespace, context, kubeconfig)


def undo(
    name: Name,
    to_revision: Annotated[
        str | None,
        typer.Option(help="A revision of the history. Default: the newest that does not run."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Run an earlier revision in place of the spec's, until the spec asks for another one."""
    from argosy_operator.cli.kubectl.session import ask

    async def act(cluster: "Cluster") -> int:
        fleet = await cluster.fleet(name)
        asked, runs = asked_of(fleet)
        if asked is None:
            raise CommandError(f"no operator has seen {name} yet: there is nothing to undo")
        to = choose_revision(name, await _history(cluster, fleet), to_revision, asked, runs)
        mark = {
            "revision": asked,
            "reason": "Undone",
            "message": "undone with kubectl argosy rollout undo",
            "since": rfc3339(time.time()),
            "runs": to,
            "inputs": ((fleet["status"].get("refused") or {}).get("inputs")),
        }
        await cluster.patch_fleet(fleet, {"status": {"refused": mark}}, status=True)
        print(
            f"{name}: revision {to} takes the place of {runs}. The spec still asks for {asked}, "
            f"which is not run until the spec changes. {_watch(name)}"
        )
        return Exit.OK

    return ask(act, namespace, context, kubeconfig)


VERBS = (status, history, pause, resume, promote, undo)


def asked_of(fleet: Object) -> tuple[str | None, str | None]:
    """Return the revision that the spec asks for, and the one that runs or comes."""
    said = fleet.get("status") or {}
    runs = said.get("revision")
    mark = said.get("refused") or {}
    return mark.get("revision") or runs, runs


def choose_promoted(name: str, fleet: Object) -> str:
    """Return the revision that was refused, or that must win a canary. Raises CommandError."""
    said = fleet.get("status") or {}
    refused = (said.get("refused") or {}).get("revision")
    comes = ((said.get("rollout") or {}).get("new") or {}).get("revision")
    if refused:
        return str(refused)
    if comes and (fleet["spec"].get("rollout") or {}).get("canary"):
        return str(comes)
    raise CommandError(
        f"no revision of {name} is refused or must win a canary: there is nothing to promote"
    )


def choose_revision(
    name: str, past: Sequence[Past], to: str | None, asked: str, runs: str | None
) -> str:
    """Return the revision to go back to. Raises CommandError, which says what there is."""
    found = [one.revision for one in past]
    others = [revision for revision in found if revision not in (asked, runs)]
    there = f"its history has {', '.join(found)}" if found else "its history is empty"
    if to is None:
        if not others:
            raise CommandError(f"{name} has no earlier revision to go back to: {there}")
        return others[0]
    if to == asked:
        raise CommandError(
            f"revision {to} is the one that the spec asks for: write kubectl argosy rollout "
            f"promote {name}, if it is refused"
        )
    if to not in found:
        raise CommandError(f"{name} has no revision {to}: {there}")
    return to


def standing_of(fleet: Object) -> Standing:
    """Say how far the rollout of a fleet is."""
    said, generation = fleet.get("status") or {}, fleet["metadata"].get("generation", 0)
    conditions = {c["type"]: c for c in said.get("conditions") or ()}
    found: dict[str, Any] = conditions.get(ConditionType.ROLLED_OUT) or {}
    if not found or found.get("observedGeneration") != generation:
        return Standing(Exit.GOES_ON, ("the operator has not seen this spec yet",))
    head = f"RolledOut={found['status']} {found['reason']}: {found.get('message', '')}"
    lines = (head, *rollout_lines(said.get("rollout") or {}))
    if found["status"] == "True":
        return Standing(Exit.OK, lines)
    return Standing(Exit.FAILED if found["reason"] in FAILED else Exit.GOES_ON, lines)


def history_table(fleet: Object, past: Sequence[Past], now: float) -> str:
    """The revisions with their number, their age and what they are now."""
    asked, runs = asked_of(fleet)
    refused = ((fleet.get("status") or {}).get("refused") or {}).get("revision")
    rows = []
    for one in past:
        said = {runs: "runs", refused: "refused"}.get(one.revision, "")
        made = None if one.made_at is None else rfc3339(one.made_at)
        rows.append((one.revision, str(one.number), age(made, now), said))
    if asked not in (None, *(one.revision for one in past)):
        said = "refused" if asked == refused else "is rolled out"
        rows.insert(0, (str(asked), "", "", f"{said}; not completed"))
    return table(("revision", "number", "age", "now"), rows)


def _watch(name: str) -> str:
    return f"Watch it with `kubectl argosy rollout status {name} --watch`."


async def _history(cluster: "Cluster", fleet: Object) -> tuple[Past, ...]:
    meta = fleet["metadata"]
    selector = f"{names.FLEET}={meta['name']}"
    found = await cluster.objects.list(KIND, meta["namespace"], selector)
    return history_of(found, meta["uid"])


def _set_paused(name: str, paused: bool, where: tuple[str | None, str | None, str | None]) -> int:
    from argosy_operator.cli.kubectl.session import ask

    async def act(cluster: "Cluster") -> int:
        fleet = await cluster.fleet(name)
        await cluster.patch_fleet(fleet, {"spec": {"rollout": {"paused": paused}}})
        now = "held: its pods stay as they are" if paused else "going on"
        print(f"{name}: a rollout of it is {now}.")
        return Exit.OK

    return ask(act, *where)
