"""How the KV cache of a prompt travels from a prefill pod to a decode pod."""

from typing import Annotated

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import Duration, PositiveDurationText
from argosy_operator.api.model import ApiModel


class KvTransfer(ApiModel):
    """How decode pods pull the KV cache of a prompt from prefill pods."""

    lease_seconds: Annotated[int, within("kvTransfer.leaseSeconds")] = 30
    """How long, in seconds, a prefill pod keeps a prompt's KV cache for a decode pod that does not
    renew its lease. Default 30: three times the default timeout, so that a slow pull loses
    nothing."""
    timeout: Annotated[PositiveDurationText, within("kvTransfer.timeout")] = Duration("10s")
    """How long a decode pod waits for a prompt's KV cache, over all prefill pods that it asks.
    After that it computes the prompt itself."""
