"""Models that the trunk does not know, run by transformers on the paged KV cache."""

import gc
import json
import sys

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import transformers  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.errors import LoadError  # noqa: E402
from argosy_engine.model import huggingface  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.huggingface import TransformersTrunk  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

BLOCK, VOCAB, CPU = 8, 259, torch.device("cpu")
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CASES = {
    # Layernorms with biases, parallel residuals, a quarter of each head turned.
    "GPTNeoXForCausalLM": {"rotary_pct": 0.25},
    # Fused projections, grouped queries, a window.
    "Phi3ForCausalLM": {"num_key_value_heads": 2, "sliding_window": 11},
    # Norms behind attention and MLP, and of whole q and k.
    "Olmo2ForCausalLM": {"num_key_value_heads": 2},
    # Learned positions, Conv1D.
    "GPT2LMHeadModel": {},
    # Experts.
    "MixtralForCausalLM": {
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "sliding_window": None,
    },
}


def write(architecture, folder, **values):
    """A random model of two layers beside a tokenizer; every tensor matters to its logits."""
    kind = getattr(transformers, architecture)
    options = SMALL | CASES.get(architecture, {}) | values
    made = kind(kind.config_class(**options)).float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in made.parameters():
            spread = 2.0 * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.3
            weight.normal_(1.0 if weight.dim() == 1 else 0.0, spread, generator=generator)
    write_tiny(folder)
    made.save_pretrained(folder)
    return made


def trunk_of(folder):
    foreign = huggingface.read(folder)
    return TransformersTrunk(
        foreign.spec, huggingface.load(folder, foreign, torch.float32, CPU, dummy=False)
    )


def pool_of(spec):
    shape = PoolShape(
        blocks=40,
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        block_size=BLOCK,
        head_dim=spec.head_dim,
    )
    pool = PagedPool(shape, torch.float32, CPU)
    pool.memory.normal_()  # what a block held before must not be seen
    return pool


def text(seed, length):
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def chunk(name, tokens, start, count, sampling=None):
    return Chunk(
        request_id=str(name),
        tokens=tokens,
        block_table=to_table((7 + 13 * name + 5 * at) % 39 + 1 for at in range(7)),
        start=start,
        count=count,
        samples=True,
        decode=count == 1,
        sampling=sampling or SamplingParams(max_tokens=1, temperature=0.0),
    )


def plan_of(*chunks):
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=BLOCK,
        prefill_tokens=0,
        prefill_sequences=len(chunks),
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=False,
    )


def reason_of(folder, **options):
    config = EngineConfig(
        model=str(folder), served_name="m", **{"threads": 1, "kv_cache_tokens": 512, **options}
    )
    with pytest.raises(LoadError) as failure:
        load(config)
    return failure.value.reason, failure.value.message


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("architecture", CASES)
def test_chunks_and_decodes_beside_another_text_give_its_own_logits(architecture, tmp_path):
    theirs = write(architecture, tmp_path)
    texts = [text(3, 45), text(4, 41)]
    with torch.inference_mode():
        expected = [theirs(torch.tensor([tokens]), use_cache=False).logits[0] for tokens in texts]
    trunk = trunk_of(tmp_path)
    pool = pool_of(trunk.spec)
    steps = [(13, 0), (24, 30), (1, 6), *[(1, 1)] * 5, (2, 0)]
    done, found = [0, 0], [[], []]
    for counts in steps:
        chunks = []
        for name, count in enumerate(counts):
            if count:
                chunks.append(chunk(name, texts[name], done[name], count))
                done[name] += count
        flat = flatten(plan_of(*chunks))
        flat.sample_rows[:] = range(len(flat.token_ids))
        rows = trunk.logits(flat, pool).split([one.count for one in chunks])
        for one, logits in zip(chunks, rows, strict=True):
            found[int(one.request_id)].append(logits)
    assert done == [45, 41]
    for ours, right in zip(found, expected, strict=True):
        assert right.std() > 0.1
        assert (torch.cat(ours) - right).abs().max() < 1e-5 * right.abs().max()


@pytest.mark.parametrize("architecture", ["GPTNeoXForCausalLM", "Phi3ForCausalLM"])
def test_t44_greedy_texts_are_those_of_generate(architecture, tmp_path):
    theirs = write(architecture, tmp_path)
    prompts = [text(5, 12), text(6, 20)]
    expected = [
        theirs.generate(
            torch.tensor([prompt]), max_new_tokens=15, do_sample=False, eos_token_id=None
        )[0].tolist()
        for prompt in prompts
    ]
    runner, _ = load(
        EngineConfig(model=str(tmp_path), served_name="m", threads=1, kv_cache_tokens=1280,
                     block_size=BLOCK, dtype="float32")
    )  # fmt: skip
    runner.warm_up()
    texts = [list(prompt) for prompt in prompts]
    for step in range(15):
        chunks = [
            chunk(name, tokens, 0, len(tokens)) if not step
            else chunk(name, tokens, len(tokens) - 1, 1)
            for name, tokens in enumerate(texts)
        ]  # fmt: skip
        for tokens, drawn in zip(texts, runner.execute(plan_of(*chunks)).token_ids, strict=True):
            tokens.append(drawn)
    assert texts == expected
    assert runner.facts["dtype"] == "float32"


@pytest.mark.parametrize("architecture", ["", "GPTNeoXForCausalLM"], ids=["trunk", "foreign"])
def test_no_tensor_of_a_load_waits_for_the_garbage_collector(architecture, tmp_path):
    """The engine freezes what exists when the model is loaded: such a tensor would never go."""
    if architecture:
        write(architecture, tmp_path)
    else:
        write_tiny(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), served_name="m", threads=1, kv_cache_tokens=512, dtype="float32"
    )
    gc.collect()
    gc.disable()
    try:
        runner, _ = load(config)
        runner.warm_up()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [tuple(of.shape) for of in gc.garbage if isinstance(of, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    runner.close()
    assert left == []


def test_soft_capped_attention_is_refused_by_name(tmp_path):
    write("Gemma2ForCausalLM", tmp_path, num_key_value_heads=2, head_dim=16)
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert "Gemma2Attention asks for attention with softcap=50.0" in message


def test_code_of_the_folders_own_is_never_run(tmp_path):
    write("GPTNeoXForCausalLM", tmp_path)
    (tmp_path / "code.py").write_text("raise SystemExit('run')")
    change(tmp_path, auto_map={"AutoModelForCausalLM": "code.Model"})
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert "(auto_map), which is never run" in message


@pytest.mark.parametrize(
    ("architecture", "values", "named"),
    [
        ("GPTNeoXForCausalLM", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("GPTNeoXForCausalLM", {"architectures": ["NoSuchModel"]}, "no causal language model"),
        ("GPTNeoXForCausalLM", {"is_encoder_decoder": True}, "text alone"),
        ("Phi3ForCausalLM", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(architecture, values, named, tmp_path):
    write(architecture, tmp_path)
    change(tmp_path, **values)
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert named in message
    assert "set engine.type: vllm, or choose another model" in message


def test_a_model_whose_attention_is_computed_wrongly_is_refused_at_the_start(tmp_path, monkeypatch):
    write("Phi3ForCausalLM", tmp_path)
    right = PagedPool.attend

    def wrong(self, layer, batch, q, window=0, scale=None):
        return right(self, layer, batch, q, window, 2 * (scale or 1.0))

    monkeypatch.setattr(PagedPool, "attend", wrong)
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert "its logits in a trial step are wrong by" in message


def test_missing_tensors_are_not_made_up(tmp_path):
    write("GPTNeoXForCausalLM", tmp_path)
    change(tmp_path, num_hidden_layers=3)
    reason, message = reason_of(tmp_path)
    assert reason == "WeightsInvalid"
    assert "gpt_neox.layers.2" in message
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").touch()
    assert reason_of(tmp_path)[0] == "ModelNotFound"


def test_without_the_extra_the_message_says_what_to_install(tmp_path, monkeypatch):
    write("GPTNeoXForCausalLM", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert "pip install 'argosy[transformers]'" in message


def test_a_window_that_the_layers_do_not_pass_on_is_refused(tmp_path):
    write("GPTNeoXForCausalLM", tmp_path)
    change(tmp_path, sliding_window=64)
    reason, message = reason_of(tmp_path)
    assert reason == "UnsupportedArchitecture"
    assert "sliding_window=0 where config.json has 64" in message
