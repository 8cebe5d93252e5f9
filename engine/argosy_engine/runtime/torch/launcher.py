"""Steps that are begun before anyone reads the last one's tokens, on one device.

A launched step's tokens stay on the device until someone reads them: a step's draws are the next
step's token ids there. A GPU runs both without the host in between; a CPU has run a step when
`launch` returns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from argosy_engine.core.runner import Launched
from argosy_engine.core.step import FlatBatch, StepOutput, StepPlan, flatten
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.top_p import TopP
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.graphs import DecodeGraphs
from argosy_engine.runtime.torch.sampler import NO_NUMBER, sample_there, to_device


class TorchLauncher:
    """A `Launcher` on one device."""

    def __init__(
        self, trunk: Trunk, pool: PagedPool, execute: Callable[[StepPlan], StepOutput]
    ) -> None:
        """`execute` computes steps with a request that is not `memoryless`."""
        self._trunk = trunk
        self._pool = pool
        self._top_p = TopP() if isinstance(pool, TritonPool) else None
        self._execute = execute
        self.graphs: DecodeGraphs | None = None
        """Compute the steps that they can, once they are captured."""

    def launch(self, plan: StepPlan, after: Launched | None) -> Launched:
        if not all(chunk.sampling.memoryless for chunk in plan.chunks):
            assert plan.drawn is None
            return _Executed(self._execute(plan))
        began_s = time.perf_counter()
        with torch.inference_mode():
            flat = flatten(plan)
            before = after if isinstance(after, _OnDevice) else None
            tokens = None if before is None else before.drawn
            drawn = self.graphs.launch(plan, flat, tokens) if self.graphs is not None else None
            if drawn is None:
                drawn = self._call(plan, flat, tokens)
            return _OnDevice(drawn, _read_later(drawn), flat.request_ids, began_s, before)

    def _call(self, plan: StepPlan, flat: FlatBatch, after: torch.Tensor | None) -> torch.Tensor:
        """As `DecodeGraphs.launch`, for any step: each kernel is launched by a call of its own."""
        batch = self._pool.prepare(flat)
        token_ids = batch.token_ids
        if plan.drawn is not None:
            assert after is not None
            rows = to_device(plan.drawn, torch.int64, self._pool.device)
            token_ids = after[rows].clamp_(min=0)
        logits = self._trunk.forward(
            token_ids, batch.positions, batch, self._pool, batch.sample_rows
        )
        ids = sample_there(logits, flat.sampling, flat.sample_positions, self._top_p)
        return torch.where(logits.amax(-1).isfinite(), ids, -1)


@dataclass(frozen=True, slots=True)
class _Executed:
    out: StepOutput

    def result(self) -> StepOutput:
        return self.out


@dataclass(slots=True)
class _OnDevice:
    drawn: torch.Tensor
    """[S] int64; -1 where no token can follow."""

    read: Callable[[], list[int]]
    """Waits for the step, and gives `drawn` as it was when the step ended."""

    request_ids: list[str]
    began_s: float
    after: "_OnDevice | None"

    ended_s: float = field(default=0.0, init=False)
    """When the host saw its end; 0 before."""

    def result(self) -> StepOutput:
        ids = self.read()
        self.ended_s = time.perf_counter()
        # Until the step before had ended, the device was not at work for this one.
        since_s = max(self.began_s, self.after.ended_s if self.after else 0.0)
        self.after = None  # else every step of a text would be kept
        return StepOutput(
            token_ids=[max(0, one) for one in ids],
            busy_s=self.ended_s - since_s,
            failed={
                name: NO_NUMBER for name, one in zip(self.request_ids, ids, strict=True) if one < 0
            },
        )


def _read_later(numbers: torch.Tensor) -> Callable[[], list[int]]:
    """Begin the copy to the host; what is returned waits for its end."""
    if numbers.device.type != "cuda":
        return numbers.clone().tolist
    host = torch.empty_like(numbers, device="cpu", pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> list[int]:
        copied.synchronize()
        found: list[int] = host.tolist()
        return found

    return read
