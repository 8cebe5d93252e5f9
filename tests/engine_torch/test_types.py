"""The types of checkpoints and of steps: which one an engine takes, how near its logits are."""

import json

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.runtime.cpu import Cpu  # noqa: E402
from argosy_engine.runtime.torch import runner as torch_runner  # noqa: E402
from argosy_engine.runtime.torch import sources  # noqa: E402
from argosy_engine.runtime.torch.pool import kv_type, pool_shape  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.test_tensor_parallel import loaded  # noqa: E402

TOKENS = [5 + (at * at * 7) % 240 for at in range(40)]
CHUNKS = (13, 22, *[1] * 5)  # a prompt in two parts, then decodes
FLOAT16 = 1e-2
"""Of the largest logit: a float16 has 11 bits."""


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


@pytest.fixture
def tiny(tmp_path):
    return write_tiny(tmp_path / "tiny")


def config_of(folder, **options):
    common = {"compute": "torch", "threads": 1, "kv_cache_tokens": 512, "block_size": 16}
    return EngineConfig(model=str(folder), served_name="m", **common | options)


def start(folder, **options):
    return torch_runner.load(config_of(folder, **options))[0]


def plan_of(chunk):
    return StepPlan(
        index=1,
        chunks=(chunk,),
        block_size=16,
        prefill_tokens=chunk.count,
        prefill_sequences=1,
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=True,
    )


def chunks_of(sampling):
    start = 0
    for count in CHUNKS:
        yield Chunk(
            request_id="r",
            tokens=TOKENS[: start + count],
            block_table=to_table([7, 2, 5]),
            start=start,
            count=count,
            samples=True,
            decode=count == 1,
            sampling=sampling,
            n_prompt=start + count,
        )
        start += count


def logits_of(runner):
    """Of the last token of each of CHUNKS, in float32."""
    params = SamplingParams(max_tokens=1)
    steps = (flatten(plan_of(chunk)) for chunk in chunks_of(params))
    return torch.cat([runner.trunk.logits(flat, runner._pool).float() for flat in steps])


def difference(found, right):
    """The largest, over the largest logit."""
    return float((found - right).abs().max() / right.abs().max())


# ----------------------------------------------------------------- float16


def test_logits_in_float16_are_near_those_in_float32(tiny):
    narrow = start(tiny, dtype="float16")
    assert narrow.kv_layout().dtype == "float16"
    assert difference(logits_of(narrow), logits_of(start(tiny, dtype="float32"))) < FLOAT16


def test_engines_of_two_types_of_16_bits_exchange_no_kv(tiny):
    one, other = (start(tiny, dtype=name).kv_layout() for name in ("float16", "bfloat16"))
    assert one.block_bytes == other.block_bytes
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("penalty", [0.01, 100.0])
def test_a_penalty_beyond_the_range_of_float16_fails_no_request(tiny, penalty):
    runner = start(tiny, dtype="float16")
    runner.trunk.weights.embedding.mul_(64)  # logits of about a thousand
    runner.trunk.weights.norm.mul_(64)
    params = SamplingParams(max_tokens=1, temperature=0.0, repetition_penalty=penalty)
    (chunk, *_) = chunks_of(params)
    out = runner.execute(plan_of(chunk))
    assert out.failed == {}


def test_two_ranks_compute_in_float16_as_one_does(tiny):
    with loaded(config_of(tiny, dtype="float16", tensor_parallel_size=2)) as two:
        found = logits_of(two)
    assert two.kv_layout().dtype == "float16"
    assert difference(found, logits_of(start(tiny, dtype="float16"))) < FLOAT16


@pytest.mark.parametrize(
    ("checkpoint", "cpu", "taken"),
    [
        ("float16", None, torch.float16),
        ("bfloat16", None, torch.bfloat16),
        ("float32", None, torch.float32),
        ("float16", Cpu("", bfloat16_faster=True), torch.bfloat16),
        ("float16", Cpu("", bfloat16_faster=False), torch.float32),
        ("float32", Cpu("", bfloat16_faster=True), torch.float32),
    ],
)
def test_auto_is_the_checkpoints_type_on_a_gpu_and_a_fast_one_on_a_cpu(
    tiny, checkpoint, cpu, taken
):
    """No CPU: a GPU computes."""
    spec = sources.TrunkSource(change(tiny, torch_dtype=checkpoint)).spec
    assert torch_runner._dtype(config_of(tiny), spec, cpu, None) is taken


@pytest.mark.parametrize("option", [{"compute": "native"}, {"quantization": "int8"}])
@pytest.mark.parametrize("beyond", [{"dtype": "float16"}, {"kv_cache_dtype": "fp8"}])
def test_what_the_native_step_does_not_do_is_refused_beside_what_it_alone_does(
    tiny, option, beyond
):
    with pytest.raises(LoadError) as refused:
        start(tiny, **{"compute": "auto"} | beyond | option)
    assert refused.value.reason == "BadArgument"
    ((name, value),) = beyond.items()
    assert f"does not do --{name.replace('_', '-')} {value}" in refused.value.message


@pytest.mark.parametrize("beyond", [{"dtype": "float16"}, {"kv_cache_dtype": "fp8"}])
def test_torch_computes_what_the_native_step_does_not_do(tiny, beyond):
    runner = start(tiny, compute="auto", **beyond)
    assert "native" not in runner.facts["cpu_isa"]
    runner.warm_up()


# ----------------------------------------------------------------- KV in FP8


def test_kv_in_fp8_takes_a_quarter_of_float32_and_half_of_bfloat16(tiny):
    wide, half = (start(tiny, dtype=name).kv_layout() for name in ("float32", "bfloat16"))
    narrow = start(tiny, dtype="bfloat16", kv_cache_dtype="fp8").kv_layout()
    assert (wide.block_bytes, half.block_bytes) == (4 * narrow.block_bytes, 2 * narrow.block_bytes)
    assert narrow.dtype == "float8_e4m3fn"
    assert narrow.fingerprint not in (wide.fingerprint, half.fingerprint)


def test_a_pool_of_as_much_memory_holds_twice_the_tokens_in_fp8(tiny):
    spec = sources.TrunkSource(tiny).spec
    held = []
    for kind in ("auto", "fp8"):
        config = config_of(
            tiny, kv_cache_tokens=None, kv_cache_dtype=kind, gpu_memory_utilization=0.5
        )
        dtype = kv_type(config, torch.bfloat16)
        held.append(pool_shape(config, spec, dtype, torch.device("cpu"), 10_000_000).blocks - 1)
    assert held[1] in (2 * held[0], 2 * held[0] + 1)


def test_logits_with_kv_in_fp8_are_near_those_without(tiny):
    found, right = (
        logits_of(start(tiny, dtype="float32", kv_cache_dtype=kind)) for kind in ("fp8", "auto")
    )
    assert 1e-4 < difference(found, right) < 0.2


def test_blocks_in_fp8_come_back_from_the_host_as_they_were(tiny):
    runner = start(tiny, kv_cache_dtype="fp8")
    right = logits_of(runner)
    before = runner._pool.memory.view(torch.uint8).clone()
    runner.reserve_host(3)
    runner.to_host(((7, 0), (2, 1), (5, 2)))
    runner._pool.memory.zero_()
    runner.from_host(((7, 0), (2, 1), (5, 2)))
    assert torch.equal(runner._pool.memory.view(torch.uint8)[[2, 5, 7]], before[[2, 5, 7]])
    assert torch.equal(logits_of(runner), right)


def test_two_ranks_have_kv_in_fp8_as_one_has(tiny):
    options = {"dtype": "float32", "kv_cache_dtype": "fp8"}
    with loaded(config_of(tiny, tensor_parallel_size=2, **options)) as two:
        found, layout = logits_of(two), two.kv_layout()
    one = start(tiny, **options)
    assert layout.fingerprint == one.kv_layout().fingerprint
    # A sum in another order may round a number the other way.
    assert difference(found, logits_of(one)) < 0.1
