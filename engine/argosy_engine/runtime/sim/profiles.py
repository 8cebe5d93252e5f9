"""Timing models of real engines: how long a step takes on them.

Sources: `opt-13b-a100` is DistServe's fitted model of OPT-13B on one A100-80GB.
`llama-70b-h100-tp4` and `…-tp8` are Llama-2-70B on four and eight H100, fitted to the table of
measured times of splitwise-sim; its prompts vary by 22 % around the fit with eight, its steps by
2 %. `smollm2-135m-cpu` is this engine (`python -m argosy_bench.fit` says what was measured).
Prefill of a prompt of L tokens takes a + b·L + c·L²; a decode step of n sequences with Σctx tokens
of context takes a + b·Σctx + c·n.
"""

from dataclasses import dataclass

from argosy_engine.core.step import StepPlan

__all__ = ["PROFILES", "SimProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimProfile:
    """Constants of one model on one machine."""

    prefill_ms: float
    """a of a prefill."""

    prefill_ms_per_token: float
    """b of a prefill."""

    prefill_ms_per_token_squared: float
    """c of a prefill."""

    decode_ms: float
    """a of a decode step."""

    decode_ms_per_context_token: float
    """b of a decode step."""

    decode_ms_per_sequence: float
    """c of a decode step."""

    kv_tokens: int
    """Tokens that the KV pool holds."""

    kv_bytes_per_token: int
    transfer_bytes_per_s: float
    max_model_len: int

    def step_s(self, plan: StepPlan) -> float:
        """Duration of a step in seconds.

        A chunk takes the difference of its prompt's polynomial at its end and at its start, so that
        all chunks together take as long as the whole prompt. A mixed step reads the weights once:
        the larger of the two constants counts, and the other terms add up.
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
    "llama-70b-h100-tp8": SimProfile(
        prefill_ms=3.78,
        prefill_ms_per_token=0.0899,
        prefill_ms_per_token_squared=1.49e-6,
        decode_ms=29.9,
        decode_ms_per_context_token=1.79e-4,
        decode_ms_per_sequence=0.199,
        kv_tokens=1_330_000,  # 90 % of eight times 80 GB, without 140 GB of weights
        kv_bytes_per_token=327_680,
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
    "smollm2-135m-cpu": SimProfile(
        prefill_ms=1.61,
        prefill_ms_per_token=1.315,
        prefill_ms_per_token_squared=6.02e-4,
        decode_ms=11.28,
        decode_ms_per_context_token=4.17e-3,
        decode_ms_per_sequence=1.32,
        kv_tokens=93_184,  # 2 GiB
        kv_bytes_per_token=23_040,  # 30 layers · 2 · 3 kv heads · 64 · 2 bytes
        transfer_bytes_per_s=1.25e9,  # 10 Gb/s
        max_model_len=8192,
    ),
}
