"""How the KV cache of a prompt travels from a prefill pod to a decode pod."""

from typing import Annotated, Literal

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Duration, PositiveDurationText
from argosy_operator.api.model import ApiModel


class KvTransfer(ApiModel):
    """How decode pods pull the KV cache of a prompt from prefill pods."""

    timeout: Annotated[PositiveDurationText, within("kvTransfer.timeout")] = Duration("10s")
    """How long a decode pod waits without a sign that one of the prefill pods it asks makes
    progress with the prompt. What happens after that is onFailure. A prefill pod keeps a prompt's
    KV cache three times as long for a decode pod that does not renew its lease."""
    on_failure: Literal["recompute", "fail", "colocated"] = "recompute"
    """What a decode pod does with a prompt that no prefill pod handed over. recompute: it computes
    the prompt beside its decodes. fail: it answers 503, and the gateway tries another decode pod.
    colocated: it computes the prompt while no prefill pod can be reached, and answers 503 when one
    was there and failed. A request whose first token has left is always recomputed."""
    transport: Literal["auto", "tcp", "nixl"] = "auto"
    """What carries the KV cache. auto: NIXL between pods that both have its package and an RDMA
    adapter, otherwise TCP, which is faster without an adapter. tcp: never NIXL. nixl: also without
    an adapter; an engine without the package does not start. What NIXL fails to move goes over
    TCP."""

    @property
    def lease_s(self) -> float:
        """Seconds that a prefill pod keeps a KV cache for a decode pod that is silent."""
        return 3 * self.timeout.seconds
