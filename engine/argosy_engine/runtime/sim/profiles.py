"""Timing models of real engines, and how long a step of ours would last on them.

Sources: `opt-13b-a100` is DistServe's fitted model of OPT-13B on one A100-80GB;
`llama-70b-h100-tp4` stands for Llama-3-70B on four H100. Prefill of a prompt of L tokens lasts
a + b·L + c·L²; a decode step of n sequences with Σctx tokens of context lasts a + b·Σctx + c·n.
"""

from dataclasses import dataclass

from argosy_engine.core.step import StepPlan

__all__ = ["PROFILES", "SimProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimProfile:
    """Constants in milliseconds, tokens and bytes."""

    prefill_ms: float
    prefill_ms_per_token: float
    prefill_ms_per_token_squared: float
    decode_ms: float
    decode_ms_per_context_token: float
    decode_ms_per_sequence: float
    kv_tokens: int
    kv_bytes_per_token: int
    transfer_bytes_per_s: float
    max_model_len: int

    def step_s(self, plan: StepPlan) -> float:
        """Duration of a step in seconds.

        A chunk costs what it adds to its prompt's polynomial, so that chunks sum to the whole. A
        mixed step reads the weights once: the larger constant counts, the other terms add up.
        """
        fixed = marginal = 0.0
        if plan.prefill_sequences:
            fixed = self.prefill_ms
            for chunk in plan.chunks:
                if not chunk.decode:
                    start, end = chunk.start, chunk.start + chunk.count
                    marginal += self.prefill_ms_per_token * chunk.count
                    marginal += self.prefill_ms_per_token_squared * (end * end - start * start)
        if plan.decode_sequences:
            fixed = max(fixed, self.decode_ms)
            marginal += self.decode_ms_per_context_token * plan.decode_context_tokens
            marginal += self.decode_ms_per_sequence * plan.decode_sequences
        return (fixed + marginal) / 1000.0


PROFILES: dict[str, SimProfile] = {
    "llama-70b-h100-tp4": SimProfile(
        prefill_ms=3.92,
        prefill_ms_per_token=0.1066,
        prefill_ms_per_token_squared=1e-6,
        decode_ms=28.8,
        decode_ms_per_context_token=9.4e-5,
        decode_ms_per_sequence=0.2825,
        kv_tokens=480_000,
        kv_bytes_per_token=327_680,  # 80 layers · 2 · 8 kv heads · 128 · 2 bytes
        transfer_bytes_per_s=50e9,  # one 400 Gb/s port
        max_model_len=8192,
    ),
    "opt-13b-a100": SimProfile(
        prefill_ms=18.10,
        prefill_ms_per_token=0.1019,
        prefill_ms_per_token_squared=7.12e-6,
        decode_ms=19.93,
        decode_ms_per_context_token=6.27e-4,
        decode_ms_per_sequence=0.0385,
        kv_tokens=66_144,
        kv_bytes_per_token=819_200,  # 40 layers · 2 · 40 heads · 128 · 2 bytes
        transfer_bytes_per_s=25e9,  # PCIe 4 x16
        max_model_len=2048,
    ),
}
