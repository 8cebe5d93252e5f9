"""What one replica of a `sim://` preset can do: constants of published fits.

`core.reconcile.targets` gives them to the law as a prior, the simulator runs on them. A real model
has none: its prior is a guess from the SLO. The engine is a program of its own and has the same
constants in `argosy_engine/runtime/sim/profiles.py`; a test compares the two.
Sources: OPT-13B on an A100 is DistServe's released profile; Llama-70B on four H100 is our fit to
splitwise-sim's measured table.
"""

from argosy_operator.core.scaling.goals import Profile

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
    "opt-13b-a100": Profile(
        prefill_base_s=18.10e-3,
        per_prompt_token_s=0.1019e-3,
        per_prompt_token_squared_s=7.12e-9,
        decode_base_s=19.93e-3,
        per_sequence_s=0.0385e-3,
        per_context_token_s=6.27e-7,
        kv_tokens=66_144,
    ),
}


def prior_of(model_uri: str) -> Profile | None:
    """The preset's constants; None for a real model and for a preset that is not known here."""
    if not model_uri.startswith(SCHEME):
        return None
    return PRESETS.get(model_uri.removeprefix(SCHEME))
