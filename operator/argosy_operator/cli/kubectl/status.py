"""`kubectl argosy status [NAME]`: fleets, what serves, what clients get and what is not fine."""

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from argosy_operator.cli.explanation import WELL_WHEN_FALSE
from argosy_operator.cli.kubectl.command import (
    AllNamespaces,
    CommandError,
    Context,
    Exit,
    Kubeconfig,
    Namespace,
    Output,
    data,
    items,
    refused,
    table,
)
from argosy_operator.core.snapshot.objects import Object, seconds

if TYPE_CHECKING:
    from argosy_operator.cli.kubectl.session import Cluster

LOOK_S = 2.0
"""Between two frames of --watch: the operator writes status no more often."""
CLEAR = "\x1b[H\x1b[2J"
HEAD = ("name", "mode", "P", "D", "GPUs", "SLO", "attain", "ttft90", "tpot90", "not fine", "age")
WIDE = ("url", "model", "revision", "policy")
ALSO_WELL_WHEN_FALSE = ("ErrorBudgetBurning", "ScalingLimited")
"""Beside those that `explain` knows."""
WELL_EITHER_WAY = ("TransportSecured", "ScalingActive")
"""False or Unknown is a choice of the spec, and no trouble."""
HARMLESS = (
    "NoSLO",
    "Idle",
    "ScaledToZero",
    "NoTargets",
    "PolicyNone",
    "ExternalOwner",
    "NotVerified",
)
"""Reasons with which a condition is neither True nor trouble."""


def status(
    name: Annotated[
        str | None, typer.Argument(help="One fleet in detail. Default: all of the namespace.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = "table",
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Print again when something changes.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show fleets: pods that serve, replicas wanted, SLO attainment, what is not fine."""
    from argosy_operator.cli.kubectl.session import ask

    if name is not None and all_namespaces:
        raise CommandError("name one fleet or all namespaces, not both: leave out -A", Exit.USAGE)

    async def show(cluster: "Cluster") -> Exit:
        async def look() -> tuple[str, Exit]:
            if name is not None:
                fleets = [await cluster.fleet(name)]
            else:
                fleets = await cluster.fleets(everywhere=all_namespaces)
            text = _text(fleets, output, one=name is not None, everywhere=all_namespaces)
            return text, Exit.GOES_ON if watch else Exit.OK

        return await print_until_over(look, math.inf if watch else 0.0)

    return ask(show, namespace, context, kubeconfig)


async def print_until_over(look: Callable[[], Awaitable[tuple[str, Exit]]], limit_s: float) -> Exit:
    """Print what `look` answers, and again whenever it changes, until it is over or `limit_s` have
    passed; return the last status.

    Once it has answered, a call of the API server that fails is named and made again, as `kubectl
    get --watch` does it. What `look` answers after that is printed in any case."""
    from argosy_operator.adapters.protocols import ClusterError

    until, before, trouble, standing = time.monotonic() + limit_s, "", "", Exit.OK
    while True:
        try:
            text, standing = await look()
        except ClusterError as error:
            if not before + trouble:
                raise
            said = str(refused(error.kind, error.what, error.message))
            if said != trouble:
                print(f"{said}. Trying again", file=sys.stderr, flush=True)
            before, trouble = "", said
        else:
            if text != before:
                print((CLEAR if limit_s and sys.stdout.isatty() else "") + text, flush=True)
            before, trouble = text, ""
            if standing != Exit.GOES_ON:
                return standing
        if time.monotonic() >= until:
            return standing
        await asyncio.sleep(LOOK_S)


def _text(fleets: list[Object], output: str, *, one: bool, everywhere: bool) -> str:
    """Return what is printed for these fleets."""
    if output in ("json", "yaml"):
        return data(fleets[0] if one else items(fleets), output)
    if not fleets:
        where = "." if everywhere else " in this namespace; -A shows those of all."
        return f"There are no ServingDeployments{where}"
    if one and output == "table":
        return fleet_text(fleets[0], time.time())
    return fleets_table(fleets, time.time(), wide=output == "wide", everywhere=everywhere)


def fine(condition: Object) -> bool:
    """Whether a condition says that nothing is wrong and nothing is under way."""
    if condition["type"] in WELL_EITHER_WAY or condition.get("reason") in HARMLESS:
        return True
    if condition["status"] == "Unknown":
        return bool(condition["type"] == "ErrorBudgetBurning")
    false_is_well = condition["type"] in (*WELL_WHEN_FALSE, *ALSO_WELL_WHEN_FALSE)
    good = "False" if false_is_well else "True"
    return bool(condition["status"] == good)


def age(created: str | None, now: float) -> str:
    """How long ago that was, as kubectl prints it: 42s, 7m, 3h, 5d."""
    since = seconds(created)
    if since is None:
        return ""
    passed = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if passed >= 2 * length:
            return f"{passed // length}{unit}"
    return f"{passed}s"


def row_of(fleet: Object, now: float) -> tuple[str, ...]:
    """The cells of `HEAD` for one fleet."""
    status = fleet.get("status") or {}
    columns, goodput = status.get("columns") or {}, status.get("goodput") or {}
    wrong = [str(c["reason"]) for c in status.get("conditions") or () if not fine(c)]
    return (
        fleet["metadata"]["name"],
        status.get("mode", ""),
        columns.get("prefill", ""),
        columns.get("decode", ""),
        columns.get("gpus", ""),
        columns.get("slo", ""),
        goodput.get("attainment", ""),
        goodput.get("ttftP90", ""),
        goodput.get("tpotP90", ""),
        ",".join(dict.fromkeys(wrong)) or ("" if status else "no operator has seen it"),
        age(fleet["metadata"].get("creationTimestamp"), now),
    )


def wide_of(fleet: Object) -> tuple[str, ...]:
    """The cells of `WIDE` for one fleet."""
    spec, status = fleet.get("spec") or {}, fleet.get("status") or {}
    return (
        status.get("url") or "",
        (spec.get("model") or {}).get("uri", ""),
        status.get("revision") or "",
        (spec.get("autoscaling") or {}).get("policy", ""),
    )


def fleets_table(
    fleets: Sequence[Object], now: float, *, wide: bool = False, everywhere: bool = False
) -> str:
    """One line for each fleet. `now`: seconds since the epoch."""
    head = (("namespace",) if everywhere else ()) + HEAD + (WIDE if wide else ())
    rows = [
        ((fleet["metadata"]["namespace"],) if everywhere else ())
        + row_of(fleet, now)
        + (wide_of(fleet) if wide else ())
        for fleet in fleets
    ]
    return table(head, rows)


def fleet_text(fleet: Object, now: float) -> str:
    """One fleet: its line, its roles, what clients get, what is not fine, its address."""
    status = fleet.get("status") or {}
    lines = [fleets_table([fleet], now), "", _roles(status.get("roles") or {})]
    lines += _starts(status.get("roles") or {})
    lines += _refused(status.get("refused") or {})
    lines += rollout_lines(status.get("rollout") or {})
    lines += _goodput(fleet)
    lines += _newer(fleet)
    wrong = [c for c in status.get("conditions") or () if not fine(c)]
    lines += ["", "Not fine" if wrong else "All conditions are fine"]
    for c in wrong:
        lines.append(f"  {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}")
    if status.get("url"):
        lines += ["", f"URL  {status['url']}/v1  (inside the cluster)"]
    return "\n".join(lines)


def _roles(roles: Object) -> str:
    head = ("role", "wanted", "serving", "ready", "pending", "draining", "gpus", "revision")
    keys = ("desired", "serving", "ready", "pending", "draining", "gpus", "revision")
    rows = [
        (name, *(str(role.get(key, 0 if key != "revision" else "")) for key in keys))
        for name, role in roles.items()
    ]
    return table(head, rows) if rows else "No pods are reported yet."


def _starts(roles: Object) -> list[str]:
    """How long a pod takes to start, and with what."""
    keys = ("scheduling", "files", "images", "load")
    rows = [
        (name, str(role["timeToReady"]), *(str(phases.get(key, "")) for key in keys))
        for name, role in roles.items()
        if (phases := role.get("startPhases")) and role.get("timeToReady")
    ]
    return ["", table(("start of a pod", "until ready", *keys), rows)] if rows else []


def _refused(mark: Object) -> list[str]:
    """Which revision runs in place of the spec's."""
    if not mark:
        return []
    said = f"Revision {mark.get('revision', '')} is refused: {mark.get('message', '')}"
    return ["", f"{said}. {mark.get('runs', '')} runs in its place"]


def rollout_lines(rollout: Object) -> list[str]:
    """The revisions of a rollout, and what it waits for."""
    if not rollout:
        return []
    revisions = (rollout["new"], *rollout["old"])
    rows = [
        (age, one["revision"], role, str(one["serving"].get(role, 0)), str(wanted))
        for age, one in zip(("new", *["old"] * len(revisions)), revisions, strict=False)
        for role, wanted in one["desired"].items()
    ]
    said = f"Rollout ({rollout['strategy']}) {rollout['state']}: {rollout['waitsFor']}"
    return ["", said, table(("", "revision", "role", "serving", "wanted now"), rows)]


def _newer(fleet: Object) -> list[str]:
    """The operator's images where the fleet keeps others, and how it takes them."""
    newer = (fleet.get("status") or {}).get("newerImages") or {}
    if not newer:
        return []
    images = ", ".join(f"{name} {image}" for name, image in newer.items())
    return ["", f"Newer images: {images}. spec.imageUpdates: Follow takes them."]


def _goodput(fleet: Object) -> list[str]:
    slo = (fleet.get("spec") or {}).get("slo")
    if not slo:
        return ["", "No spec.slo: replicas follow no SLO."]
    got = (fleet.get("status") or {}).get("goodput") or {}
    goal = (
        f"goal: {slo.get('attainment', '90%')} within TTFT {slo['ttft']['target']} and "
        f"TPOT {slo['tpot']['target']}"
    )
    if got.get("attainment") is None:
        return ["", f"SLO  not measured yet; {goal}"]
    offered = got.get("offeredRps")
    rate = f", of {offered} requests/s" if offered else ""
    return ["", f"SLO  {got['attainment']} of requests met it{rate}; {goal}"]
