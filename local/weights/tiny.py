"""A Llama of two layers with random weights and a tokenizer of its own, for tests: 0.3 MB.

python -m local.weights.tiny --out DIR
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from local.weights.folder import whole_folder, write_json, write_safetensors
from local.weights.smollm2 import shape_of, tensor_sources

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 259,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
SPECIAL = ("<unk>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny(out: Path, seed: int = 0) -> Path:
    """Write the folder `out`; the same seed gives the same weights."""
    shapes = {name: shape_of(name, CONFIG) for name in tensor_sources(CONFIG)}
    with whole_folder(out) as part:
        write_json(part / "config.json", CONFIG)
        write_json(part / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
        names = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "unk_token": SPECIAL[0]}
        write_json(part / "tokenizer_config.json", {**names, "chat_template": TEMPLATE})
        _byte_tokenizer().save(str(part / "tokenizer.json"))
        write_safetensors(part / "model.safetensors", shapes, _weights(shapes, seed), "float32")
    return out


def _weights(shapes: dict[str, tuple[int, ...]], seed: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    for shape in shapes.values():
        values = random.standard_normal(shape, dtype=np.float32)
        # Large enough that the next token depends on the whole context, not only on the last token.
        yield values * 2.5 * shape[1] ** -0.5 if len(shape) == 2 else 1 + 0.1 * values


def _byte_tokenizer() -> Tokenizer:
    """One token per byte, without merges: every text has ids, and half characters occur."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: index for index, word in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a tiny random Llama.")
    parser.add_argument("--out", type=Path, required=True)
    print(write_tiny(parser.parse_args().out))
