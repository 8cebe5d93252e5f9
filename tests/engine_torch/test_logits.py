"""The trunk's logits beside Hugging Face's own, for each architecture that the engine runs."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import transformers  # noqa: E402

from argosy.model_config import ARCHITECTURES  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.model.attention.paged import PagedPool, PoolShape  # noqa: E402
from argosy_engine.model.loader import load_weights  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.model.trunk import Trunk  # noqa: E402

BLOCK = 8
CPU = torch.device("cpu")
LENGTH = 45
CHUNKS = (13, 24, *[1] * (LENGTH - 37))  # a prompt in two parts, then decodes
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
ONE = "MistralForCausalLM window of one"
CASES = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3},
    "LlamaForCausalLM tied": {"tie_word_embeddings": True},
    "MistralForCausalLM": {"sliding_window": None, "head_dim": 24},
    "MistralForCausalLM window": {"sliding_window": 7},
    ONE: {"sliding_window": 1},
    "MistralForCausalLM window longer than the text": {"sliding_window": 46},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen2ForCausalLM window switched off": {"sliding_window": 5},
    "Qwen2ForCausalLM window in the second layer": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "Qwen3ForCausalLM": {"head_dim": 32},
    "Qwen3ForCausalLM window in the first layer": {
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Qwen2ForCausalLM yarn": {"rope_parameters": YARN},
    "LlamaForCausalLM yarn": {
        "rope_parameters": YARN
        | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3}
    },
    "MistralForCausalLM yarn and window": {
        "rope_parameters": YARN | {"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        "sliding_window": 20,
    },
}


def reference(case, folder):
    """A random model of two layers, written to `folder`; every tensor matters to its logits."""
    kind = getattr(transformers, case.split()[0])
    options = {
        "vocab_size": 151,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        **CASES[case],
    }
    made = kind(kind.config_class(**options)).float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in made.parameters():
            # Matrices that carry the context on; norms and biases that are not all the same.
            spread = 2.0 * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.3
            weight.normal_(1.0 if weight.dim() == 1 else 0.0, spread, generator=generator)
    made.save_pretrained(folder)
    return made


def logits_of(folder, tokens):
    """All rows' logits, computed in CHUNKS through a paged pool with blocks in disorder."""
    spec = read_spec(folder)
    weights = load_weights(folder, spec, torch.float32, CPU)
    trunk = Trunk(spec, weights, max_positions=256)
    shape = PoolShape(
        blocks=9,
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        block_size=BLOCK,
        head_dim=spec.head_dim,
    )
    pool = PagedPool(shape, torch.float32, CPU)
    found, start = [], 0
    for count in CHUNKS:
        chunk = Chunk(
            request_id="r",
            tokens=tokens,
            block_table=to_table([5, 2, 8, 1, 7, 3]),
            start=start,
            count=count,
            samples=True,
            decode=count == 1,
            sampling=SamplingParams(max_tokens=1),
        )
        flat = flatten(step(chunk))
        ids, positions = torch.tensor(flat.token_ids), torch.tensor(flat.positions)
        rows = torch.arange(count)
        found.append(trunk.forward(ids, positions, pool.prepare(flat), pool, rows))
        start += count
    return torch.cat(found)


def step(chunk):
    return StepPlan(
        index=1,
        chunks=(chunk,),
        block_size=BLOCK,
        prefill_tokens=0 if chunk.decode else chunk.count,
        prefill_sequences=int(not chunk.decode),
        decode_sequences=int(chunk.decode),
        decode_context_tokens=chunk.start + 1 if chunk.decode else 0,
        after_idle=False,
    )


def test_t41_every_architecture_is_compared():
    assert {case.split()[0] for case in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_t41_the_trunks_logits_are_hugging_faces(case, tmp_path):
    theirs = reference(case, tmp_path)
    tokens = torch.randint(151, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    found = logits_of(tmp_path, tokens)
    assert expected.std() > 0.5
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    # Sensitive: another first token, or with a window another last one, changes the last row.
    tokens[-1 if "window" in case else 0] += 1
    other = logits_of(tmp_path, [token % 151 for token in tokens])
    assert (other[-1] - expected[-1]).abs().max() > 1e-3


# A cache of transformers keeps the last window - 1 tokens, which it writes as [-window + 1:]: with
# a window of one, all of them. Its logits of a whole text are right, and compared above.
@pytest.mark.parametrize("case", [case for case in CASES if case != ONE])
def test_t44_the_greedy_text_is_what_hugging_faces_generate_writes(case, tmp_path):
    """Each row's likeliest token is the one that follows, so a greedy text is the same."""
    theirs, prompt = reference(case, tmp_path), 25
    tokens = torch.randint(151, (1, prompt), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        written = theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=LENGTH - prompt,
            max_new_tokens=LENGTH - prompt,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0].tolist()
    found = logits_of(tmp_path, written).argmax(-1).tolist()
    assert len(set(written[prompt:])) > 3
    assert found[prompt - 1 : -1] == written[prompt:]


def test_a_token_outside_every_window_changes_nothing_that_follows(tmp_path):
    reference("MistralForCausalLM window", tmp_path)
    tokens = list(range(LENGTH))
    reach = 2 * (7 - 1)  # of two layers
    one = logits_of(tmp_path, tokens)
    other = logits_of(tmp_path, [150, *tokens[1:]])
    changed = (one - other).abs().amax(1)
    assert changed[reach] > 1e-4
    assert changed[reach + 1 :].max() == 0.0
