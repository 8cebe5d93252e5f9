"""From the results of many runs to the figures with targets."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import Any

from argosy_bench.scaling.traces import Recording
from local.figures import Figure, Figures, Target

EXACT = "1"
"""The --profile-error of a prior that is right."""

FIGURES = (
    Figure("worst_attainment", target=Target(">=", 0.90)),
    Figure("gpu_hours_vs_static_geomean", target=Target("<=", 0.80)),
    Figure("gpu_hours_vs_static_same_engine_geomean", target=Target("<=", 1.00)),
    Figure("day_code_gpu_hours_vs_static", target=Target("<=", 0.51)),
    Figure("day_conv_gpu_hours_vs_static", target=Target("<=", 0.80)),
    Figure("code_attainment", target=Target(">=", 0.90)),
    Figure("code_gpu_hours_vs_static", target=Target("<=", 0.80)),
    Figure("reversals_per_hour", "1/h", Target("<=", 1.0)),
    Figure("requests_killed", target=Target("==", 0), digits=0),
    Figure("profile_error_cost", target=Target("<=", 1.02)),
    Figure("profile_error_worst_attainment", target=Target(">=", 0.90)),
)
"""Of all traces but `code`, unless its name says otherwise. Attainment is that of the worst trace
and seed; the others are means over the seeds, and geometric or plain means over the traces."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    recording: Recording
    seed: int
    error: str
    """Its --profile-error."""
    result: Mapping[str, Any]
    """What `argosy simulate` wrote."""

    @property
    def attainment(self) -> float:
        return float(self.result["attainment"])

    @property
    def gpu_hours(self) -> float:
        return float(self.result["gpu_hours"])

    @property
    def over_static(self) -> float:
        return self.gpu_hours / float(self.result["gpu_hours_static"])

    @property
    def over_same_engine(self) -> float:
        return self.gpu_hours / float(self.result["gpu_hours_static_same_engine"])

    @property
    def reversals_per_hour(self) -> float:
        return float(self.result["reversals_per_hour"])

    def columns(self) -> dict[str, object]:
        """Return what the figures file has of it."""
        return {
            "trace": self.recording.name,
            "seed": self.seed,
            "profile_error": self.error,
            **{name: self.result[name] for name in _SHOWN},
            "gpu_hours_vs_static": round(self.over_static, 4),
            "gpu_hours_vs_static_same_engine": round(self.over_same_engine, 4),
        }


_SHOWN = (
    "attainment", "attainment_ttft", "attainment_tpot", "gpu_hours", "violation_minutes",
    "reversals_per_hour", "requests", "requests_killed", "replicas_static",
    "replicas_static_same_engine", "wall_s",
)  # fmt: skip


def put(figures: Figures, rows: Iterable[Row]) -> None:
    """Put every figure for which there are runs."""
    rows = list(rows)
    exact = [row for row in rows if row.error == EXACT]
    common = [row for row in exact if row.recording.forecastable]
    if common:
        figures.put("worst_attainment", min(row.attainment for row in common))
        figures.put("gpu_hours_vs_static_geomean", _over_traces(common, _over_static))
        figures.put(
            "gpu_hours_vs_static_same_engine_geomean",
            _over_traces(common, lambda row: row.over_same_engine),
        )
        figures.put("reversals_per_hour", mean(row.reversals_per_hour for row in common))
    for name in ("day_code", "day_conv", "code"):
        if one := [row for row in exact if row.recording.name == name]:
            figures.put(f"{name}_gpu_hours_vs_static", mean(map(_over_static, one)))
    if one := [row for row in exact if row.recording.name == "code"]:
        figures.put("code_attainment", min(row.attainment for row in one))
    if exact:
        figures.put("requests_killed", sum(row.result["requests_killed"] for row in exact))
    wrong = [row for row in rows if row.error != EXACT and row.recording.forecastable]
    if wrong:
        figures.put("profile_error_cost", _error_cost(common, wrong))
        figures.put("profile_error_worst_attainment", min(row.attainment for row in wrong))


def _over_static(row: Row) -> float:
    return row.over_static


def _over_traces(rows: list[Row], ratio: Callable[[Row], float]) -> float:
    """Geometric mean over the traces of the mean over the seeds."""
    of: dict[str, list[float]] = {}
    for row in rows:
        of.setdefault(row.recording.name, []).append(ratio(row))
    return geometric_mean(mean(ratios) for ratios in of.values())


def _error_cost(exact: list[Row], wrong: list[Row]) -> float:
    """GPU-hours with the most expensive error over those with the right prior."""
    right = {(row.recording.name, row.seed): row.gpu_hours for row in exact}

    def cost(row: Row) -> float:
        return row.gpu_hours / right[row.recording.name, row.seed]

    errors = {row.error for row in wrong}
    return max(_over_traces([row for row in wrong if row.error == e], cost) for e in errors)
