"""A simulated engine's constants are found again in times that they made."""

import pytest

from argosy_engine.runtime.sim import PROFILES

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from argosy_bench.engine.fit import CONTEXTS, DECODES, PROMPTS, fitted, main  # noqa: E402
from argosy_bench.engine.steps import DESIGNS, TEXTS, chunk_of, decodes_of, plan_of  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402


@pytest.mark.parametrize("preset", sorted(PROFILES))
def test_the_constants_of_a_preset_are_found_in_its_own_steps(preset):
    profile = PROFILES[preset]
    prompts = [1000 * profile.step_s(plan_of((chunk_of(0, 0, length),))) for length in PROMPTS]
    found, error = fitted([(1.0, length, length**2) for length in PROMPTS], prompts)
    wanted = (
        profile.prefill_ms,
        profile.prefill_ms_per_token,
        profile.prefill_ms_per_token_squared,
    )
    assert found == pytest.approx(wanted, rel=1e-6)
    assert error < 1e-9
    grid = [(count, context) for count in DECODES for context in CONTEXTS]
    steps = [1000 * profile.step_s(decodes_of(*one)) for one in grid]
    found, _ = fitted([(1.0, count * context, count) for count, context in grid], steps)
    wanted = (
        profile.decode_ms,
        profile.decode_ms_per_context_token,
        profile.decode_ms_per_sequence,
    )
    assert found == pytest.approx(wanted, rel=1e-6)


def test_a_model_is_measured_and_both_lines_are_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("argosy_bench.engine.fit.PROMPTS", (32, 64, 128))
    monkeypatch.setattr("argosy_bench.engine.fit.DECODES", (1, 4))
    folder = str(write_tiny(tmp_path / "tiny"))
    assert main(["--model", folder, "--dtype", "float32", "--seconds", "0"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("prefill, ms: ")
    assert said[1].startswith("decode step, ms: ")
    assert said[2].endswith(", float32")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_int8_is_scored_on_exists(name: str) -> None:
    assert (DESIGNS / name).is_file()
