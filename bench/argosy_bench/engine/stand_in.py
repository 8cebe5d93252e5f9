"""An engine whose device is a stand-in: python -m argosy_bench.engine.stand_in DEVICE serve …

DEVICE is `CALLS:STEP_MS:ROW_MS`. Scheduler, loop, HTTP and text are the engine's own. To launch a
step the engine thread lays it out as for a GPU and makes CALLS short calls of torch, each of which
gives up the interpreter's lock and takes it again. The step then lasts STEP_MS, and ROW_MS for each
row, without the lock. As on a GPU it begins when it is launched and the step before it has ended,
so a late launch leaves the device idle.
"""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from argosy_engine.cli import main
from argosy_engine.config import EngineConfig
from argosy_engine.core.runner import Launched
from argosy_engine.core.step import StepOutput, StepPlan, flatten
from argosy_engine.runtime import sim

_PRESET = "stand-in"
_PROFILE = sim.SimProfile(
    prefill_ms=2.0,
    prefill_ms_per_token=0.02,
    prefill_ms_per_token_squared=0.0,
    decode_ms=0.0,  # of the device that is asked for
    decode_ms_per_context_token=0.0,
    decode_ms_per_sequence=0.0,
    kv_tokens=1_000_000,
    kv_bytes_per_token=131_072,
    transfer_bytes_per_s=50e9,
    max_model_len=16_384,
)
ENGINE_THREAD = "argosy-engine"
"""How the system names the engine's thread in this process."""


class Device(NamedTuple):
    """What the stand-in does in a step."""

    calls: int
    """Of torch, to launch it."""
    step_ms: float
    row_ms: float

    def word(self) -> str:
        """Write it as the first argument of this program."""
        return ":".join(map(str, self))

    def step_s(self, rows: int) -> float:
        """Time of a step of so many decodes."""
        return (self.step_ms + self.row_ms * rows) / 1000

    @classmethod
    def read(cls, word: str) -> "Device":
        """Read what `word` wrote. ValueError."""
        calls, step_ms, row_ms = word.split(":")
        return cls(int(calls), float(step_ms), float(row_ms))


class Step:
    """A `Launched`."""

    def __init__(self, token_ids: list[int], begins: float, ends: float) -> None:
        """Times are those of `time.monotonic`."""
        self._token_ids = token_ids
        self.begins, self.ends = begins, ends

    def result(self) -> StepOutput:
        """Wait for the device, without the interpreter's lock."""
        time.sleep(max(0.0, self.ends - time.monotonic()))
        return StepOutput(token_ids=self._token_ids, busy_s=self.ends - self.begins)


class StandIn(sim.SimRunner):
    """A `Runner` and its `Launcher`."""

    def __init__(self, device: Device, config: EngineConfig) -> None:
        profile = replace(_PROFILE, decode_ms=device.step_ms, decode_ms_per_sequence=device.row_ms)
        super().__init__(_PRESET, profile, config)
        self._calls = device.calls
        self._free = 0.0
        """When the last step that was launched ends."""
        self._numbers = torch.ones(4096)
        self._sum = torch.zeros(4096)

    def warm_up(self) -> None:
        """Name the engine's thread, which calls this."""
        torch.set_num_threads(1)
        thread = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        thread.write_text(ENGINE_THREAD)

    def launch(self, plan: StepPlan, after: Launched | None = None) -> Step:  # type: ignore[override]  # noqa: ARG002
        """Begin a step once the one before has ended."""
        flatten(plan)
        for _ in range(self._calls):
            torch.add(self._numbers, self._sum, out=self._sum)
        token_ids = [self._draw(chunk) for chunk in plan.chunks if chunk.samples]
        begins = max(time.monotonic(), self._free)
        self._free = begins + self._profile.step_s(plan)
        return Step(token_ids, begins, self._free)


def _serve(words: list[str]) -> int:
    device = Device.read(words[0])
    sim.load = lambda config: (StandIn(device, config), sim.SimTokenizer())
    return main(words[1:])


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1:]))
