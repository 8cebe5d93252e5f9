"""FP8 checkpoints: read as published ones are written, widened or multiplied as they are."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model import fp8  # noqa: E402
from argosy_engine.model.fp8 import Fp8Linear, round_rows  # noqa: E402
from argosy_engine.runtime.torch import runner as torch_runner  # noqa: E402
from argosy_engine.runtime.torch import sources  # noqa: E402
from tests.engine_torch.test_tensor_parallel import loaded, write_model  # noqa: E402

CPU = torch.device("cpu")
BLOCK = (24, 40)
"""Divides no matrix of the tiny model, so that ranks cut within blocks; published ones have 128."""
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}


def compressed(**weights):
    group = {"targets": ["Linear"], "weights": WEIGHTS | weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS = {
    "fp8, static": (
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        "weight_scale",
        None,
    ),
    "fp8, blocks": (
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": list(BLOCK),
            "modules_to_not_convert": ["lm_head"],
        },
        "weight_scale_inv",
        BLOCK,
    ),
    "compressed, tensor": (compressed(strategy="tensor"), "weight_scale", None),
    "compressed, channel": (compressed(strategy="channel"), "weight_scale", (1, 1 << 20)),
    "compressed, blocks": (
        compressed(strategy="block", block_structure=list(BLOCK)),
        "weight_scale",
        BLOCK,
    ),
}
"""config.json's member, the scales' name, and the rows and columns that share one; None: all."""
BY_ROWS = [name for name in FORMATS if "blocks" not in name]


def rounded(weight, block):
    """(codes, scales, what they are as float32) of `weight`."""
    rows, columns = block or weight.shape
    codes, wide = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    scales = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    for i, j in itertools.product(*map(range, scales.shape)):
        at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
        scales[i, j] = weight[at].abs().max() / 448
        codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
        wide[at] = codes[at].float() * scales[i, j]
    return codes, scales if block else scales.reshape(()), wide


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write(folder, form, **options):
    """(FP8 checkpoint, the same numbers in float32, the numbers before they were rounded)."""
    quantization, name, block = FORMATS[form]
    exact = write_model(folder / "exact", **options)
    narrow, wide = (write_model(folder / kind, **options) for kind in ("fp8", "wide"))
    change(narrow, quantization_config=quantization)
    tensors = load_file(exact / "model.safetensors")
    codes, floats = dict(tensors), dict(tensors)
    for at, weight in tensors.items():
        if at.endswith("proj.weight") and not at.startswith("model.layers.1.self_attn.v"):
            scale = at.removesuffix("weight") + name
            codes[at], codes[scale], floats[at] = rounded(weight, block)
            codes[at.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
    save_file(codes, narrow / "model.safetensors")
    save_file(floats, wide / "model.safetensors")
    return narrow, wide, exact


def config_of(folder, **options):
    common = {"compute": "torch", "dtype": "float32", "threads": 1, "kv_cache_tokens": 512}
    return EngineConfig(model=str(folder), served_name="m", **common | options)


def start(folder, **options):
    return torch_runner.load(config_of(folder, **options))[0]


def logits_of(runner, count=40):
    """Of each token of a prompt."""
    chunk = Chunk(
        request_id="r",
        tokens=[5 + (at * at * 7) % 240 for at in range(40)][:count],
        block_table=to_table([7, 2]),
        start=0,
        count=count,
        samples=True,
        decode=False,
        sampling=SamplingParams(max_tokens=1),
    )
    plan = StepPlan(
        index=1,
        chunks=(chunk,),
        block_size=32,
        prefill_tokens=count,
        prefill_sequences=1,
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=True,
    )
    flat = flatten(plan)
    flat.sample_rows[:] = range(count)
    return runner.trunk.logits(flat, runner._pool).float().clone()


def difference(found, right):
    """Root of the mean square, over that of `right`."""
    return float((found - right).norm() / right.norm())


ARCHITECTURES = {
    "Llama": {"architectures": ["LlamaForCausalLM"]},
    "Qwen2": {"architectures": ["Qwen2ForCausalLM"]},  # with biases
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_cpu_computes_an_fp8_checkpoint_as_its_numbers_in_float(tmp_path, form, architecture):
    narrow, wide, exact = write(tmp_path, form, **ARCHITECTURES[architecture])
    found, right = logits_of(start(narrow)), logits_of(start(wide))
    assert difference(found, right) < 1e-6
    assert 1e-3 < difference(found, logits_of(start(exact))) < 0.3  # what rounding weights costs


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}], ids=["plain", "int8"])
def test_the_native_step_computes_fp8_checkpoints_too(tmp_path, options):
    narrow, wide, _ = write(tmp_path, "fp8, blocks")
    found, right = (start(one, compute="native", **options) for one in (narrow, wide))
    assert difference(logits_of(found), logits_of(right)) < 1e-6


@pytest.mark.parametrize("form", ["fp8, static", "fp8, blocks", "compressed, channel"])
def test_scales_follow_the_rows_and_columns_of_a_rank(tmp_path, form):
    narrow, wide, _ = write(tmp_path, form)
    with loaded(config_of(narrow, tensor_parallel_size=2)) as two:
        found = logits_of(two)
    assert difference(found, logits_of(start(wide))) < 1e-5


# ----------------------------------------------------------------- products in FP8


@pytest.fixture
def multiplies(monkeypatch):
    """A device that multiplies FP8: torch does so on a CPU, too, and is not asked to as a rule."""
    monkeypatch.setattr(sources, "why_not", lambda *_: "")


@pytest.mark.usefixtures("multiplies")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", BY_ROWS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_in_fp8_are_near_those_in_float(tmp_path, form, architecture, dtype):
    narrow, wide, _ = write(tmp_path, form, **ARCHITECTURES[architecture])
    runner = start(narrow, dtype=dtype)
    layers = runner.trunk.weights.layers
    held = [isinstance(one, Fp8Linear) for one in (layers[0].qkv, layers[0].out, layers[1].down)]
    assert held == [True] * 3
    assert not isinstance(layers[1].qkv, Fp8Linear)  # its v is not FP8 in the checkpoint
    assert difference(logits_of(runner), logits_of(start(wide))) < 0.2


@pytest.mark.usefixtures("multiplies")
def test_a_token_is_rounded_by_itself(tmp_path):
    narrow, _, _ = write(tmp_path, "fp8, static")
    runner = start(narrow)
    one, more = logits_of(runner, 9), logits_of(runner, 40)
    assert torch.equal(one.argmax(-1), more[:9].argmax(-1))
    assert difference(one, more[:9]) < 1e-6


@pytest.mark.usefixtures("multiplies")
def test_blocks_are_widened_where_fp8_is_multiplied(tmp_path, caplog):
    narrow, wide, _ = write(tmp_path, "compressed, blocks")
    caplog.set_level("INFO")
    assert difference(logits_of(start(narrow)), logits_of(start(wide))) < 1e-6
    assert "widened to torch.float32" in caplog.text
    assert "not for blocks" in caplog.text


@pytest.mark.usefixtures("multiplies")
def test_a_held_model_takes_the_memory_that_it_says(tmp_path):
    narrow, _, _ = write(tmp_path, "fp8, static", tie_word_embeddings=True)
    tensors = load_file(narrow / "model.safetensors")
    shape = tensors["model.layers.1.self_attn.v_proj.weight"].shape
    codes, scales, _ = rounded(torch.randn(shape), None)
    at = "model.layers.1.self_attn.v_proj.weight"
    save_file(tensors | {at: codes, at + "_scale": scales}, narrow / "model.safetensors")
    source = sources.TrunkSource(narrow)
    source.load(torch.bfloat16, CPU, None, None, dummy=False)
    of_layers = sum(
        one._codes.numel() + 4 * one._scales.numel()
        for layer in source._weights.layers
        for one in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    table = source._weights.embedding.numel() * 2
    # On a CPU the head is a second copy of a tied embedding.
    assert source.weight_bytes(torch.bfloat16, CPU, None) == of_layers + 2 * table


def test_made_up_weights_of_an_fp8_model_are_fp8(tmp_path, multiplies):
    narrow, _, _ = write(tmp_path, "compressed, tensor")
    (narrow / "model.safetensors").unlink()
    runner = start(narrow, load_format="dummy")
    assert isinstance(runner.trunk.weights.layers[0].down, Fp8Linear)
    assert logits_of(runner).isfinite().all()


def test_a_device_is_asked_for_a_product_before_it_gets_the_model(monkeypatch):
    assert fp8.end_of_trial(CPU, torch.bfloat16) == ""
    right = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **b: right(*a, **b) * 1.05)
    assert "wrong by" in fp8.end_of_trial(CPU, torch.bfloat16)

    def refuse(*_, **__):
        raise RuntimeError("only compute capability 9.0 or above\nat line 7")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    said = fp8.end_of_trial(CPU, torch.bfloat16)
    assert said == "only compute capability 9.0 or above"


@given(
    rows=st.lists(
        st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_rounding_keeps_each_number_within_a_sixteenth_or_the_least_step(rows):
    x = torch.tensor(rows)
    found = round_rows(x)
    step = found.scales * 2**-9  # between the smallest codes
    assert found.codes.float().isfinite().all()
    assert ((found.widen(torch.float32) - x).abs() <= x.abs() / 16 + step).all()


def test_a_number_that_is_none_stays_in_its_row():
    x = torch.ones(3, 32)
    x[1, 4], x[2, 5] = float("nan"), float("inf")
    product = Fp8Linear(round_rows(torch.ones(16, 32)))(x)
    assert product.isfinite().all(-1).tolist() == [True, False, False]


# ----------------------------------------------------------------- what cannot be read


def reason_of(folder):
    with pytest.raises(LoadError) as refused:
        start(folder)
    return refused.value.reason, refused.value.message


def test_codes_without_scales_are_refused_with_their_name(tmp_path):
    narrow, _, _ = write(tmp_path, "fp8, static")
    tensors = load_file(narrow / "model.safetensors")
    at = "model.layers.0.mlp.down_proj.weight"
    save_file(
        {k: v for k, v in tensors.items() if k != at + "_scale"}, narrow / "model.safetensors"
    )
    reason, message = reason_of(narrow)
    assert reason == "WeightsInvalid"
    assert f"{at} is FP8 and has neither {at}_scale" in message


def test_scales_of_other_blocks_than_the_config_names_are_refused(tmp_path):
    narrow, _, _ = write(tmp_path, "fp8, blocks")
    change(narrow, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    reason, message = reason_of(narrow)
    assert reason == "WeightsInvalid"
    assert "nor for the blocks that config.json names" in message
