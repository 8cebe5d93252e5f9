"""Sums over the requests that have ended, as the gateway counts them.

`fleet.World` notes each end; the sums are brought up to date when one is asked for, which a
constant fleet never does. `scrape` shows them.
"""

from bisect import bisect_left
from collections.abc import Sequence

from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import Request
from argosy_law.size.work import EDGES


class Ended:
    """Counts of answered requests by length and by verdict."""

    def __init__(self, setup: Setup, trace: Trace) -> None:
        self._setup, self._trace = setup, trace
        self.prompts = [0] * (len(EDGES) + 1)
        self.outputs = [0] * (len(EDGES) + 1)
        """Answered requests by the bucket of their length."""
        self.prompt = self.prompt_squared = self.output = 0
        """Sums over answered requests, in tokens."""
        self.verdicts = {(ttft, tpot): 0 for ttft in (True, False) for tpot in (True, False)}
        """Ended requests by (TTFT met, TPOT met)."""

    def add(self, answered: list[Request], first: Sequence[float], last: Sequence[float]) -> None:
        """Count these, and empty the list. `first`, `last`: when each had those tokens."""
        trace, setup = self._trace, self._setup
        for request in answered:
            prompt, output = trace.prompt[request], trace.output[request]
            self.prompt += prompt
            self.prompt_squared += prompt * prompt
            self.output += output
            self.prompts[bisect_left(EDGES, prompt)] += 1
            self.outputs[bisect_left(EDGES, output)] += 1
            began = first[request]
            ttft = began - trace.arrival[request] <= setup.ttft_s
            tpot = last[request] - began <= setup.tpot_s * (output - 1) if output > 1 else True
            self.verdicts[ttft, tpot] += 1
        answered.clear()

    def without_answer(self, count: int) -> None:
        """So many have ended without an answer: they have met neither limit."""
        self.verdicts[False, False] += count
