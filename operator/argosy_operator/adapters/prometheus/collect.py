"""One round: four queries for many fleets, split by fleet, and a fleet's share as `FleetMetrics`.

Raw samples are fetched (`metric[window]` at an explicit time); `argosy_law/signals/samples.py`
does the arithmetic in exact counts and says why. Only the quantiles that people read in status are
computed by Prometheus. Called by `metrics.py`, in threads.

All times of an answer are on Prometheus' clock, which stamps the samples. The operator's own clock
only tells how far the two are apart.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import isfinite

from argosy_law import canary
from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Idle, Signal, Unknown, Value
from argosy_law.signals import others, samples
from argosy_law.signals.gateways import with_readings
from argosy_operator.adapters.prometheus import queries
from argosy_operator.adapters.prometheus.queries import Spans
from argosy_operator.adapters.prometheus.server import NoAnswerError, Row, Server, TooLargeError
from argosy_operator.adapters.protocols import FleetPods
from argosy_operator.core.snapshot.objects import FleetKey

Fleets = frozenset[FleetKey]

_WRONG_SHAPE = (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError)
_NO_SERIES = "PrometheusAnswer: rows that are no series of ours"
_CREATED_ANEW = "NoSamples: the fleet was created anew after the last round of queries"


@dataclass(frozen=True, slots=True)
class Question:
    """Which fleet is measured, over which windows, and which of its pods count."""

    fleet: FleetKey
    windows: Windows
    pods: FleetPods = field(default_factory=FleetPods)
    uid: str = ""
    """Of the ServingDeployment: another one may get the same name."""


@dataclass(slots=True)
class Share:
    """One fleet's rows of a round, as Prometheus sent them.

    They are parsed per fleet: a row of another shape leaves its own fleet without metrics and no
    other.
    """

    at: float
    """When Prometheus evaluated the round, seconds since the epoch on its clock."""
    skew_s: float
    """The operator's clock minus Prometheus'."""
    targets: list[Row] = field(default_factory=list)
    series: list[Row] = field(default_factory=list)
    quantiles: list[Row] = field(default_factory=list)
    unlabelled: str = ""
    """What Prometheus scrapes without the labels that say whose it is, if this fleet has no target.
    """
    no_quantiles: str | None = None
    """Why the query of the quantiles failed; the other signals do not depend on it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The metrics that a fleet has taken out of a round."""

    uid: str
    """Of the ServingDeployment that took them."""
    metrics: FleetMetrics


@dataclass(frozen=True, slots=True)
class Collected:
    """What a round brought, for each of its fleets."""

    shares: dict[FleetKey, Share | Taken | NoAnswerError]
    """`take` replaces the rows of a fleet by its metrics, which are much smaller."""
    parts: tuple[Fleets, ...]
    """Sets of fleets that were asked for together. More than one only if the answer for all of
    them is too large."""


def collect(
    server: Server, parts: Iterable[Fleets], spans: Spans, clock: Callable[[], float]
) -> Collected:
    """Ask for the fleets of each part. Blocking; failures are values.

    A part whose query or answer is too large is halved and asked for again: a fleet with very many
    series leaves only itself without metrics. Any other failure is the server's and ends the round.
    """
    shares: dict[FleetKey, Share | Taken | NoAnswerError] = {}
    waiting, asked = list(parts), list[Fleets]()
    failure: NoAnswerError | None = None
    while waiting:
        part = waiting.pop()
        try:
            if failure is not None:
                raise failure
            shares.update(_ask(server, part, spans, clock))
        except NoAnswerError as error:
            if isinstance(error, TooLargeError):
                if len(part) > 1:
                    waiting += _halves(part)
                    continue
            else:
                failure = error
            shares.update(dict.fromkeys(part, error))
        asked.append(part)
    return Collected(shares, tuple(asked))


def take(collected: Collected, question: Question) -> FleetMetrics:
    """Return the fleet's own part. Raises NoAnswerError if it has none, or none that can be read.

    The metrics are those of the pods that the fleet had when it took them, so a fleet that is
    created anew under the same name waits for the next round.
    """
    share = collected.shares[question.fleet]
    if isinstance(share, NoAnswerError):
        raise share
    if isinstance(share, Share):
        share = Taken(question.uid, fleet_metrics(share, question.windows, question.pods))
        collected.shares[question.fleet] = share
    if share.uid != question.uid:
        raise NoAnswerError(_CREATED_ANEW)
    return share.metrics


def fleet_metrics(share: Share, windows: Windows, pods: FleetPods) -> FleetMetrics:
    """Return the signals of one fleet. Raises NoAnswerError if its rows are no series of ours."""
    try:
        up = [(dict(row["metric"]), row["value"][1] == "1") for row in share.targets]
        found, jobs = samples.deduplicate(s for s in map(_series, share.series) if _is_ours(s))
        series = others.translated(found)
    except _WRONG_SHAPE as error:
        raise NoAnswerError(_NO_SERIES) from error
    gateways = [alive for labels, alive in up if labels.get("role") == "gateway"]
    taken = samples.Round(
        at=share.at,
        series=series,
        gateways_up=sum(gateways),
        gateway_targets=len(gateways),
        no_targets=_why_no_gateway(share, up),
        ready_gateways=pods.ready_gateways,
        closed=pods.closed,
    )
    taken = with_readings(taken, pods.readings, share.skew_s)
    # A deleted pod's last samples stay in the window; its target does not.
    live = frozenset(labels.get("pod", "") for labels, alive in up if alive)
    if pods.engines is not None:
        live &= pods.engines
    metrics = samples.assemble(taken, windows, live)
    ttft, tpot = _quantiles(share)
    return replace(
        metrics,
        ttft_p90_s=ttft,
        tpot_p90_s=tpot,
        clock_skew_s=share.skew_s,
        scraped_twice=jobs,
    )


def ask_verdicts(
    server: Server, fleet: FleetKey, *, since: float, step_s: float, now: float
) -> tuple[samples.Series, ...]:
    """Return the samples of verdicts since then, as `argosy_law/canary.py` reads them. Blocking;
    raises NoAnswerError."""
    until = min(now, since + canary.LONGEST_S)
    rows = server.ask(queries.verdicts(fleet, until - since + 2 * step_s, step_s), until)
    try:
        found = [_series(row) for _, row in _split_by_fleet(rows, [fleet])]
    except _WRONG_SHAPE as error:
        raise NoAnswerError(_NO_SERIES) from error
    return samples.deduplicate(one for one in found if one.labels.get("role") == "gateway")[0]


def _why_no_gateway(share: Share, up: list[tuple[dict[str, str], bool]]) -> str:
    """Return which label is missing, where that is why a fleet has no gateway among its targets."""
    if up and not any(labels.get("role") for labels, _ in up):
        jobs = ", ".join(sorted({labels.get("job", "") for labels, _ in up}))
        return f"job {jobs} scrapes pods of this fleet without the label {_or(queries.ROLE)}"
    return share.unlabelled


def _or(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _ask(
    server: Server, fleets: Fleets, spans: Spans, clock: Callable[[], float]
) -> dict[FleetKey, Share]:
    """Ask the four queries: targets, gateways' counters over the long span, engines' series over
    the short one, quantiles. Once more where targets have their labels under several names."""
    asked_at = clock()
    targets = server.ask(queries.targets(fleets))
    at = _evaluated_at(targets)
    namings = _namings(targets)
    samples_ = [server.ask(queries.gateway_samples(fleets, spans, n), at) for n in namings]
    samples_ += [server.ask(queries.engine_samples(fleets, spans, n), at) for n in namings]
    no_quantiles, quantiles = None, list[tuple[FleetKey, Row]]()
    try:
        for naming in namings:
            quantiles += _split_by_fleet(
                server.ask(queries.quantiles(fleets, spans, naming), at), fleets
            )
    except NoAnswerError as error:
        if isinstance(error, TooLargeError) and len(fleets) > 1:
            raise
        quantiles, no_quantiles = [], error.reason
    shares = {key: Share(at, asked_at - at, no_quantiles=no_quantiles) for key in fleets}
    for key, row in _split_by_fleet(targets, shares):
        shares[key].targets.append(row)
    for answer in samples_:
        for key, row in _split_by_fleet(answer, shares):
            shares[key].series.append(row)
    for key, row in quantiles:
        shares[key].quantiles.append(row)
    if lost := [share for share in shares.values() if not share.targets]:
        why = _unlabelled(server, at)
        for share in lost:
            share.unlabelled = why
    return shares


def _namings(targets: list[Row]) -> list[queries.Naming]:
    """Return the namings that targets of a round have, in their order; else the first one."""
    try:
        labels = [row["metric"].keys() for row in targets]
        found = [n for n in queries.NAMINGS if any({n.namespace, n.fleet} <= ls for ls in labels)]
    except _WRONG_SHAPE as error:
        raise NoAnswerError(_NO_SERIES) from error
    return found or [queries.NAMINGS[0]]


def _unlabelled(server: Server, at: float) -> str:
    """Return which job scrapes gateways and does not say whose they are; empty if none does."""
    try:
        rows = server.ask(queries.unlabelled(), at)
        found = sorted((row["metric"]["lacks"], row["metric"].get("job", "")) for row in rows)
    except (NoAnswerError, *_WRONG_SHAPE):
        return ""
    if not found:
        return ""
    lacks, job = found[0]
    names = [n.fleet if lacks == "fleet" else n.namespace for n in queries.NAMINGS]
    return f"job {job} scrapes gateways without the label {_or(names)}"


def _halves(part: Fleets) -> tuple[Fleets, Fleets]:
    fleets = sorted(part)
    middle = len(fleets) // 2
    return frozenset(fleets[:middle]), frozenset(fleets[middle:])


def _split_by_fleet(rows: list[Row], fleets: Iterable[FleetKey]) -> list[tuple[FleetKey, Row]]:
    """Return rows with their fleet, and their labels under the names that the rest reads; rows of
    other fleets, which the selectors let through, are left out."""
    wanted = frozenset(fleets)
    try:
        found = [(_key(row["metric"], wanted), row) for row in rows]
        return [(key, _rename_labels(row, key)) for key, row in found if key is not None]
    except _WRONG_SHAPE as error:
        raise NoAnswerError(_NO_SERIES) from error


def _key(labels: dict[str, str], wanted: Fleets) -> FleetKey | None:
    """Return whose the row is, by the first names of the labels that fit."""
    keys = ((labels.get(n.namespace, ""), labels.get(n.fleet, "")) for n in queries.NAMINGS)
    return next((key for key in keys if key in wanted), None)


def _rename_labels(row: Row, key: FleetKey) -> Row:
    labels = dict(row["metric"]) | {"namespace": key[0], "fleet": key[1]}
    for names in (queries.ROLE, queries.POD):
        if value := next((labels[name] for name in names if labels.get(name)), None):
            labels[names[0]] = value
    return row | {"metric": labels}


def _evaluated_at(rows: list[Row]) -> float:
    """Return the time at which the server evaluated an instant query; `vector(time())` in the query
    makes sure of one row at least."""
    try:
        at = float(rows[0]["value"][0])
    except _WRONG_SHAPE as error:
        raise NoAnswerError(_NO_SERIES) from error
    if not isfinite(at):
        raise NoAnswerError("PrometheusAnswer: a time that is no number")
    return at


def _series(row: Row) -> samples.Series:
    labels = dict(row["metric"])
    values = tuple((float(t), float(v)) for t, v in row["values"])
    return samples.Series(labels.pop("__name__"), labels, values)


def _is_ours(series: samples.Series) -> bool:
    """Whether a series comes from the right role: gateways report requests and engines report
    steps. A pod with our labels that exports the other's metrics is neither."""
    role = series.labels.get("role")
    if series.name in queries.GATEWAY_SERIES:
        return role == "gateway"
    return role in samples.ROLES


def _quantiles(share: Share) -> tuple[Signal, Signal]:
    """Return 90th percentiles of TTFT and TPOT, s."""
    if share.no_quantiles is not None:
        return Unknown(share.no_quantiles), Unknown(share.no_quantiles)
    try:
        found = {row["metric"]["of"]: float(row["value"][1]) for row in share.quantiles}
    except _WRONG_SHAPE:
        wrong = Unknown("PrometheusAnswer: rows that are no quantiles")
        return wrong, wrong
    ttft, tpot = (found.get(of) for of in ("ttft", "tpot"))
    return _signal_of(ttft, share.at), _signal_of(tpot, share.at)


def _signal_of(number: float | None, at: float) -> Signal:
    """Return the quantile as a signal. Prometheus says NaN where nothing was observed."""
    if number is None:
        return Unknown("NoSamples")
    return Value(number, at) if isfinite(number) else Idle(at)
