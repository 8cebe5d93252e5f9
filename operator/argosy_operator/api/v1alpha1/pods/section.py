"""One item of the spec's `pods`: settings, and the roles whose pods they are of."""

from typing import Annotated, Literal

from pydantic import Field

from argosy_operator.api.v1alpha1.pods.settings import PodSettings

PodRole = Literal["prefill", "decode", "colocated", "gateway"]


class PodSection(PodSettings):
    """Settings of all pods of the fleet, or of those of some roles."""

    roles: Annotated[tuple[PodRole, ...], Field(max_length=4)] = ()
    """Whose pods these are: prefill, decode, colocated or gateway, which stands for the endpoint
    picker, too. Default: all pods of the fleet."""

    def is_of(self, role: str) -> bool:
        """Whether pods of the role have these settings."""
        return not self.roles or role in self.roles
