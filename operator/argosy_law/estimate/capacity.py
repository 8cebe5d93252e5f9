"""What one replica can do, learnt from the engines' step counters.

seconds = base·steps + per_prompt_token·tokens + per_sequence·Σn + per_context_token·ΣΣctx, by
recursive least squares per role. Rows come from `signals.samples`, constants go to `size`. An
estimate starts from a known profile or from a guess; both may only add replicas until enough rows
were measured.

Forgetting is directional: as time passes, a row widens only the uncertainty of the sum that it
measures, so a load that does not vary forgets nothing about what it does not show. No constant
becomes less certain than a guess (`_capped`).
"""

from dataclasses import dataclass, replace
from math import ceil, exp, inf, isfinite, sqrt
from operator import mul

from argosy_law.goals import SLO, Profile, Serving, Windows
from argosy_law.observe import LARGEST, RoleName, StepDelta, plausible
from argosy_law.size.work import Replica

ENOUGH_ROWS = 10
ENOUGH_STEPS = 30.0
"""Rows and steps from which an estimate counts as measured: ten rows for four constants."""
NOISE = 0.05
"""Relative standard deviation of one row's seconds per step."""
OUTLIER = 3.0
"""Standard deviations beyond which a row is an outlier."""
OUTLIERS_DROPPED = 3
"""Outliers in succession that are ignored; the fourth means that the machine has changed."""
OUTLIERS_COUNTED = 1 / 3
"""Share of the rows of several pods from which outliers are the fleet: its pods are not alike."""
ROUNDS_SUMMED = 20
"""Rounds for which such pods count by the sum of their counters: five minutes at an interval of
15 s. In a later round the slow ones may be too few to show. One by one, slow pods with few
sequences and quick ones with many would say that sequences cost nothing."""
SPREAD_PROFILE = 0.3
"""Standard deviation of a constant of a known profile, relative to the constant."""
SPREAD_GUESS = 3.0
"""The same for a guess."""
ROUNDING = 1e-9
"""Least noise of a row as a share of the variance that it meets: with less, doubles cancel out."""
LEAST_AUTO_TOKENS, MOST_AUTO_TOKENS = 256, 2048
"""Prompt tokens of a step whose engine chooses them, without a limit on TPOT."""
SATURATED = 9.0
"""The engine chooses so many that they take so many times as long as the step's base."""

Vector = tuple[float, float, float, float]
Matrix = tuple[Vector, Vector, Vector, Vector]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Constants of one replica of a role, and how certain they are."""

    theta: Vector
    """Seconds: base, per prompt token, per sequence, per context token."""
    covariance: Matrix
    """Of the constants, in seconds squared."""
    prior: Vector
    """The constants it began from."""
    rows: int = 0
    """Rows taken in."""
    steps: float = 0.0
    """Steps in those rows."""
    refused: int = 0
    """Outliers in succession."""
    renewed: bool = False
    """It began again because what had been learnt was not usable; until enough is measured."""
    at: float | None = None
    """Time of the newest row."""
    summed: int = 0
    """Rounds for which the pods count by the sum of their counters: they were not alike."""

    @property
    def learnt(self) -> bool:
        """Whether it is measured well enough to remove capacity, from any prior."""
        return _enough(self.rows, self.steps)


def _enough(rows: int, steps: float) -> bool:
    return rows >= ENOUGH_ROWS and steps >= ENOUGH_STEPS


def begin(role: RoleName, prior: Profile | None, slo: SLO) -> Estimate:
    """The prior of a role.

    Without a profile it is a guess: a replica that meets the SLO comfortably. Any other guess would
    be one about hardware.
    """
    if prior is None:
        base = slo.tpot_s / 2 if role != "prefill" else slo.ttft_s / 20
        theta = (base, slo.ttft_s / 8000, slo.tpot_s / 128, slo.tpot_s / 2**17)
        return Estimate(theta, _diagonal(theta, SPREAD_GUESS), theta)
    base = prior.prefill_base_s if role == "prefill" else prior.decode_base_s
    theta = (base, prior.per_prompt_token_s, prior.per_sequence_s, prior.per_context_token_s)
    return Estimate(theta, _diagonal(theta, SPREAD_PROFILE), theta)


def guess(estimate: Estimate) -> Estimate:
    """What is known of one revision, as a guess about another: it may be any other engine."""
    likely = [max(pair) for pair in zip(estimate.theta, estimate.prior, strict=True)]
    spread = _diagonal((likely[0], likely[1], likely[2], likely[3]), SPREAD_GUESS)
    return Estimate(estimate.theta, spread, estimate.prior, at=estimate.at)


def _diagonal(theta: Vector, spread: float) -> Matrix:
    squares = [(spread * max(t, 1e-12)) ** 2 for t in theta]
    rows = [tuple(squares[i] if i == j else 0.0 for j in range(4)) for i in range(4)]
    return _matrix(rows)


def _matrix(rows: list[tuple[float, ...]]) -> Matrix:
    vectors = [(r[0], r[1], r[2], r[3]) for r in rows]
    return (vectors[0], vectors[1], vectors[2], vectors[3])


def sound(estimate: Estimate) -> bool:
    """Whether it is usable: finite, no negative constant, a positive definite covariance."""
    scalars = (*estimate.theta, estimate.rows, estimate.steps)
    return (
        all(plausible(n) for n in scalars)
        and all(0 <= t <= LARGEST for t in estimate.prior)
        and estimate.refused >= 0
        and estimate.summed >= 0
        and (estimate.at is None or isfinite(estimate.at))
        and _positive_definite(estimate.covariance)
    )


def _positive_definite(p: Matrix) -> bool:
    """Whether it is symmetric and Cholesky's decomposition exists; False for NaN and infinity."""
    lower: list[list[float]] = []
    for i in range(4):
        row: list[float] = []
        for j in range(i):
            if p[i][j] != p[j][i]:
                return False
            row.append((p[i][j] - sum(map(mul, row, lower[j]))) / lower[j][j])
        rest = p[i][i] - sum(map(mul, row, row))
        if not 0 < rest < inf:
            return False
        lower.append([*row, sqrt(rest)])
    return True


def learn(estimate: Estimate, rows: tuple[StepDelta, ...], windows: Windows) -> Estimate:
    """Take in the rows that are newer than the estimate; `validity.validated` has checked them.

    Where pods are not alike, the sum of their counters is one row: what a pod does on average. A
    row that leaves the estimate unusable resets it to a guess at its prior, not learnt.
    """
    seen = estimate.at
    new = [r for r in rows if (seen is None or r.at > seen) and r.steps > 0 and r.seconds > 0]
    if new:
        estimate = replace(estimate, summed=_rounds_summed(estimate, new, windows))
        new = [_sum(new)] if estimate.summed else sorted(new, key=lambda r: r.at)
    for row in new:
        estimate = _learn_row(estimate, row, windows)
        if not sound(estimate):
            guess = _diagonal(estimate.prior, SPREAD_GUESS)
            estimate = Estimate(estimate.prior, guess, estimate.prior, renewed=True, at=row.at)
    return estimate


def _rounds_summed(estimate: Estimate, rows: list[StepDelta], windows: Windows) -> int:
    """For how many rounds, from this one on, the pods' counters are summed."""
    if len({row.pod for row in rows}) > 1:
        outliers = sum(_is_outlier(estimate, row, windows) for row in rows)
        if outliers >= OUTLIERS_COUNTED * len(rows):
            return ROUNDS_SUMMED
    return max(estimate.summed - 1, 0)


def _sum(rows: list[StepDelta]) -> StepDelta:
    return StepDelta(
        at=max(row.at for row in rows),
        seconds=sum(row.seconds for row in rows),
        steps=sum(row.steps for row in rows),
        prefill_tokens=sum(row.prefill_tokens for row in rows),
        prefill_requests=sum(row.prefill_requests for row in rows),
        decode_sequences=sum(row.decode_sequences for row in rows),
        context_tokens=sum(row.context_tokens for row in rows),
    )


def _is_outlier(estimate: Estimate, row: StepDelta, windows: Windows) -> bool:
    x, y = _mean_step(row)
    _, _, variance = _met(estimate.covariance, x, y, _weigh_known(estimate, row, windows))
    return (y - _dot(estimate.theta, x)) ** 2 > OUTLIER**2 * variance


def _mean_step(row: StepDelta) -> tuple[Vector, float]:
    """What a step had, as the constants count it, and its seconds."""
    tokens, sequences = row.prefill_tokens / row.steps, row.decode_sequences / row.steps
    return (1.0, tokens, sequences, row.context_tokens / row.steps), row.seconds / row.steps


def _weigh_known(estimate: Estimate, row: StepDelta, windows: Windows) -> float:
    """The part of what was known that time has left until this row."""
    elapsed = row.at - estimate.at if estimate.at is not None else 0.0
    return exp(-min(max(elapsed, 0.0) / windows.forget_s, 1.0))


def _learn_row(estimate: Estimate, row: StepDelta, windows: Windows) -> Estimate:
    x, y = _mean_step(row)
    kept = _weigh_known(estimate, row, windows)
    theta, p = estimate.theta, estimate.covariance
    surprise = y - _dot(theta, x)
    along, known, variance = _met(p, x, y, kept)
    wild = surprise**2 / variance / OUTLIER**2
    if wild > 1:
        if estimate.refused < OUTLIERS_DROPPED:
            return replace(estimate, refused=estimate.refused + 1, at=row.at)
        # Four in succession are a changed machine: take the row and widen the estimate.
        p = _capped([[c * wild for c in r] for r in p], estimate.prior, theta)
        along, known, variance = _met(p, x, y, kept)
    gain = surprise / (kept * variance)
    fitted = [t + a * gain for t, a in zip(theta, along, strict=True)]
    # Forgetting raises the variance of what this row measures from `known` to `known / kept`, and
    # the row then lowers it. Both act along the same vector: together a step of rank one.
    lowered = 1 / (kept * kept * variance) - (1 / kept - 1) / known
    after = [[p[i][j] - lowered * (along[i] * along[j]) for j in range(4)] for i in range(4)]
    theta = _not_negative(fitted, after)
    rows, steps = estimate.rows + 1, estimate.steps + row.steps
    return replace(
        estimate,
        theta=theta,
        covariance=_capped(after, estimate.prior, theta),
        rows=rows,
        steps=steps,
        refused=0,
        renewed=estimate.renewed and not _enough(rows, steps),
        at=row.at,
    )


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


def _met(p: Matrix, x: Vector, y: float, kept: float) -> tuple[Vector, float, float]:
    """P·x; the variance x·P·x of what a row measures; and that variance as the row meets it.

    The last one includes what time has forgotten and the noise of the row.
    """
    along = (_dot(p[0], x), _dot(p[1], x), _dot(p[2], x), _dot(p[3], x))
    known = max(_dot(along, x), 1e-300)
    return along, known, known / kept + max((NOISE * y) ** 2, known * ROUNDING)


def _not_negative(theta: list[float], covariance: list[list[float]]) -> Vector:
    """The likeliest constants of which none is negative, found one by one: each negative one is
    taken for 0, and the others for what they are then expected to be.

    Cut off at 0 alone, the others would keep what they had gained to balance it: with steps of 2048
    tokens each, base and time per token are known by their sum, and a base of 9 s was left over.
    Source: Simon, Chia: Kalman filtering with state equality constraints, 2002.
    """
    rest = [list(row) for row in covariance]
    for _ in theta:
        at = min(range(4), key=theta.__getitem__)
        if theta[at] >= 0 or rest[at][at] <= 0:
            break
        by = [rest[i][at] / rest[at][at] for i in range(4)]
        theta = [t - b * theta[at] for t, b in zip(theta, by, strict=True)]
        rest = [[rest[i][j] - by[i] * rest[at][j] for j in range(4)] for i in range(4)]
        theta[at] = 0.0
    return (max(theta[0], 0.0), max(theta[1], 0.0), max(theta[2], 0.0), max(theta[3], 0.0))


def _capped(rows: list[list[float]], prior: Vector, theta: Vector) -> Matrix:
    """The covariance with no variance above that of a guess; correlations stay the same."""
    most = [(SPREAD_GUESS * max(a, b, 1e-12)) ** 2 for a, b in zip(prior, theta, strict=True)]
    if all(rows[i][i] <= m for i, m in enumerate(most)):
        return _matrix([tuple(r) for r in rows])
    by = [sqrt(m / rows[i][i]) if rows[i][i] > m else 1.0 for i, m in enumerate(most)]
    return _matrix([tuple(rows[i][j] * (by[i] * by[j]) for j in range(4)) for i in range(4)])


def replica(estimate: Estimate, kv_tokens: float, serving: Serving | None = None) -> Replica:
    """The estimate as the constants that `size` takes. `kv_tokens`: 0 if unknown."""
    base, per_prompt_token, per_sequence, per_context_token = estimate.theta
    step_tokens, sequences = (serving.step_tokens, serving.sequences) if serving else (None, None)
    if serving is not None and serving.auto_steps:
        step_tokens = auto_step_tokens(base, per_prompt_token, step_tokens)
    return Replica(
        base_s=base,
        per_prompt_token_s=per_prompt_token,
        per_sequence_s=per_sequence,
        per_context_token_s=per_context_token,
        step_tokens=step_tokens or inf,
        kv_tokens=kv_tokens,
        most_sequences=sequences or inf,
    )


def auto_step_tokens(base_s: float, per_prompt_token_s: float, most: int | None) -> int:
    """Prompt tokens of a step whose engine chooses them (`--max-num-batched-tokens auto`).

    The engine fits the same two constants and takes the saturation length, so that its prompt
    tokens take nine times as long as the base: 10 ms and 0.1 ms make 900. Beside decodes it may
    take fewer; the base of such a step is paid for by the decodes, which have one anyway.
    """
    most = most or MOST_AUTO_TOKENS
    if per_prompt_token_s <= 0:
        return most
    return max(LEAST_AUTO_TOKENS, ceil(min(SATURATED * base_s / per_prompt_token_s, most)))


SCHEME = "sim://"

PRESETS = {
    "llama-70b-h100-tp4": Profile(
        prefill_base_s=3.92e-3,
        per_prompt_token_s=0.1066e-3,
        per_prompt_token_squared_s=1e-9,
        decode_base_s=28.8e-3,
        per_sequence_s=0.2825e-3,
        per_context_token_s=9.4e-8,
        kv_tokens=480_000,
    ),
    "llama-70b-h100-tp8": Profile(
        prefill_base_s=3.78e-3,
        per_prompt_token_s=0.0899e-3,
        per_prompt_token_squared_s=1.49e-9,
        decode_base_s=29.9e-3,
        per_sequence_s=0.199e-3,
        per_context_token_s=1.79e-7,
        kv_tokens=1_330_000,
    ),
    "opt-13b-a100": Profile(
        prefill_base_s=18.10e-3,
        per_prompt_token_s=0.1019e-3,
        per_prompt_token_squared_s=7.12e-9,
        decode_base_s=19.93e-3,
        per_sequence_s=0.0385e-3,
        per_context_token_s=6.27e-7,
        kv_tokens=66_144,
    ),
    "smollm2-135m-cpu": Profile(
        prefill_base_s=1.61e-3,
        per_prompt_token_s=1.315e-3,
        per_prompt_token_squared_s=6.02e-7,
        decode_base_s=11.28e-3,
        per_sequence_s=1.32e-3,
        per_context_token_s=4.17e-6,
        kv_tokens=93_184,
    ),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica of a preset is made of. The simulator uses it; no law knows it."""

    gpus: int
    kv_bytes_per_token: int
    transfer_bytes_per_s: float
    """How fast KV leaves a prefill replica, and how fast it enters a decode replica."""


MACHINES = {
    "llama-70b-h100-tp4": Machine(4, 327_680, 50e9),
    "llama-70b-h100-tp8": Machine(8, 327_680, 50e9),
    "opt-13b-a100": Machine(1, 819_200, 25e9),
    "smollm2-135m-cpu": Machine(1, 23_040, 1.25e9),  # its core counts as a GPU
}


def prior_of(model_uri: str) -> Profile | None:
    """The preset's constants; None for a real model and for a preset that is not known here."""
    if not model_uri.startswith(SCHEME):
        return None
    return PRESETS.get(model_uri.removeprefix(SCHEME))
