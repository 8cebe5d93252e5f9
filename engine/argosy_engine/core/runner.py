"""What computes the steps: torch on CPU or GPU, or the timing model.

The engine thread loads a runner, calls `warm_up` once, then `execute` step by step. Meanwhile the
KV service's threads call `outgoing` and `incoming`, only on blocks that no step writes: those of
leases, as far as they are ready, and those of a pull. So a runner needs no lock around its pool.

`load(config)` of `argosy_engine.runtime.sim` and of `argosy_engine.runtime.torch.runner`
returns `(Runner, Tokenizer)` and raises LoadError. Only the chosen one is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.core.step import Copies, StepOutput, StepPlan
from argosy_engine.core.tokenizer import Grammars

NULL_BLOCK = 0
"""Block id 0 is never allocated: padding points at it. The scheduler allocates 1 … num_blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """What both ends of a KV transfer must agree on."""

    fingerprint: str
    """Readable text: model, layers, KV heads, head dim, dtype, block size, layout version. Two
    engines exchange KV only if their texts are equal."""

    block_size: int
    """Tokens of a block."""

    num_blocks: int
    """Usable blocks; the runner holds one more, NULL_BLOCK."""

    block_bytes: int
    """Bytes of a block, as counted in metrics: each KV head once."""

    wire_block_bytes: int
    """Bytes of a block in `outgoing`; 0 for the timing model, which has none."""

    dtype: str = ""
    """Type of the pool's numbers; empty for the timing model."""

    tp: int = 1
    """Tensor-parallel ranks that the KV heads are split over."""

    copies: int = 1
    """Ranks that hold the same KV head: several where there are fewer heads than ranks. The memory
    of a block is `block_bytes * copies`."""

    simulated_bytes_per_s: float | None = None
    """Set for the timing model: a pull of n blocks lasts at least n · block_bytes / this."""

    @property
    def capacity_tokens(self) -> int:
        return self.block_size * self.num_blocks


class HostBlocks(Protocol):
    """Bytes of some blocks in the host's memory, `wire_block_bytes` each, in order."""

    @property
    def views(self) -> Sequence[memoryview]:
        """Together they are the bytes of all blocks."""
        ...

    def land(self) -> None:
        """The views are filled and verified: begin to bring their bytes to the blocks."""
        ...

    def wait(self) -> None:
        """Wait for the copy that was begun; nothing else may use its target before."""
        ...


@dataclass(frozen=True, slots=True)
class InPlace:
    """`HostBlocks` that are the pool itself: nothing is copied."""

    views: Sequence[memoryview] = ()

    def land(self) -> None:
        """The blocks have these bytes already."""

    def wait(self) -> None:
        """No copy was begun."""


class Launched(Protocol):
    """A step that was begun."""

    def result(self) -> StepOutput:
        """Wait for its end. An exception fails every request of its plan; it has ended, too."""
        ...


class Launcher(Protocol):
    """Begins steps, which run one after another in that order."""

    def launch(self, plan: StepPlan, after: Launched | None) -> Launched:
        """Begin a step; where it can, this returns before the step has ended.

        With `plan.drawn`, `after` is the step before, whose result may not have been read: its
        draws are this step's tokens. Nothing reads `plan` after the return.
        """
        ...


class Runner(Protocol):
    """Computes steps over a paged KV pool. Only `execute` and `warm_up` may be slow."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence unless the request says `ignore_eos`."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 … vocab_size - 1; a larger one would fail its whole step."""
        ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """For parameters that a request leaves out."""
        ...

    @property
    def knows_likely(self) -> bool:
        """It computes probabilities, and tells those that a request asks for."""
        ...

    @property
    def on_cpu(self) -> bool:
        """A CPU computes the steps; false for a GPU and for the timing model."""
        ...

    @property
    def grammars(self) -> Grammars | None:
        """What answers can be held to; None if the runner draws no tokens of its own."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        ...

    @property
    def facts(self) -> dict[str, str]:
        """Labels of `argosy_engine_info`: `cpu_isa` and `dtype`, empty where they do not apply."""
        ...

    def kv_layout(self) -> KvLayout:
        """The pool's shape; constant once the runner exists."""
        ...

    def warm_up(self) -> None:
        """Touch memory, build kernels, run the largest step; called once, before /ready."""
        ...

    @property
    def launcher(self) -> Launcher | None:
        """Begins a step while the last one runs; None where `execute` has to wait for each."""
        ...

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step to its end. An exception fails every request of the plan, and no other."""
        ...

    def reserve_host(self, slots: int) -> None:
        """Make room in the host's memory for so many blocks; called once, before `warm_up`.

        MemoryError. Without it `to_host` and `from_host` are never called.
        """
        ...

    def to_host(self, copies: Copies) -> None:
        """Copy blocks to slots; returns when the blocks may be written to. Between two steps."""
        ...

    def from_host(self, copies: Copies) -> None:
        """Copy slots to blocks, before the step that reads them."""
        ...

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:
        """Begin to bring these blocks to the host; the views may be read after `wait`.

        `InPlace` where the host can read the pool. Called on a KV thread.
        """
        ...

    def incoming(self, block_ids: Sequence[int]) -> HostBlocks:
        """Room to fill for these blocks: then `land`, and they have the bytes after `wait`.

        Called on a KV thread.
        """
        ...

    def close(self) -> None:
        """Free what the runner holds; called once, after the last step."""
        ...
