"""The seam to whatever computes: torch on CPU or GPU, or the timing model.

The engine thread makes a runner, calls `warm_up` once, then `execute` step by step. The KV thread
calls `read_blocks` and `write_blocks` meanwhile, only ever on blocks that no step touches (leased
ones, or ones promised to a pull), so a runner needs no lock around its pool for them.

`load(config)` of `argosy_engine.runtime.sim.runner` and of `argosy_engine.runtime.torch.runner`
returns `(Runner, Tokenizer)` and raises `argosy_engine.errors.LoadError`; only the chosen one is
imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.core.step import StepOutput, StepPlan

__all__ = ["NULL_BLOCK", "KvLayout", "Runner"]

NULL_BLOCK = 0
"""Block id 0 belongs to nobody: padded rows point at it. The scheduler hands out 1 … num_blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """What both ends of a KV transfer must agree on.

    `fingerprint` is readable text (model, layers, kv heads, head dim, dtype, block size, layout
    version); two engines exchange KV only when the texts are equal.
    """

    fingerprint: str
    block_size: int  # tokens a block
    num_blocks: int  # usable ones; the runner holds one more, NULL_BLOCK
    block_bytes: int  # bytes of one block as counted in metrics
    wire_block_bytes: int  # bytes of one block from `read_blocks`; 0 for the timing model
    simulated_bytes_per_s: float | None = None  # set: a pull lasts n · block_bytes / this, no less

    @property
    def capacity_tokens(self) -> int:
        return self.block_size * self.num_blocks


class Runner(Protocol):
    """Computes steps over a paged KV pool. Only `execute` and `warm_up` may be slow."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence unless the request says `ignore_eos`."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 … vocab_size - 1; one beyond would fail its whole step."""
        ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """For requests that do not say how their tokens are to be chosen."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        ...

    @property
    def facts(self) -> dict[str, str]:
        """Labels of `argosy_engine_info`: `cpu_isa` and `dtype`, empty where they mean nothing."""
        ...

    def kv_layout(self) -> KvLayout:
        """The pool's shape; constant once the runner exists."""
        ...

    def warm_up(self) -> None:
        """Touch memory, build kernels, run the largest step; called once, before /ready."""
        ...

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step to its end. Raising fails every request of the plan, and no other."""
        ...

    def read_blocks(self, block_ids: Sequence[int]) -> memoryview:
        """`len(block_ids) · wire_block_bytes` bytes, block-major. Called on the KV thread."""
        ...

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Inverse of `read_blocks`; the length was checked. Called on the KV thread."""
        ...

    def close(self) -> None:
        """Free what the process would not."""
        ...
