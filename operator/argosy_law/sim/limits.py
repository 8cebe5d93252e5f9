"""The flags of `argosy simulate` that limit a law, and those of a rollout.

`cli` calls these with the words of the command line; `replay` gets the values. Each raises
UsageError with what to write.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, inf, isfinite, nan
from typing import Literal

from cronsim import CronSim, CronSimError

from argosy_law.goals import StepLimits
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.rollout import Strategy
from argosy_law.sim.flags import UsageError
from argosy_law.sim.replay import ROLES, TOGETHER, Replicas
from argosy_law.sim.rollout import Plan
from argosy_law.sim.world.machine import Revision
from argosy_law.sim.world.supply import PoolName

MOST_REPLICAS = 1000
"""Of one role; the most that the API takes for replicas.max."""


def roles(mode: str | None) -> tuple[PoolName, ...]:
    """Those of a fleet of `--mode`."""
    return TOGETHER if mode == "colocated" else ROLES


def replicas(flag: str, value: str, text: str, of: Sequence[PoolName]) -> Replicas:
    """Replicas of each role: prefill and decode, or one number for a colocated fleet."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(of) or not all(1 <= n <= MOST_REPLICAS for n in numbers):
        what, example = (
            (f"replicas, from 1 to {MOST_REPLICAS}", "5")
            if tuple(of) == TOGETHER
            else (f"prefill and decode replicas, each from 1 to {MOST_REPLICAS}", "2,3")
        )
        raise UsageError(f"{flag} {value}: write {what}, such as {example}")
    return dict(zip(of, numbers, strict=True))


def steps(text: str | None) -> StepLimits:
    """The largest change of a role in a decision; those of the spec's defaults without the flag."""
    if text is None:
        return StepLimits()
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text) <= 100:
        raise UsageError(f"--step-down {text}: write a percentage from 1 to 100")
    return StepLimits(down_percent=float(text))


def scale_to_zero(text: str | None, cold_s: float) -> tuple[float, float] | None:
    """Return after how many seconds a fleet goes to zero and how long requests wait then; None
    without the flag."""
    if text is None:
        return None
    after, comma, wait = text.partition(",")
    wait = wait if comma else "5m"
    after_s, wait_s = (_seconds("--scale-to-zero", text, of) for of in (after, wait))
    if wait_s < cold_s:
        raise UsageError(
            f"--scale-to-zero {text}: requests would wait for {wait}, less than a cold "
            f"start of {cold_s:g} s; write a longer wait, such as {after},{ceil(2 * cold_s)}s"
        )
    return after_s, wait_s


def plan(words: Mapping[str, str | None]) -> Plan | None:
    """Return the rollout of these flags; None without `--rollout-at`."""
    at = words["--rollout-at"]
    if at is None:
        for flag, default in (
            ("--surge", None),
            ("--strategy", "Paced"),
            ("--rollout-speed", "1"),
            ("--rollout-fails", "no"),
        ):
            if words[flag] != default:
                raise UsageError(
                    f"{flag} is for a rollout: write --rollout-at with the second at which the "
                    "new revision is asked for, such as --rollout-at 600"
                )
        return None
    surge, strategy = words["--surge"], words["--strategy"]
    if surge is not None and strategy != "Paced":
        raise UsageError(f"--surge is for --strategy Paced: leave it out with {strategy}")
    if words["--role-flip"] == "yes":
        raise UsageError(
            "--role-flip yes with --rollout-at is not simulated, since no pod changes its role in "
            "a rollout: leave one of them out"
        )
    name: Literal["Paced", "BlueGreen", "Recreate"] = "Paced"
    if strategy in ("BlueGreen", "Recreate"):
        name = "BlueGreen" if strategy == "BlueGreen" else "Recreate"
    return Plan(
        read_number(words, "--rollout-at", least=0),
        Strategy(name, None if surge is None else read_whole(words, "--surge", least=0)),
        Revision(
            read_number(words, "--rollout-speed", least=0.01, most=100),
            words["--rollout-fails"] == "no",
        ),
    )


def read_number(
    words: Mapping[str, str | None], flag: str, *, least: float, most: float = inf
) -> float:
    """Return the finite number of a flag, within these bounds."""
    text = words[flag] or ""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not (isfinite(number) and least <= number <= most):
        bound = f"from {least:g} to {most:g}" if most < inf else f"of at least {least:g}"
        raise UsageError(f"{flag} {text}: write a number {bound}")
    return number


def read_whole(words: Mapping[str, str | None], flag: str, *, least: int) -> int:
    """Return the whole number of a flag."""
    text = words[flag] or ""
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise UsageError(f"{flag} {text}: write a whole number of at least {least}")
    return int(text)


def _seconds(flag: str, whole: str, text: str) -> float:
    """Return the seconds of a duration as the spec writes it, such as 200ms or 10m."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})(ms|s|m|h)", text.strip())
    if found is None:
        raise UsageError(f"{flag} {whole}: write a duration of more than 0, such as 200ms or 15s")
    return int(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


def windows(text: str | None, of: Sequence[PoolName]) -> tuple[Window, ...]:
    """The schedules; none without the flag."""
    parts = text.split("|") if text else []
    return tuple(_window(number, part, of) for number, part in enumerate(parts, 1))


def _window(number: int, text: str, of: Sequence[PoolName]) -> Window:
    text = text.strip()
    parts = [part.strip() for part in text.split(";")]
    if len(parts) != 3:
        raise UsageError(
            f"--schedules {text}: write start, duration and replicas, such as "
            f"'0 8 * * MON-FRI; 10h; {'5' if tuple(of) == TOGETHER else '4,6'}'"
        )
    start, duration, least = parts
    try:
        next(CronSim(start, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        raise UsageError(
            f"--schedules {text}: write the start as cron does: 0 8 * * MON-FRI is every "
            "weekday at eight"
        ) from None
    duration_s = _seconds("--schedules", text, duration)
    pods = replicas("--schedules", text, least, of)
    bounds = tuple(Bounds(role, pods[role], None) for role in of)
    return Window(f"window-{number}", start, duration_s, "UTC", bounds)
