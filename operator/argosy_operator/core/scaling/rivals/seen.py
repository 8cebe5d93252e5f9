"""The signals that rivals scale by, made from what `Observations` has. None: not known.

Gauges are sums over the pods that report. Rates are those of the newest scrape interval, from the
step counters of at most `samples.MOST_STEP_ROWS` pods, which stand for all that report.
"""

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import FleetMetrics, Idle, RoleMetrics, Signal, Value
from argosy_operator.core.scaling.signals.samples import MOST_STEP_ROWS


def number(signal: Signal) -> float | None:
    """The number of a signal; nothing happened is none."""
    return signal.value if isinstance(signal, Value) else None


def queued(role: RoleMetrics) -> float | None:
    """Outstanding prompt tokens of prefill, running sequences of the others."""
    if role.pods_reporting == 0:
        return None
    return number(role.outstanding_prompt_tokens if role.role == "prefill" else role.running)


def in_flight(role: RoleMetrics, metrics: FleetMetrics) -> float | None:
    """Requests that wait or run: of prefill, outstanding tokens over the mean prompt."""
    tokens = queued(role)
    if role.role != "prefill" or not tokens:
        return tokens
    mean = number(metrics.prompt_tokens)
    return tokens / mean if mean else None


def _rate(role: RoleMetrics, windows: Windows, grown: float) -> float | None:
    """Growth of a step counter per second and reporting pod. A pod without a row took no step."""
    if role.pods_reporting == 0:
        return None
    pods = len(role.steps)
    if pods < MOST_STEP_ROWS:
        pods = max(pods, role.pods_reporting)
    return grown / max(windows.interval_s, windows.scrape_s) / pods


def busy(role: RoleMetrics, windows: Windows) -> float | None:
    """Share of time in which a step runs, the mean over the pods.

    This is what DCGM calls GPU utilisation: some kernel runs. A decode pod with one sequence has 1.
    """
    share = _rate(role, windows, sum(row.seconds for row in role.steps))
    return None if share is None else min(share, 1.0)


def tokens_per_s(role: RoleMetrics, windows: Windows) -> float | None:
    """Tokens that one decode pod generates per second, the mean over the pods."""
    return _rate(role, windows, sum(row.decode_sequences for row in role.steps))


def context(role: RoleMetrics) -> float | None:
    """Mean tokens of context of a sequence in decode steps; None if none was in one."""
    sequences = sum(row.decode_sequences for row in role.steps)
    return sum(row.context_tokens for row in role.steps) / sequences if sequences else None


def prefill_token_s(role: RoleMetrics) -> float | None:
    """Seconds of steps per prompt token; None if none was computed."""
    tokens = sum(row.prefill_tokens for row in role.steps)
    return sum(row.seconds for row in role.steps) / tokens if tokens else None


def requests_per_s(metrics: FleetMetrics) -> float | None:
    """Arrivals in the rate window; 0 if the source says that there were none."""
    if isinstance(metrics.arrivals, Idle):
        return 0.0
    return number(metrics.arrivals)
