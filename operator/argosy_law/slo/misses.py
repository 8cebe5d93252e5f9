"""Why requests missed the SLO, in words. Gateways count the reasons (docs/misses.md).

`core.status` shows the shares, `kubectl argosy explain` these words. A reason of a newer gateway
that is not here is shown as it is.
"""

WORDS: dict[str, str] = {
    "no_pod": "waited because no engine pod could serve: a cold start, or all pods were gone",
    "queue": "waited in the gateway for a free place",
    "retry": "began again, because a pod was killed, failed or drained",
    "ahead": "waited in the engine behind other prompts",
    "prompt": "have a prompt that takes longer to compute than spec.slo.ttft.target allows",
    "held": "waited with their first token for a place in a batch (slo.firstToken)",
    "transfer": "lost too much time by the KV transfer for the few tokens of their answer",
    "moved": "went on at another pod in the middle of their answer",
    "decode": "got their tokens too slowly: the decode steps take too long",
    "shed": "were refused for load",
    "failed": "got no whole answer",
}
"""Reason → what such requests did."""
LEAST = 0.005
"""Share of the judged requests from which a reason is shown."""


def in_words(reason: str, share: float) -> str:
    """One line for people."""
    return f"{share:.1%} {WORDS.get(reason, f'missed it by {reason}')}"
