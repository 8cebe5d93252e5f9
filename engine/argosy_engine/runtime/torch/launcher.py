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
from argosy_engine.core.step import StepOutput, StepPlan, flatten
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.sampler import NO_NUMBER, sample_there, to_device


class TorchLauncher:
    """A `Launcher` on one device."""

    def __init__(
        self, trunk: Trunk, pool: PagedPool, execute: Callable[[StepPlan], StepOutput]
    ) -> None:
        """`execute` computes steps with a request that is not `memoryless`."""
        self._trunk = trunk
        self._pool = pool
        self._execute = execute

    def launch(self, plan: StepPlan, after: Launched | None) -> Launched:
        if not all(chunk.sampling.memoryless for chunk in plan.chunks):
            assert plan.drawn is None
            return _Executed(self._execute(plan))
        began_s = time.perf_counter()
        with torch.inference_mode():
            flat = flatten(plan)
            batch = self._pool.prepare(flat)
            token_ids = batch.token_ids
            if plan.drawn is not None:
                assert isinstance(after, _OnDevice)
                token_ids = after.ids[to_device(plan.drawn, torch.int64, self._pool.device)]
            logits = self._trunk.forward(
                token_ids, batch.positions, batch, self._pool, batch.sample_rows
            )
            ids = sample_there(logits, flat.sampling, flat.sample_positions)
            lost = ~logits.amax(-1).isfinite()
            return _OnDevice(
                ids,
                _read_later(torch.stack([ids, lost.long()])),
                flat.request_ids,
                began_s,
                after if isinstance(after, _OnDevice) else None,
            )


@dataclass(frozen=True, slots=True)
class _Executed:
    out: StepOutput

    def result(self) -> StepOutput:
        return self.out


@dataclass(slots=True)
class _OnDevice:
    ids: torch.Tensor
    """[S] int64; of any where no token can follow."""

    read: Callable[[], list[list[int]]]
    """Waits for the step, and gives the ids and which of them are lost."""

    request_ids: list[str]
    began_s: float
    after: "_OnDevice | None"

    ended_s: float = field(default=0.0, init=False)
    """When the host saw its end; 0 before."""

    def result(self) -> StepOutput:
        ids, lost = self.read()
        self.ended_s = time.perf_counter()
        # Until the step before had ended, the device was not at work for this one.
        since_s = max(self.began_s, self.after.ended_s if self.after else 0.0)
        self.after = None  # else every step of a text would be kept
        return StepOutput(
            token_ids=ids,
            busy_s=self.ended_s - since_s,
            failed={name: NO_NUMBER for name, at in zip(self.request_ids, lost, strict=True) if at},
        )


def _read_later(numbers: torch.Tensor) -> Callable[[], list[list[int]]]:
    """Begin the copy to the host; what is returned waits for its end."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    host = torch.empty_like(numbers, device="cpu", pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> list[list[int]]:
        copied.synchronize()
        found: list[list[int]] = host.tolist()
        return found

    return read
