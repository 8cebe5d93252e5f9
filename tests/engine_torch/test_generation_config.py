"""The advice in generation_config.json: what is taken from it, and what is said in the log."""

import json
import logging

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.sampling import SamplingDefaults, SamplingParams  # noqa: E402
from argosy_engine.model.spec import sampling_defaults  # noqa: E402
from argosy_engine.runtime.torch.logits import penalise_  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

ADVICE = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05}


@pytest.fixture
def tiny(tmp_path):
    return write_tiny(tmp_path / "tiny")


def start(folder):
    options = {"threads": 1, "kv_cache_tokens": 512}
    return load(EngineConfig(model=str(folder), served_name="m", **options))[0]


def test_the_makers_sampling_is_the_default_of_requests(tiny, caplog):
    assert start(tiny).sampling_defaults == SamplingDefaults()
    (tiny / "generation_config.json").write_text(json.dumps({**ADVICE, "do_sample": True}))
    with caplog.at_level(logging.INFO):
        assert start(tiny).sampling_defaults == SamplingDefaults(**ADVICE)
    assert "'temperature': 0.6" in caplog.text


def test_what_cannot_be_honoured_is_said_once_in_the_log(caplog):
    asked = {"temperature": 9, "top_k": "many", "min_p": 2, "max_new_tokens": 2048}
    harmless = {"num_beams": 1, "typical_p": 1.0, "top_p": None, "transformers_version": "5.0"}
    with caplog.at_level(logging.INFO):
        assert sampling_defaults({**asked, **harmless}) == SamplingDefaults()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert all(name in record.getMessage() for name in asked)
    assert not any(name in record.getMessage() for name in harmless)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_a_repetition_penalty_is_hugging_faces(penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 50, generator=generator)
    histories = torch.randint(50, (3, 20), generator=generator)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(histories, logits.clone())
    sampling = [SamplingParams(max_tokens=1, repetition_penalty=penalty)] * 3
    penalise_(logits, sampling, histories.tolist())
    assert torch.allclose(logits, expected)
