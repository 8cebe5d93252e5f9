"""The Prometheus that measures a fleet, and how old its samples may be."""

from typing import Annotated, ClassVar

from argosy_operator.api import cel
from argosy_operator.api.bounds import within
from argosy_operator.api.fields import DURATION_PATTERN, Duration, MetricsUrl, PositiveDurationText
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import ValidationRule


class Prometheus(ApiModel):
    """The Prometheus that scrapes this fleet."""

    url: MetricsUrl | None = None
    """Its address. Default: the address that the operator was installed with. Any other address
    must be in the operator's allow-list (chart value prometheus.allowed)."""


class Metrics(ApiModel):
    """Where measurements come from and how old they may be."""

    prometheus: Prometheus = Prometheus()
    """The Prometheus that scrapes this fleet."""
    scrape_interval: Annotated[PositiveDurationText, within("metrics.scrapeInterval")] = Duration(
        "15s"
    )
    """How often Prometheus scrapes the pods. Write what the configuration of Prometheus says:
    samples older than three intervals are not used. Default 15s: what the chart of Argosy sets."""
    rate_window: Annotated[PositiveDurationText, within("metrics.rateWindow")] | None = None
    """The window over which rates are computed. Default: four times scrapeInterval, so that one
    missed scrape leaves enough samples."""

    ask_gateways: bool = False
    """True lets the operator ask the gateways themselves, in each autoscaling.interval, for the
    requests that arrived since the last scrape: a burst is seen up to a scrapeInterval earlier.
    Gateways that do not answer within a second count as Prometheus has them. False: they are asked
    only while Prometheus has no metrics. Then replicas are added by what they say, and none is
    removed."""

    @property
    def rate_window_s(self) -> float:
        """The window in seconds, with its default."""
        if self.rate_window is None:
            return 4 * self.scrape_interval.seconds
        return self.rate_window.seconds

    def window_holds_two_scrapes(self) -> bool:
        window = self.rate_window
        return window is None or window.seconds >= 2 * self.scrape_interval.seconds

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".rateWindow",
            cel="!has(self.rateWindow) || "
            # Text that is no duration is refused by its own format rule.
            f"!{cel.matches('self.rateWindow', DURATION_PATTERN)} || "
            f"!{cel.matches('self.scrapeInterval', DURATION_PATTERN)} || "
            "(duration(self.rateWindow) >= "
            "duration(self.scrapeInterval) + duration(self.scrapeInterval))",
            holds=window_holds_two_scrapes,
            message="metrics.rateWindow must be at least twice metrics.scrapeInterval (four times "
            "is better), or rates have no two samples: raise it or leave it out",
        ),
    )
