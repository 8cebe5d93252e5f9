"""The options of both vocabularies, and what is said about wrong ones."""

from dataclasses import replace

import pytest

from argosy_engine.cli import parse
from argosy_engine.errors import LoadError
from argosy_engine.server.serve import _launcher

ALWAYS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]


def parsed(*options):
    return parse([*ALWAYS, *options])


@pytest.mark.parametrize(
    ("vllm", "tensorrt", "value", "field", "meant"),
    [
        ("--max-num-seqs", "--max-batch-size", "9", "max_num_seqs", 9),
        ("--max-num-batched-tokens", "--max-num-tokens", "64", "max_num_batched_tokens", 64),
        ("--max-num-batched-tokens", "--max-num-tokens", "auto", "max_num_batched_tokens", "auto"),
        ("--max-model-len", "--max-seq-len", "128", "max_model_len", 128),
    ],
)
def test_a_limit_has_vllms_name_and_tensorrt_llms(vllm, tensorrt, value, field, meant):
    assert getattr(parsed(vllm, value), field) == meant
    assert getattr(parsed(tensorrt, value), field) == meant


@pytest.mark.parametrize("on_cpu", [False, True])
def test_what_is_written_about_a_steps_tokens_holds_on_each_device(on_cpu):
    assert parsed("--max-num-tokens", "2048").step_tokens(on_cpu=on_cpu) == 2048
    assert parsed("--max-num-tokens", "auto").step_tokens(on_cpu=on_cpu) is None


def test_steps_are_launched_ahead_as_asked_or_as_the_engine_sees_fit():
    assert parsed().async_scheduling is None
    assert parsed("--async-scheduling").async_scheduling is True
    assert parsed("--no-async-scheduling").async_scheduling is False


class Runs:
    """A runner, as far as it launches steps."""

    def __init__(self, launcher):
        self.launcher = launcher


def test_a_gpu_launches_ahead_unless_told_not_to_and_a_simulated_engine_if_told_to():
    gpu = replace(parsed(), load_format="auto")
    asked = {None: [], True: ["--async-scheduling"], False: ["--no-async-scheduling"]}
    simulated = {how: _launcher(parsed(*words), Runs("l")) for how, words in asked.items()}
    assert simulated == {None: None, True: "l", False: None}
    real = {how: _launcher(replace(gpu, async_scheduling=how), Runs("l")) for how in asked}
    assert real == {None: "l", True: "l", False: None}


def test_an_engine_that_cannot_launch_ahead_says_so_if_it_is_told_to():
    config = parsed("--async-scheduling")
    assert _launcher(parsed(), Runs(None)) is None
    assert _launcher(parsed("--no-async-scheduling"), Runs(None)) is None
    with pytest.raises(LoadError, match="leave the option out") as error:
        _launcher(config, Runs(None))
    assert error.value.reason == "BadArgument"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pipeline-parallel-size", "2"), "one process computes all layers of the model"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size must be greater than 0, got 0"),
        (("--gpu-memory-utilization", "1.1"), "write a share above 0 and at most 1, not 1.1"),
        (("--gpu-memory-utilization", "0"), "--gpu-memory-utilization must be greater than 0"),
        (("--max-num-tokens", "many"), "write a whole number or auto, not 'many'"),
        (("--max-num-tokens", "0"), "--max-num-batched-tokens must be greater than 0, got 0"),
        (("--long-prefill-token-threshold", "-1"), "write how many tokens of one prompt a step"),
        (("--batching", "fifo"), "choose from 'chunked', 'chunked_equal'"),
        (("--capacity-policy", "fifo"), "'PAST_FUTURE'"),
        (("--quantization", "int4"), "choose from 'none', 'int8'"),
        (("--quantization", "int8"), "a simulated engine has no weights; leave it out"),
        (("--kv-cache-dtype", "int8"), "choose from 'auto', 'fp8'"),
        (("--kv-cache-dtype", "fp8"), "a simulated engine has no KV; leave it out"),
        (("--sim-output-lengths", "0"), "--sim-output-lengths must be greater than 0, got 0"),
        (("--load-format", "dummy", "--sim-output-lengths", "9"), "or write --model sim:PRESET"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_write(options, said):
    with pytest.raises(LoadError) as error:
        parsed(*options)
    assert error.value.reason == "BadArgument"
    assert said in error.value.message


def test_an_engine_may_have_several_names():
    config = parse(["--model", "sim:opt-13b-a100", "--served-name", "a", "b", "c"])
    assert (config.served_name, config.other_names) == ("a", ("b", "c"))
    assert parsed().other_names == ()
