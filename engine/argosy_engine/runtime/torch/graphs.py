"""Steps that decode as CUDA graphs: one call launches all kernels of a step.

A graph is captured for each of a few batch sizes when the engine starts, and a step is padded to
the next of them. Inputs lie in `Decodes`. The tokens that a step draws stay on the device in
`drawn`, where the next step's graph finds them, so nothing waits for the host. A graph draws the
most likely tokens; rows that are sampled go on from its logits with `sample_there`.

What no graph is made for is computed call by call: `launch` and `compute` return None.

In several ranks each has graphs of its own part, with the sums of all ranks in them. Rank 0 sends
each step to the others, so none is launched before its tokens are known.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Protocol, TypeVar, cast

import torch

from argosy_engine.config import MOST_AUTO_TOKENS, EngineConfig
from argosy_engine.core.step import FlatBatch, StepPlan
from argosy_engine.model.attention.inputs import Decodes
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.top_p import TopP
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.sampler import sample_there

log = logging.getLogger(__name__)

MOST_ROWS = 256
"""Of the largest graph. The kernels of a larger step take longer than their launch."""


class Graph(Protocol):
    """What `torch.cuda.CUDAGraph` has of this."""

    def replay(self) -> None:
        """Compute the captured calls again, on what their inputs hold now."""


Capture = Callable[[Callable[[], None]], Graph]
"""Makes a graph of what a function launches."""


def batch_sizes(most: int) -> list[int]:
    """Those that steps of up to `most` rows are padded to: by less than half, and from 8 rows on by
    less than 8 or 16."""
    most = min(most, MOST_ROWS)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MOST_ROWS, 16)]
    return [*(size for size in sizes if size < most), most]


def graph_rows(config: EngineConfig) -> int:
    """Rows of the largest step that only decodes; 0 where no graphs are wanted, or where one rank
    launches no step ahead, which alone uses them."""
    unused = config.async_scheduling is False and config.tensor_parallel_size == 1
    if config.cuda_graphs == "off" or unused:
        return 0
    return min(config.max_num_seqs, config.step_tokens(on_cpu=False) or MOST_AUTO_TOKENS)


class DecodeGraphs:
    """The graphs of one trunk on one pool."""

    def __init__(self, trunk: Trunk, pool: TritonPool, rows: int, *, draws: bool = True) -> None:
        """For steps of up to `rows` sequences, as far as `MOST_ROWS` allows. `draws`: False in
        ranks that get a part of the logits."""
        self._trunk = trunk
        self._pool = pool
        self._draws = draws
        self._top_p = TopP()
        self.sizes = batch_sizes(rows)
        most = self.sizes[-1]
        self._inputs = Decodes(pool.device, most)
        # One buffer for the logits of all graphs: those of each would stay in memory.
        self._logits = trunk.weights.embedding.new_empty(most if draws else 0, trunk.spec.vocab)
        self._drawn = torch.zeros(most, dtype=torch.int64, device=pool.device)
        self._graphs: dict[int, Graph] = {}

    def capture(self, capture: Capture, *, largest_only: bool = False) -> None:
        """Capture all graphs, the largest first: the others find room in the memory that it took.

        RuntimeError if the device cannot. Whatever is computed here is in the null block.
        """
        for size in self.sizes[-1:] if largest_only else reversed(self.sizes):
            self._inputs.send(FlatBatch.empty(), None, size)
            self._graphs[size] = capture(partial(self._compute, size))

    @torch.inference_mode()
    def _compute(self, rows: int) -> None:
        inputs = self._inputs
        batch = self._pool.prepare_decodes(inputs, rows)
        before = inputs.drawn[:rows]
        token_ids = torch.where(
            before < 0, inputs.token_ids[:rows], self._drawn[before.clamp(min=0)].clamp(min=0)
        )
        logits = self._trunk.forward(
            token_ids, batch.positions, batch, self._pool, batch.sample_rows
        )
        if not self._draws:
            return
        self._logits[:rows] = logits
        largest, ids = logits.max(dim=-1)
        self._drawn[:rows] = torch.where(largest.isfinite(), ids, -1)

    def launch(
        self, plan: StepPlan, flat: FlatBatch, after: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Begin a step, and return the tokens that it draws, -1 where none can follow.

        They are at the same place after each step: the next one overwrites them. None, and nothing
        has begun, if there is no graph for the step. `after` are the tokens of the step before, of
        which `plan.drawn` says the rows.
        """
        count = len(flat.token_ids)
        size = self._padded(count)
        if plan.prefill_sequences or size is None:
            return None
        if plan.drawn is None or after is None:
            after = self._drawn
        if len(after) > len(self._drawn) or not self._inputs.send(flat, plan.drawn, size):
            return None
        if after.data_ptr() != self._drawn.data_ptr():
            self._drawn[: len(after)] = after
        self._graphs[size].replay()
        drawn = self._drawn[:count]
        if not all(params.greedy for params in flat.sampling):
            logits = self._logits[:count]
            ids = sample_there(logits, flat.sampling, flat.sample_positions, self._top_p)
            torch.where(drawn < 0, drawn, ids, out=drawn)
        return drawn

    def compute(self, flat: FlatBatch) -> torch.Tensor | None:
        """Begin a step whose tokens are known, and return its logits [S, vocab], or nothing of them
        where the ranks have parts. The next step overwrites them.

        None, and nothing has begun, if there is no graph for the step. All ranks decide alike.
        """
        count = len(flat.token_ids)
        size = self._padded(count)
        each_draws = count == len(flat.kv_lens) == len(flat.sample_rows)
        if not each_draws or size is None or not self._inputs.send(flat, None, size):
            return None
        self._graphs[size].replay()
        return self._logits[:count]

    def _padded(self, count: int) -> int | None:
        """The batch size of the graph for so many rows."""
        return next((size for size in self.sizes if size >= count and size in self._graphs), None)


def capture_decodes(
    trunk: Trunk, pool: TritonPool, rows: int, capture: Capture, *, draws: bool = True
) -> DecodeGraphs | None:
    """All graphs of steps of up to `rows` decodes; None, and a warning, if the device cannot."""
    began_s = time.perf_counter()
    try:
        graphs = DecodeGraphs(trunk, pool, rows, draws=draws)
        graphs.capture(capture)
    except RuntimeError as error:
        log.warning(
            "CUDA graphs cannot be captured here (%s): the kernels of each step are launched one "
            "by one, which is slower; --cuda-graphs off leaves this out",
            error,
        )
        return None
    log.info(
        "captured %d CUDA graphs, of 1 to %d decodes, in %.1f s",
        len(graphs.sizes),
        graphs.sizes[-1],
        time.perf_counter() - began_s,
    )
    return graphs


Run = TypeVar("Run", bound=Callable[..., object])


def beside_largest_graph(
    run: Run, rows: int, *, draws: bool = True, capture: Capture | None = None
) -> Run:
    """`run` of (trunk, pool, plan) while the largest graph of up to `rows` decodes is there, in
    whose memory the others find room. All ranks do this together. `capture` makes it in place of
    the GPU."""

    @wraps(run)
    def run_beside(trunk: object, pool: PagedPool, plan: StepPlan) -> object:
        graphs: DecodeGraphs | None = None
        if rows and isinstance(trunk, Trunk) and isinstance(pool, TritonPool):
            graphs = DecodeGraphs(trunk, pool, rows, draws=draws)
            with suppress(RuntimeError):  # `capture_decodes` says so
                graphs.capture(capture or cuda_graphs(pool.device), largest_only=True)
        return run(trunk, pool, plan)

    return cast(Run, run_beside)


def cuda_graphs(device: torch.device) -> Capture:
    """Graphs of a GPU. They share their memory, since one runs at a time."""
    memory = torch.cuda.graph_pool_handle()
    # One stream for all of them: the libraries keep a workspace for each stream.
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(compute: Callable[[], None]) -> Graph:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            compute()  # compiles kernels and makes the libraries' workspaces
        graph = torch.cuda.CUDAGraph()
        # Threads that move KV may allocate meanwhile.
        with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
            compute()
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph

    return capture
