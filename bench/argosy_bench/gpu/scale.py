"""What is measured, of which model, and the model's folder.

`FULL` is for a GPU: a Llama-8B shape, with loads that take minutes. `SMALL` runs the same code on
any machine in a minute; its figures say nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

_LLAMA: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of random tokens, and the values of them that are shown."""

    name: str
    requests: int
    clients: int
    """Each waits for its answer; 0: all requests are sent when they are due."""
    prompt: int
    """Tokens."""
    tokens: int
    """Of the answer."""
    shows: tuple[str, ...]
    """Of `served.values_of`."""
    per_s: float = 0.0
    """Poisson arrivals; 0: all at once."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One size of the whole command."""

    shape: Mapping[str, int]
    """What config.json says of the model's size."""
    families: tuple[str, ...]
    """Architectures whose logits are compared."""
    decodes: tuple[int, ...]
    """Sequences of the decode steps."""
    context: int
    """Tokens that a decode attends to."""
    prompts: tuple[int, ...]
    """Tokens of the prompts that are one step."""
    handovers: tuple[int, ...]
    """Tokens of the prompts that are handed over."""
    streams: Load
    """What the decode engine decodes during handovers under load; it does not end."""
    others: Load
    """Prompts that are handed over meanwhile, likewise: the second token needs their KV."""
    loads: tuple[Load, ...]
    processes: int
    """Of the client: one alone cannot read 20,000 tokens a second."""
    repeats: int
    kv_tokens: int | None
    """Of each engine's pool; None: what fits."""
    read_bytes: int
    """That are read to measure the bandwidth: many times a GPU's caches."""
    side: int
    """Of the square matrices whose product is timed."""


FULL = Scale(
    shape={
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
    },
    families=("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"),
    decodes=(1, 8, 64, 256),
    context=1024,
    prompts=(128, 512, 2048, 8192),
    handovers=(256, 2048, 8000),
    streams=Load("streams", 0, 32, 512, 2048, ()),
    others=Load("others", 0, 4, 1024, 2, ()),
    loads=(
        Load("c1", 6, 1, 512, 128, ("tpot_ms", "ttft_ms")),
        Load("c8", 32, 8, 512, 128, ("tokens_per_s", "tpot_ms")),
        Load("c64", 256, 64, 512, 128, ("tokens_per_s", "tpot_ms", "ttft_ms")),
        Load("burst256", 256, 0, 32, 256, ("tokens_per_s", "tpot_ms")),
        Load("places512", 512, 256, 1024, 128, ("tokens_per_s",)),
        Load("prompt2048", 6, 1, 2048, 1, ("ttft_ms",)),
        Load("prompt8000", 4, 1, 8000, 1, ("ttft_ms",)),
        Load("poisson48", 480, 0, 512, 128, ("tpot_ms", "ttft_ms", "ttft_p90_ms"), 48.0),
    ),
    processes=8,
    repeats=10,
    kv_tokens=None,
    read_bytes=4 << 30,
    side=8192,
)
SMALL = Scale(
    shape={
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 40_000,
    },
    families=("LlamaForCausalLM",),
    decodes=(1, 8),
    context=64,
    prompts=(128,),
    handovers=(100,),
    streams=Load("streams", 0, 4, 32, 512, ()),
    others=Load("others", 0, 2, 64, 2, ()),
    loads=(
        Load("c2", 4, 2, 32, 4, ("tokens_per_s", "tpot_ms", "ttft_ms")),
        Load("poisson9", 6, 0, 32, 4, ("ttft_p90_ms",), 9.0),
    ),
    processes=2,
    repeats=2,
    kv_tokens=4096,
    read_bytes=1 << 20,
    side=64,
)


def write_model(folder: Path, scale: Scale) -> Path:
    """Write a folder without weights: engines draw random ones. The token N is the word `wN`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**_LLAMA, **scale.shape}))
    words = {f"w{token}": token for token in range(scale.shape["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))  # noqa: S106 - a word
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "w1", "eos_token": "w2", "unk_token": "w0"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind | special))
    return folder
