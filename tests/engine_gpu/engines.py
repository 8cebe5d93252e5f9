"""Runners on this machine's GPU, and their steps."""

from argosy_engine.config import EngineConfig
from argosy_engine.core.request import Chunk
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import StepPlan
from argosy_engine.runtime.torch.runner import load

BLOCK = 32


def load_runner(folder, dtype, **options):
    """The runner of a model's folder, as an engine loads it, with room for 8,192 tokens of KV."""
    options = {"kv_cache_tokens": 8192, "block_size": BLOCK} | options
    runner, _ = load(EngineConfig(model=str(folder), served_name="m", dtype=dtype, **options))
    return runner


def chunk_of(tokens, start, count, first_block=1):
    """`count` tokens of a sequence from `start` on, whose blocks follow each other in the pool."""
    blocks = -(-(start + count) // BLOCK)
    return Chunk(
        request_id=str(first_block),
        tokens=list(tokens),
        block_table=list(range(first_block, first_block + blocks)),
        start=start,
        count=count,
        samples=True,
        decode=count == 1,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        n_prompt=len(tokens),
    )


def plan_of(*chunks):
    """The step that computes these chunks."""
    decodes = [chunk for chunk in chunks if chunk.decode]
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=BLOCK,
        prefill_tokens=sum(chunk.count for chunk in chunks if not chunk.decode),
        prefill_sequences=len(chunks) - len(decodes),
        decode_sequences=len(decodes),
        decode_context_tokens=sum(chunk.start + 1 for chunk in decodes),
        after_idle=False,
    )
