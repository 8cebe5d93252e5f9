"""What a Prometheus would have of the simulated fleet: samples at each target's own moments, less
those that are lost.

Names and labels are those of the real programs, and only the series are kept that the operator asks
for, as far back as it asks, so that a law sees the simulator through the same `samples.assemble` as
a cluster.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from random import Random

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, unknown_metrics
from argosy_law.signals import gateways, samples
from argosy_law.signals.gateways import Heard, Load, Reading, with_readings
from argosy_law.signals.samples import Round, Series, assemble
from argosy_law.signals.validity import why_unavailable
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.pods import ColocatedPod, DecodePod, Pod, PrefillPod
from argosy_law.size.work import EDGES

GATEWAY = "gateway-0"
AWAY = "PrometheusAway: the metrics are out"
OF_ENGINES = frozenset((*samples.STEP_COUNTERS, *samples.GAUGES))
"""Names of the series that are asked for only as far back as `short_s`."""

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""


@dataclass(slots=True)
class Target:
    """One scrape target and its samples."""

    offset_s: float
    """Where in each scrape interval it is scraped."""
    pod: Pod | None = None
    """None: the gateway."""
    up: bool = True
    """Whether its last scrape succeeded."""
    times: list[float] = field(default_factory=list)
    """When it was scraped, on the law's clock, oldest first."""
    values: dict[Key, list[float]] = field(default_factory=dict)
    """What each series had then."""


class Scraper:
    """Scrapes every target once in each interval, at an offset of its own."""

    def __init__(self, world: World, windows: Windows, start: float) -> None:
        self._world, self._windows, self._start = world, windows, start
        self._random = Random(f"scrapes {world.setup.seed}")  # noqa: S311 (no secret)
        self._losses = Random(f"lost scrapes {world.setup.seed}")  # noqa: S311 (no secret)
        self._targets = {GATEWAY: Target(self._random.uniform(0, windows.scrape_s))}
        self._heard = Heard()

    @property
    def answers(self) -> bool:
        """Whether queries are answered now."""
        begin, end = self._world.setup.outage
        return not begin <= self._world.now < end

    @property
    def long_s(self) -> float:
        """How far back counters of requests are asked for."""
        windows = self._windows
        return max(windows.attainment_s, windows.lengths_s) + 2 * windows.scrape_s

    @property
    def short_s(self) -> float:
        """How far back engines are asked for."""
        windows = self._windows
        return max(windows.interval_s, windows.fresh_s) + 2 * windows.scrape_s

    def advance(self, until: float) -> None:
        """Let the world go on until then, and scrape on the way."""
        self._discover()
        begun, step = self._world.now, self._windows.scrape_s
        due: list[tuple[float, str]] = []
        for name, target in self._targets.items():
            at = target.offset_s + step * ((begun - target.offset_s) // step + 1)
            while at <= until:
                due.append((at, name))
                at += step
        for at, name in sorted(due):
            self._world.advance(at)
            self._scrape(self._targets[name])
        self._world.advance(until)

    def round(self) -> Round:
        """The answer to the operator's queries now. Times are seconds since the epoch."""
        now = self._start + self._world.now
        series: list[Series] = []
        for target in self._targets.values():
            times = target.times
            long = bisect_left(times, now - self.long_s)
            short = bisect_left(times, now - self.short_s)
            for (name, labels), values in target.values.items():
                since = short if name in OF_ENGINES else long
                if since < len(times):
                    found = tuple(zip(times[since:], values[since:], strict=True))
                    series.append(Series(name, dict(labels), found))
        up = int(self._targets[GATEWAY].up)
        scraped = Round(now, tuple(series), up, 1, frozenset({GATEWAY}))
        if self._world.setup.ask_gateways != "yes":
            return scraped
        return with_readings(scraped, (self._reading(),), skew_s=0.0)

    def metrics(self, pods: frozenset[str]) -> FleetMetrics:
        """What the operator knows now, of these pods: as Prometheus has it, or as the gateway
        says alone if it is asked while the metrics are out."""
        now, windows = self._start + self._world.now, self._windows
        taken = (
            assemble(self.round(), windows, pods) if self.answers else unknown_metrics(now, AWAY)
        )
        asks = self._world.setup.ask_gateways
        if asks == "yes" or (asks == "outage" and why_unavailable(taken, windows) is not None):
            self._heard = gateways.remember_readings(self._heard, (self._reading(),), now, windows)
        ready = frozenset({GATEWAY})
        taken, self._heard = gateways.fill_metrics(taken, self._heard, ready, now, windows)
        return taken

    def _reading(self) -> Reading:
        """What the gateway says to an operator that asks it."""
        world = self._world
        now, waiting = self._start + world.now, world.waiting_tokens
        return Reading(GATEWAY, now, world.arrived, 0.0, waiting, _load(world))

    def _discover(self) -> None:
        """Take new pods in, and drop those whose last samples are older than any window."""
        world = self._world
        for pods in world.pods.values():
            for pod in pods:
                if pod.name not in self._targets and pod.gone_at > world.now:
                    offset = self._random.uniform(0, self._windows.scrape_s)
                    self._targets[pod.name] = Target(offset, pod)
        self._targets = {
            name: target
            for name, target in self._targets.items()
            if target.pod is None or target.pod.gone_at > world.now - self.long_s
        }

    def _scrape(self, target: Target) -> None:
        world, pod = self._world, target.pod
        loss = world.setup.scrape_loss
        target.up = self.answers and not (loss > 0 and self._losses.random() < loss)
        if not target.up:
            return
        if pod is None:
            row = _gateway(world)
        elif pod.ready_at <= world.now < pod.gone_at:
            row = _engine(world, pod)
        else:
            return
        now = self._start + world.now
        old = bisect_left(target.times, now - self.long_s - self._windows.scrape_s)
        target.times = [*target.times[old:], now]
        for key, value in row.items():
            target.values[key] = [*target.values.get(key, ())[old:], value]


def _load(world: World) -> Load:
    """What the gateway knows of the engines' work and of answered requests."""
    outstanding = decoding = 0
    for pods in world.pods.values():
        for pod in pods:
            if isinstance(pod, PrefillPod):
                outstanding += pod.outstanding_tokens
            elif isinstance(pod, DecodePod):
                decoding += len(pod.waiting) + len(pod.landing) + len(pod.ends)
                if isinstance(pod, ColocatedPod):
                    outstanding += pod.tokens - pod.computed
    sums, answered = world.sums, world.ended - world.killed - world.refused
    return Load(outstanding, decoding, answered, sums.prompt, sums.prompt_squared, sums.output)


def _gateway(world: World) -> dict[Key, float]:
    labels = (("pod", GATEWAY), ("role", "gateway"))
    ended, sums = world.ended - world.killed - world.refused, world.sums
    row: dict[Key, float] = {
        (samples.RECEIVED, (("outcome", "accepted"), *labels)): world.arrived,
        (f"{samples.PROMPTS}_sum", labels): sums.prompt,
        (f"{samples.PROMPTS}_count", labels): ended,
        (samples.PROMPTS_SQUARED, labels): sums.prompt_squared,
        (f"{samples.OUTPUTS}_sum", labels): sums.output,
        (f"{samples.OUTPUTS}_count", labels): ended,
        (samples.WAITING, labels): world.waiting_tokens,
    }
    for name, counts in (
        (samples.PROMPTS, sums.prompts),
        (samples.OUTPUTS, sums.outputs),
    ):
        for edge, below in zip((*EDGES, inf), accumulate(counts), strict=True):
            le = "+Inf" if edge == inf else str(edge)
            row[f"{name}_bucket", (("le", le), *labels)] = below
    for (ttft, tpot), count in sums.verdicts.items():
        met = (("tpot", "ok" if tpot else "miss"), ("ttft", "ok" if ttft else "miss"))
        row[samples.VERDICTS, (*labels, *met)] = count
    return row


def _engine(world: World, pod: Pod) -> dict[Key, float]:
    counted: tuple[float, ...] = (pod.seconds, pod.steps, 0, 0, 0, 0)
    running = outstanding = 0
    transfers: tuple[float, int] = (0.0, 0)
    if isinstance(pod, PrefillPod):
        role = "prefill"
        running, outstanding = len(pod.batch), pod.outstanding_tokens
        counted = (pod.seconds, pod.steps, pod.prefill_tokens, pod.prefill_requests, 0, 0)
    elif isinstance(pod, ColocatedPod):
        role = "colocated"
        running, outstanding = len(pod.ends) + len(pod.batch), pod.tokens - pod.computed
        seconds, steps, sequences, context = pod.counted(world.now)
        steps += pod.prompt_steps
        counted = (
            seconds, steps, pod.prefill_tokens, pod.prefill_requests, sequences, context
        )  # fmt: skip
    elif isinstance(pod, DecodePod):
        role = "decode"
        running, transfers = len(pod.ends), (pod.transfer_s, pod.transfers)
        seconds, steps, sequences, context = pod.counted(world.now)
        counted = (seconds, steps, 0, 0, sequences, context)
    labels = (("pod", pod.name), ("role", role))
    row: dict[Key, float] = {
        (name, labels): value for name, value in zip(samples.STEP_COUNTERS, counted, strict=True)
    }
    received = (*labels, ("side", "receive"))
    row[f"{samples.TRANSFERS}_sum", received] = transfers[0]
    row[f"{samples.TRANSFERS}_count", received] = transfers[1]
    row[samples.ENGINE_PROMPTS, labels] = pod.prompt_tokens
    row[samples.ENGINE_CACHED, labels] = pod.cached_tokens
    row[samples.RUNNING, labels] = running
    row[samples.OUTSTANDING, labels] = outstanding
    row[samples.KV_CAPACITY, labels] = world.setup.replica.profile.kv_tokens
    return row
