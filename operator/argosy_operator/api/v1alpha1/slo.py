"""The latency objective from which the operator computes how many pods each role needs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Attainment, ClassName, Percent, Target
from argosy_operator.api.model import ApiModel
from argosy_operator.api.rule import ValidationRule


class Objective(ApiModel):
    """One latency target."""

    target: Annotated[Target, within("slo.*.target")]
    """The latency that a request must not exceed, such as 200ms or 2s."""


class SloClass(ApiModel):
    """Limits and order of the requests that name this class in the header x-argosy-class."""

    list_key: ClassVar[str | None] = "name"

    name: ClassName
    """The name that requests give. Requests without one are of the class default: the targets of
    slo itself, with priority 0."""
    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    priority: Annotated[int, within("slo.classes[].priority")] = 0
    """Of requests that wait, those of a lower number go first. Default 0."""

    def name_is_free(self) -> bool:
        return self.name != "default"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel="self.name != 'default'",
            holds=name_is_free,
            message="the class default is slo.ttft and slo.tpot: choose another name",
        ),
    )


class Slo(ApiModel):
    """A request is good when it meets both targets. The fleet is sized so that enough are good."""

    ttft: Objective
    """Time to first token, from the request's arrival at the gateway."""
    tpot: Objective
    """Time per output token after the first, averaged over one answer."""
    attainment: Attainment = Percent("90%")
    """The share of requests that must meet both targets. Default 90%: the share that ttftP90 and
    tpotP90 in status describe."""
    first_token: Literal["AtOnce", "WithinTarget"] = "AtOnce"  # noqa: S105 (a moment, not a secret)
    """When clients of prefill and decode pods get the first token. AtOnce: as soon as its prompt is
    computed. WithinTarget: a decode pod holds it until the answer's next token is computed, as long
    as ttft allows. The KV transfer and the wait for a place in the batch then count for ttft and
    not for tpot, which short answers miss because of them. Default AtOnce."""
    classes: Annotated[tuple[SloClass, ...], Field(max_length=8)] = ()
    """Classes of requests with other targets, which count as met by their own. The fleet is still
    sized for the targets above. Default: only the class default."""

    @property
    def holds_first_token(self) -> bool:
        """Whether decode pods may hold first tokens."""
        return self.first_token == "WithinTarget"  # noqa: S105 (a moment, not a secret)
