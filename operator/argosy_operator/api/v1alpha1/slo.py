"""The latency objective from which the operator computes how many pods each role needs."""

from typing import Annotated

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Attainment, Percent, Target
from argosy_operator.api.model import ApiModel


class Objective(ApiModel):
    """One latency target."""

    target: Annotated[Target, within("slo.*.target")]
    """The latency that a request must not exceed, such as 200ms or 2s."""


class Slo(ApiModel):
    """A request is good when it meets both targets. The fleet is sized so that enough are good."""

    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    attainment: Attainment = Percent("90%")
    """The share of requests that must meet both targets. Default 90%: the share that ttftP90 and
    tpotP90 in status describe."""
