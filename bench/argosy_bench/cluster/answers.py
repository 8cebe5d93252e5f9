"""Requests for real weights and their exact answers, which Hugging Face's own model computes.

    python -m argosy_bench.cluster.answers FOLDER FILE [COUNT]

Writes the tiny test weights to FOLDER and the requests to FILE, which `requests.asks_in` reads. A
prompt is left out if two tokens were nearly as likely at any step of its answer: then the order of
additions, which differs between a batch and one request alone, decides which one is greater.
"""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from argosy_engine.text.hf_tokenizer import HfTokenizer
from local.weights.tiny import write_tiny

COUNT = 1000
_PROMPTS_OF_A_LENGTH = 50
"""They are computed in one batch, which needs no padding."""
_LENGTHS = (8, 700)
"""Tokens of a prompt, which are bytes here."""
_TOKENS = (4, 48)
_LEAST_LEAD = 1e-3
"""Of the likeliest token over the second, in logits; float32 errs by a hundredth of that."""


def prompts(draw: random.Random, count: int, length: int) -> list[str]:
    """Different texts of so many bytes."""
    letters = "abcdefghijklmnopqrstuvwxyz ,."
    return ["".join(draw.choices(letters, k=length)) for _ in range(count)]


def answers(model: Any, tokenizer: HfTokenizer, texts: list[str]) -> list[dict[str, object]]:
    """The greedy answers to prompts of one length, apart from those that are nearly undecided."""
    ids = [tokenizer.encode(text) for text in texts]
    _, most = _TOKENS
    with torch.no_grad():
        made = model.generate(
            torch.tensor(ids),
            attention_mask=torch.ones(len(ids), len(ids[0]), dtype=torch.long),
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    best = torch.stack(made.scores).topk(2, dim=-1).values
    leads = (best[..., 0] - best[..., 1]).min(dim=0).values.tolist()
    found = []
    for index, (text, prompt) in enumerate(zip(texts, ids, strict=True)):
        if leads[index] >= _LEAST_LEAD:
            tokens = random.Random(text).randint(*_TOKENS)  # noqa: S311 - repeatable
            answer = made.sequences[index, len(prompt) : len(prompt) + tokens].tolist()
            written = tokenizer.new_detokenizer(prompt)
            shown = "".join(written.push(token) for token in answer) + written.flush()
            found.append(
                {"prompt": text, "prompt_tokens": len(prompt), "tokens": tokens, "text": shown}
            )
    return found


def write(folder: Path, file: Path, count: int) -> None:
    """Write the weights, and at least so many requests."""
    draw = random.Random(0)  # noqa: S311 - repeatable
    torch.set_num_threads(1)
    model: Any = LlamaForCausalLM.from_pretrained(write_tiny(folder), dtype=torch.float32)
    tokenizer, known = HfTokenizer(folder), list[dict[str, object]]()
    while len(known) < count:
        texts = prompts(draw, _PROMPTS_OF_A_LENGTH, draw.randint(*_LENGTHS))
        known += answers(model, tokenizer, texts)
    draw.shuffle(known)
    assert all(one["text"] != other["text"] for one, other in pairwise(known))
    file.write_text(json.dumps(known))


if __name__ == "__main__":
    where, written_to, *most_asked = sys.argv[1:]
    write(Path(where), Path(written_to), int(most_asked[0]) if most_asked else COUNT)
