"""What one replica of a `sim://` preset can do: constants of published fits.

`core.steps.goals` gives them to the law as a prior, the simulator (`sim`) runs on them.
A real model has none: its prior is a guess from the SLO. The engine is a program of its own and
has the same constants in `argosy_engine/runtime/sim.py`; a test compares the two.
Sources: OPT-13B on an A100 is DistServe's released profile; Llama-70B on four and on eight H100 is
our fit to splitwise-sim's measured table; SmolLM2-135M is Argosy's own engine on one core.
"""

from dataclasses import dataclass

from argosy_law.goals import Profile

SCHEME = "sim://"

PRESETS = {
    "llama-70b-h100-tp4": Profile(
        prefill_base_s=3.92e-3,
        per_prompt_token_s=0.1066e-3,
        per_prompt_token_squared_s=1e-9,
        decode_base_s=28.8e-3,
        per_sequence_s=0.2825e-3,
        per_context_token_s=9.4e-8,
        kv_tokens=480_000,
    ),
    "llama-70b-h100-tp8": Profile(
        prefill_base_s=3.78e-3,
        per_prompt_token_s=0.0899e-3,
        per_prompt_token_squared_s=1.49e-9,
        decode_base_s=29.9e-3,
        per_sequence_s=0.199e-3,
        per_context_token_s=1.79e-7,
        kv_tokens=1_330_000,
    ),
    "opt-13b-a100": Profile(
        prefill_base_s=18.10e-3,
        per_prompt_token_s=0.1019e-3,
        per_prompt_token_squared_s=7.12e-9,
        decode_base_s=19.93e-3,
        per_sequence_s=0.0385e-3,
        per_context_token_s=6.27e-7,
        kv_tokens=66_144,
    ),
    "smollm2-135m-cpu": Profile(
        prefill_base_s=1.61e-3,
        per_prompt_token_s=1.315e-3,
        per_prompt_token_squared_s=6.02e-7,
        decode_base_s=11.28e-3,
        per_sequence_s=1.32e-3,
        per_context_token_s=4.17e-6,
        kv_tokens=93_184,
    ),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica of a preset is made of. The simulator uses it; no law knows it."""

    gpus: int
    kv_bytes_per_token: int
    transfer_bytes_per_s: float
    """How fast KV leaves a prefill replica, and how fast it enters a decode replica."""


MACHINES = {
    "llama-70b-h100-tp4": Machine(4, 327_680, 50e9),
    "llama-70b-h100-tp8": Machine(8, 327_680, 50e9),
    "opt-13b-a100": Machine(1, 819_200, 25e9),
    "smollm2-135m-cpu": Machine(1, 23_040, 1.25e9),  # its core counts as a GPU
}


def prior_of(model_uri: str) -> Profile | None:
    """The preset's constants; None for a real model and for a preset that is not known here."""
    if not model_uri.startswith(SCHEME):
        return None
    return PRESETS.get(model_uri.removeprefix(SCHEME))
