"""Real weights: a sensible answer, and the same one from prefill and decode apart."""

import pytest

from local.weights.smollm2 import complete, default_out
from tests.engine_torch.engines import engine

pytestmark = [pytest.mark.torch, pytest.mark.slow]
MODEL = default_out()
PROMPT = "The capital of France is"


@pytest.mark.skipif(not complete(MODEL), reason="no weights: python -m local.weights.smollm2")
def test_the_capital_of_france_is_paris_apart_and_together(tmp_path):
    with (
        engine(MODEL, "prefill", tmp_path / "p.log") as prefill,
        engine(MODEL, "decode", tmp_path / "d.log") as decode,
        engine(MODEL, "colocated", tmp_path / "c.log") as colocated,
    ):
        apart = decode.complete(PROMPT, 12, prefill)
        assert apart == colocated.complete(PROMPT, 12)
        assert "Paris" in apart
        assert decode.metric('argosy_kv_transfer_seconds_count{side="receive"') == 1


@pytest.mark.skipif(not complete(MODEL), reason="no weights: python -m local.weights.smollm2")
def test_the_native_step_writes_the_text_that_torch_writes(tmp_path):
    texts = []
    for compute in ("torch", "native"):
        log = tmp_path / f"{compute}.log"
        with engine(MODEL, "colocated", log, "--compute", compute) as one:
            texts.append(one.complete(PROMPT, 40))
            isa = "native" if compute == "native" else ""
            assert one.metric(f'argosy_engine_info{{cpu_isa="{isa}') == 1
    assert texts[0] == texts[1]
