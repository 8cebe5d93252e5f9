"""Whether the KV of two engines fits together, as far as their layouts' texts do not say it."""

__all__ = ["refuse_tp"]


def refuse_tp(*, prefill: int, decode: int) -> str | None:
    """Why engines of these tensor-parallel sizes cannot exchange KV; None if they can.

    Each rank holds a share of the KV heads. Shares can be cut and joined when one size divides the
    other.
    """
    if max(prefill, decode) % min(prefill, decode) == 0:
        return None
    return (
        f"prefill splits its KV heads over {prefill} ranks and decode over {decode}: use sizes of "
        "which one divides the other"
    )
