"""The PromQL of one round: selectors for many fleets at once, and the spans that they read.

Used by `collect.py`. The labels namespace, fleet, role and pod come from scrape relabelling
(designs/0001-seams.md §5), so one query serves every fleet that it names. `NAMINGS` has the names
under which the usual jobs write them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from argosy_law import canary
from argosy_law.goals import Windows
from argosy_law.signals import others, samples
from argosy_operator.core.snapshot.objects import FleetKey

QUANTILE = 0.9

GATEWAY_SERIES = (
    samples.RECEIVED,
    samples.VERDICTS,
    samples.MISSES,
    f"{samples.PROMPTS}_sum",
    f"{samples.PROMPTS}_count",
    f"{samples.PROMPTS}_bucket",
    samples.PROMPTS_SQUARED,
    f"{samples.OUTPUTS}_sum",
    f"{samples.OUTPUTS}_count",
    f"{samples.OUTPUTS}_bucket",
    samples.WAITING,
)
ENGINE_LONG_SERIES = (
    f"{samples.TRANSFERS}_sum",
    f"{samples.TRANSFERS}_count",
    samples.ENGINE_PROMPTS,
    samples.ENGINE_CACHED,
)
"""Engines report them; they are averaged over the gateways' long span."""
ENGINE_SERIES = (*samples.STEP_COUNTERS, *samples.GAUGES)


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of the labels that say whose a series is."""

    namespace: str
    fleet: str


_MAPPED = "serving_argosy_dev_"
"""How `labelmap` and `podTargetLabels` begin the names of the pods' own labels."""
NAMINGS = (
    Naming("namespace", "fleet"),
    Naming("namespace", f"{_MAPPED}fleet"),
    Naming("kubernetes_namespace", f"{_MAPPED}fleet"),
)
"""Of the chart's Prometheus; of the job kubernetes-pods of prometheus-community's chart, as of a
PodMonitor; of its older releases. The first that fits is used."""
ROLE = ("role", f"{_MAPPED}role")
POD = ("pod", "kubernetes_pod_name")
"""Names of the other two labels, likewise."""

_SPECIAL = re.compile(r"[.+*?()|\[\]{}^$\\]")


@dataclass(frozen=True, slots=True)
class Spans:
    """How far back the queries read, in seconds. Fleets with equal spans share one round."""

    interval_s: float
    """autoscaling.interval: how often the round is repeated."""
    long_s: float
    """Counters of requests: attainment and lengths."""
    short_s: float
    """Gauges and step counters of engines: the newest interval."""
    attainment_s: float
    """Quantiles of TTFT and TPOT."""

    @classmethod
    def of(cls, windows: Windows) -> "Spans":
        """Return spans of two scrape intervals more than the windows: samples do not lie on a
        window's edge."""
        margin_s = 2 * windows.scrape_s
        return cls(
            windows.interval_s,
            max(windows.attainment_s, windows.lengths_s) + margin_s,
            max(windows.interval_s, windows.fresh_s) + margin_s,
            windows.attainment_s,
        )


def targets(fleets: Iterable[FleetKey]) -> str:
    """Return scrape targets of the fleets, and one row without labels that carries the server's
    time."""
    keys = frozenset(fleets)
    return " or ".join([selector(("up",), keys, naming) for naming in NAMINGS] + ["vector(time())"])


def gateway_samples(fleets: Iterable[FleetKey], spans: Spans, naming: Naming = NAMINGS[0]) -> str:
    names = (*GATEWAY_SERIES, *ENGINE_LONG_SERIES, *others.LONG_NAMES)
    return f"{selector(names, fleets, naming)}[{duration(spans.long_s)}]"


def verdicts(fleet: FleetKey, span_s: float, step_s: float) -> str:
    """Return the counters of a canary's verdicts of one fleet, one sample for each step. One that
    is sampled more seldom, or that another job names otherwise, is not left out."""
    names = (samples.VERDICTS, canary.FAULTS)
    either = " or ".join(selector(names, [fleet], naming) for naming in NAMINGS)
    return f"({either})[{duration(span_s)}:{duration(step_s)}]"


def engine_samples(fleets: Iterable[FleetKey], spans: Spans, naming: Naming = NAMINGS[0]) -> str:
    names = (*ENGINE_SERIES, *others.NAMES)
    return f"{selector(names, fleets, naming)}[{duration(spans.short_s)}]"


def quantiles(fleets: Iterable[FleetKey], spans: Spans, naming: Naming = NAMINGS[0]) -> str:
    """Return 90th percentiles of TTFT and TPOT in seconds, per fleet; the label `of` says which
    one. A pod that two jobs scrape counts once."""
    fleet = f"{naming.namespace}, {naming.fleet}, le"
    pod = f"{fleet}, {', '.join(POD)}"
    keys = frozenset(fleets)
    return " or ".join(
        f"label_replace(histogram_quantile({QUANTILE}, sum by ({fleet}) (max by ({pod}) (rate("
        f"{selector((f'{name}_bucket',), keys, naming)}[{duration(spans.attainment_s)}])))), "
        f'"of", "{of}", "", "")'
        for of, name in (("ttft", samples.TTFT), ("tpot", samples.TPOT))
    )


def unlabelled() -> str:
    """Return jobs that scrape gateways of any fleet without the labels that say whose they are; the
    label `lacks` says which one."""
    return " or ".join(
        f"label_replace(count by (job) ({samples.RECEIVED}{{"
        + ",".join(f'{name}=""' for name in dict.fromkeys(names))
        + f'}}), "lacks", "{names[0]}", "", "")'
        for names in (
            [naming.fleet for naming in NAMINGS],
            [naming.namespace for naming in NAMINGS],
        )
    )


def selector(
    names: tuple[str, ...], fleets: Iterable[FleetKey], naming: Naming = NAMINGS[0]
) -> str:
    """Return series of these names whose namespace and fleet are among those of `fleets`.

    The two labels are matched apart, so the answer may hold other pairs of them: `collect` drops
    those. Metric names are ours and hold nothing to escape.
    """
    keys = sorted(fleets)
    namespaces, fleets_ = sorted({key[0] for key in keys}), sorted({key[1] for key in keys})
    return (
        f'{{__name__=~"{"|".join(names)}",'
        f'{naming.namespace}=~"{alternatives(namespaces)}",'
        f'{naming.fleet}=~"{alternatives(fleets_)}"}}'
    )


def alternatives(values: Iterable[str]) -> str:
    """Return literal values as the inside of the quotes of a PromQL regular-expression matcher."""
    return escape("|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in values))


def escape(value: str) -> str:
    """Return a string as the inside of a PromQL string's quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def duration(seconds: float) -> str:
    return f"{ceil(seconds * 1000)}ms"
