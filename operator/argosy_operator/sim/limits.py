"""The flags of `argosy simulate` that limit a law: replicas, schedules, steps.

`cli` calls these with the words of the command line; `replay` gets the values. Each raises
UsageError with what to write.
"""

from collections.abc import Sequence
from math import ceil

from pydantic import ValidationError

from argosy_operator.api.v1alpha1.autoscaling import ScaleToZero, Schedule
from argosy_operator.core.scaling.goals import StepLimits
from argosy_operator.core.scaling.pace.schedules import Bounds, Window
from argosy_operator.sim.flags import UsageError
from argosy_operator.sim.replay import ROLES, TOGETHER, Replicas
from argosy_operator.sim.world.supply import PoolName

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


def scale_to_zero(text: str | None, cold_s: float) -> ScaleToZero | None:
    """When a fleet goes to zero, and how long requests wait then; None without the flag."""
    if text is None:
        return None
    after, comma, wait = text.partition(",")
    try:
        zero = ScaleToZero.model_validate({"after": after} | ({"wait": wait} if comma else {}))
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--scale-to-zero {text}: {what}") from None
    if zero.wait.seconds < cold_s:
        raise UsageError(
            f"--scale-to-zero {text}: requests would wait for {zero.wait}, less than a cold start "
            f"of {cold_s:g} s; write a longer wait, such as {after},{ceil(2 * cold_s)}s"
        )
    return zero


def windows(text: str | None, of: Sequence[PoolName]) -> tuple[Window, ...]:
    """The schedules; none without the flag."""
    parts = text.split("|") if text else []
    return tuple(_window(number, part, of) for number, part in enumerate(parts, 1))


def _window(number: int, text: str, of: Sequence[PoolName]) -> Window:
    try:
        start, duration, least = (part.strip() for part in text.split(";"))
        schedule = Schedule.model_validate(
            {"name": f"window-{number}", "start": start, "duration": duration, "roles": {}}
        )
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--schedules {text.strip()}: {what}") from None
    except ValueError:
        raise UsageError(
            f"--schedules {text.strip()}: write start, duration and replicas, such as "
            f"'0 8 * * MON-FRI; 10h; {'5' if tuple(of) == TOGETHER else '4,6'}'"
        ) from None
    pods = replicas("--schedules", text.strip(), least, of)
    return Window(
        schedule.name,
        schedule.start,
        schedule.duration.seconds,
        schedule.time_zone,
        tuple(Bounds(role, pods[role], None) for role in of),
    )
