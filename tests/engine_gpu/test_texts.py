"""Texts of engines on one GPU: with and without steps ahead and graphs, together and apart."""

from functools import partial

import pytest

from local.weights.tiny import write_tiny
from tests.engine_torch import engines

pytestmark = pytest.mark.torch
PROMPTS = ("hello world", "x", "The quick brown fox jumps over the lazy dog, again and again. " * 3)
engine = partial(engines.engine, within_s=300.0)
"""Its first start compiles the kernels."""
RECEIVED = 'argosy_kv_transfer_seconds_count{side="receive"}'


@pytest.fixture(scope="module")
def model(gpu, tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("texts") / "tiny")


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    with engine(model, "colocated", tmp_path_factory.mktemp("alone") / "log") as started:
        yield started


@pytest.mark.parametrize("without", [["--no-async-scheduling"], ["--cuda-graphs", "off"]], ids=str)
def test_a_text_is_the_same_without_steps_ahead_and_without_graphs(model, alone, tmp_path, without):
    sampled = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
    with engine(model, "colocated", tmp_path / "log", *without) as other:
        for prompt in PROMPTS:
            for more in ({}, sampled):
                assert alone.complete(prompt, 64, **more) == other.complete(prompt, 64, **more)


def test_a_text_is_the_same_apart_and_together(model, alone, tmp_path):
    with (
        engine(model, "prefill", tmp_path / "p") as prefill,
        engine(model, "decode", tmp_path / "d") as decode,
    ):
        apart = [decode.complete(prompt, 64, prefill) for prompt in PROMPTS]
        received = decode.metric(RECEIVED)
    assert apart == [alone.complete(prompt, 64) for prompt in PROMPTS]
    assert received == len(PROMPTS)
