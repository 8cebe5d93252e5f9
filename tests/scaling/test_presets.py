"""The law's priors for `sim://` presets are the constants that the simulated engines keep."""

import pytest

from argosy_engine.runtime.sim import PROFILES
from argosy_law.estimate.capacity import MACHINES, PRESETS, prior_of
from argosy_operator.core.steps.goals import goals_of
from tests.scaling.demo import SPEC


def test_law_and_engine_know_the_same_presets() -> None:
    assert set(PRESETS) == set(MACHINES) == set(PROFILES)


@pytest.mark.parametrize("preset", sorted(PROFILES))
def test_a_preset_has_the_same_constants_in_law_and_engine(preset: str) -> None:
    law, engine = PRESETS[preset], PROFILES[preset]
    assert law.prefill_base_s * 1e3 == pytest.approx(engine.prefill_ms)
    assert law.per_prompt_token_s * 1e3 == pytest.approx(engine.prefill_ms_per_token)
    squared = law.per_prompt_token_squared_s * 1e3
    assert squared == pytest.approx(engine.prefill_ms_per_token_squared)
    assert law.decode_base_s * 1e3 == pytest.approx(engine.decode_ms)
    assert law.per_sequence_s * 1e3 == pytest.approx(engine.decode_ms_per_sequence)
    assert law.per_context_token_s * 1e3 == pytest.approx(engine.decode_ms_per_context_token)
    assert law.kv_tokens == engine.kv_tokens


@pytest.mark.parametrize("preset", sorted(PROFILES))
def test_a_preset_moves_kv_alike_in_simulator_and_engine(preset: str) -> None:
    simulated, engine = MACHINES[preset], PROFILES[preset]
    assert simulated.kv_bytes_per_token == engine.kv_bytes_per_token
    assert simulated.transfer_bytes_per_s == engine.transfer_bytes_per_s


def test_only_a_known_preset_gives_a_prior() -> None:
    assert goals_of(SPEC).prior is PRESETS["llama-70b-h100-tp4"]
    assert prior_of("pvc://weights/llama") is None
    assert prior_of("sim://unheard-of") is None
