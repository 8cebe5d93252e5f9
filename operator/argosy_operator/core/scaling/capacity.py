"""What one replica can do, learnt from the engines' step counters.

seconds = base·steps + per_prompt_token·tokens + per_sequence·Σn + per_context_token·ΣΣctx, by
recursive least squares per role. Rows come from `samples`, constants go to `formulas`. Starts from
a known profile or from a guess; both may only scale up until enough rows were seen.
"""

from dataclasses import dataclass, replace
from math import exp

from argosy_operator.core.scaling.formulas import Replica
from argosy_operator.core.scaling.observe import SLO, Profile, Role, StepDelta, Windows

ENOUGH_ROWS = 10
ENOUGH_STEPS = 30.0
NOISE = 0.05
"""Relative standard deviation of one row's seconds per step."""
OUTLIER = 3.0
OUTLIERS_DROPPED = 3
SPREAD_PROFILE, SPREAD_GUESS = 0.3, 3.0
"""Prior standard deviation relative to the constant itself."""
PROMPT_STEPS_MEMORY = 0.9

Vector = tuple[float, float, float, float]
Matrix = tuple[Vector, Vector, Vector, Vector]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One role's constants (base, per prompt token, per sequence, per context token), s."""

    theta: Vector
    covariance: Matrix
    prompt_steps: float = 1.0
    rows: int = 0
    steps: float = 0.0
    refused: int = 0
    at: float | None = None

    @property
    def learnt(self) -> bool:
        """Measured well enough to remove capacity by, whatever it began from."""
        return self.rows >= ENOUGH_ROWS and self.steps >= ENOUGH_STEPS


def begin(role: Role, prior: Profile | None, slo: SLO) -> Estimate:
    """The prior. A guess is a replica for which the SLO is comfortable: with only the SLO known,
    any other guess would be one about hardware."""
    if prior is None:
        base = slo.tpot_s / 2 if role != "prefill" else slo.ttft_s / 20
        theta = (base, slo.ttft_s / 8000, slo.tpot_s / 128, slo.tpot_s / 2**17)
        return Estimate(theta, _diagonal(theta, SPREAD_GUESS))
    base = prior.prefill_base_s if role == "prefill" else prior.decode_base_s
    theta = (base, prior.per_prompt_token_s, prior.per_sequence_s, prior.per_context_token_s)
    return Estimate(theta, _diagonal(theta, SPREAD_PROFILE))


def _diagonal(theta: Vector, spread: float) -> Matrix:
    squares = [(spread * max(t, 1e-12)) ** 2 for t in theta]
    rows = [tuple(squares[i] if i == j else 0.0 for j in range(4)) for i in range(4)]
    return _matrix(rows)


def _matrix(rows: list[tuple[float, ...]]) -> Matrix:
    vectors = [(r[0], r[1], r[2], r[3]) for r in rows]
    return (vectors[0], vectors[1], vectors[2], vectors[3])


def learn(estimate: Estimate, rows: tuple[StepDelta, ...], windows: Windows) -> Estimate:
    """Take in the rows that are newer than what was seen; `sight.believed` has sifted them."""
    seen = estimate.at
    for row in sorted(rows, key=lambda r: r.at):
        if (seen is None or row.at > seen) and row.steps > 0 and row.seconds > 0:
            estimate = _learn_row(estimate, row, windows)
    return estimate


def _learn_row(estimate: Estimate, row: StepDelta, windows: Windows) -> Estimate:
    y = row.seconds / row.steps
    x = (
        1.0,
        row.prefill_tokens / row.steps,
        row.decode_sequences / row.steps,
        row.context_tokens / row.steps,
    )
    elapsed = row.at - estimate.at if estimate.at is not None else 0.0
    grow = exp(min(max(elapsed, 0.0) / windows.forget_s, 1.0))
    p = [[c * grow for c in r] for r in estimate.covariance]
    theta = estimate.theta
    predicted = sum(t * f for t, f in zip(theta, x, strict=True))
    noise = (NOISE * y) ** 2
    px = [sum(p[i][j] * x[j] for j in range(4)) for i in range(4)]
    variance = sum(x[i] * px[i] for i in range(4)) + noise
    surprise = (y - predicted) ** 2 / variance
    if surprise > OUTLIER**2:
        if estimate.refused < OUTLIERS_DROPPED:
            return replace(estimate, refused=estimate.refused + 1, at=row.at)
        # Four times in a row is not an outlier but a changed machine: believe it, doubt ourselves.
        raise_by = surprise / OUTLIER**2
        p = [[c * raise_by for c in r] for r in p]
        px = [c * raise_by for c in px]
        variance = sum(x[i] * px[i] for i in range(4)) + noise
    gain = [c / variance for c in px]
    fitted = [max(t + g * (y - predicted), 0.0) for t, g in zip(theta, gain, strict=True)]
    p = [[p[i][j] - gain[i] * px[j] for j in range(4)] for i in range(4)]
    prompt_steps = estimate.prompt_steps
    if row.prefill_requests > 0 and row.decode_sequences == 0:
        # More than one prompt in a step is batching, not a cheaper prompt: never below one step.
        share = max(row.steps / row.prefill_requests, 1.0)
        prompt_steps += (1 - PROMPT_STEPS_MEMORY) * (share - prompt_steps)
    return Estimate(
        theta=(fitted[0], fitted[1], fitted[2], fitted[3]),
        covariance=_matrix([tuple(r) for r in p]),
        prompt_steps=prompt_steps,
        rows=estimate.rows + 1,
        steps=estimate.steps + row.steps,
        refused=0,
        at=row.at,
    )


def replica(estimate: Estimate, kv_tokens: float) -> Replica:
    base, per_prompt_token, per_sequence, per_context_token = estimate.theta
    return Replica(
        base_s=base,
        per_prompt_token_s=per_prompt_token,
        per_sequence_s=per_sequence,
        per_context_token_s=per_context_token,
        prompt_steps=estimate.prompt_steps,
        kv_tokens=kv_tokens,
    )
