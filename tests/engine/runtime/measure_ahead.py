"""How long a device waits for the host between two steps, with and without a launch ahead:

    python -m tests.engine.runtime.measure_ahead

A device that takes 10 ms for each step, whatever is in it, decodes 256 texts of 200 tokens. Loop
and scheduler are the engine's; the tokens are discarded. Prints one JSON object.
"""

import json
import time
from dataclasses import dataclass

from argosy_engine.config import EngineConfig
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import GuaranteedNoEvict
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput, flatten
from argosy_engine.runtime.loop import EngineLoop
from argosy_engine.runtime.metrics import EngineMetrics
from tests.kv.nodes import Client

SEQUENCES, TOKENS, STEP_S, BLOCK, VOCAB = 256, 200, 0.010, 32, 1000


@dataclass(frozen=True)
class Step:
    ends_s: float
    ids: list

    def result(self):
        time.sleep(max(0.0, self.ends_s - time.perf_counter()))
        return StepOutput(token_ids=self.ids, busy_s=STEP_S)


class Device:
    """Takes its time for each step, and begins none before the last one has ended."""

    def __init__(self):
        self.free_s, self.steps, self.idle_s = 0.0, 0, 0.0

    def launch(self, plan, after=None):
        flatten(plan)
        now = time.perf_counter()
        if self.steps:
            self.idle_s += max(0.0, now - self.free_s)
        self.steps += 1
        self.free_s = max(now, self.free_s) + STEP_S
        return Step(self.free_s, [5] * sum(chunk.samples for chunk in plan.chunks))

    def execute(self, plan):
        return self.launch(plan).result()

    def to_host(self, copies):
        raise AssertionError("there is room for all")

    from_host = to_host


def measure(*, ahead):
    """(milliseconds that the device waits for a step, milliseconds for each step)."""
    device, clients = Device(), [Client() for _ in range(SEQUENCES)]
    loop = EngineLoop(
        scheduler=Scheduler(
            pool=BlockPool(num_blocks=4096, block_size=BLOCK),
            limits=Limits(
                max_num_seqs=SEQUENCES,
                max_num_batched_tokens=1 << 16,
                max_queue=SEQUENCES,
                vocab_size=VOCAB,
            ),
            policy=GuaranteedNoEvict(),
            eos=frozenset(),
            max_model_len=512,
        ),
        runner=device,
        metrics=EngineMetrics(EngineConfig(model="m", served_name="m"), max_model_len=512),
        deliver=lambda batch: [client.emit(event) for client, event in batch],
        launcher=device if ahead else None,
    )
    for index, client in enumerate(clients):
        request = NewRequest(
            request_id=f"r{index}",
            token_ids=[3 + index, *range(3, 34)],
            sampling=SamplingParams(max_tokens=TOKENS),
            arrival_s=0.0,
        )
        assert loop.submit(request, client) is None
    began_s = time.perf_counter()
    loop.start()
    while loop.unfinished:
        time.sleep(0.05)
    took_s = time.perf_counter() - began_s
    loop.stop()
    assert all(len(client.ids) == TOKENS for client in clients)
    return 1000 * device.idle_s / device.steps, 1000 * took_s / device.steps


def main():
    waiting, ahead = measure(ahead=False), measure(ahead=True)
    figures = {
        "idle_ms_one_by_one": round(waiting[0], 3),
        "idle_ms_ahead": round(ahead[0], 3),
        "step_ms_one_by_one": round(waiting[1], 3),
        "step_ms_ahead": round(ahead[1], 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
