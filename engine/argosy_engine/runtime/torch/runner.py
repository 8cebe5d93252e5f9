"""The runner that computes: safetensors on CPU or CUDA, paged attention, sampling.

The engine's start loads it from an `EngineConfig`, and the engine thread calls it. The KV thread
reads and writes blocks of its pool that no step touches (see `core.runner`).
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from argosy.model_config import DecoderSpec
from argosy_engine.config import EngineConfig
from argosy_engine.core.request import Chunk, to_table
from argosy_engine.core.runner import NULL_BLOCK, HostBlocks, KvLayout
from argosy_engine.core.sampling import Likely, SamplingDefaults, SamplingParams
from argosy_engine.core.step import Copies, FlatBatch, StepOutput, StepPlan, flatten
from argosy_engine.core.tokenizer import Grammars, Tokenizer
from argosy_engine.errors import LoadError
from argosy_engine.model.attention.carrier import Carrier, carrier_of
from argosy_engine.model.attention.paged import HostKv, PagedPool
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.native_trunk import NativeTrunk
from argosy_engine.model.share import Share
from argosy_engine.model.spec import read_generation, trunk_knows
from argosy_engine.model.top_p import TopP
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.cpu import Cpu, abandon, begin, settle
from argosy_engine.runtime.machine import allowed_threads
from argosy_engine.runtime.torch.graphs import (
    Capture,
    beside_largest_graph,
    capture_decodes,
    cuda_graphs,
    graph_rows,
)
from argosy_engine.runtime.torch.launcher import TorchLauncher
from argosy_engine.runtime.torch.logits import Exclusions, Masks, Penalties, mask_, may_end
from argosy_engine.runtime.torch.logprobs import Drawn, rank_prompt, split
from argosy_engine.runtime.torch.pool import Gauge
from argosy_engine.runtime.torch.ranks.group import LeadingTrunk, RankGroup, listen
from argosy_engine.runtime.torch.ranks.kv import JoinedCarrier
from argosy_engine.runtime.torch.ranks.processes import Kind, Ranks, pack_copies
from argosy_engine.runtime.torch.sampler import (
    NO_NUMBER,
    columns,
    lost_rows,
    sample,
    sample_there,
)
from argosy_engine.runtime.torch.sources import (
    AnyTrunk,
    Loaded,
    Native,
    Source,
    TransformersSource,
    TrunkSource,
    device_of,
    load_model,
    open_library,
)
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from argosy_engine.text.hf_tokenizer import HfTokenizer

_LAYOUT_VERSION = 1
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WARM_UP_TOKENS = 64
_ALL_EXCLUDED = (
    "no token can follow: allowed_token_ids, bad_words, min_tokens or what the answer must match "
    "exclude all of them; leave one of these out"
)


def load(
    config: EngineConfig, ranks: Ranks | None = None, gauge: Gauge | None = None
) -> tuple["TorchRunner", Tokenizer]:
    """Runner and tokenizer of the folder `config.model`; LoadError says what to do.

    `ranks`: the other ranks' processes, where `config` asks for several; the runner closes them.
    RankLostError if one of them dies meanwhile. `gauge` measures the largest step of a single rank
    in place of the device's own.
    """
    folder = Path(config.model)
    share = Share(0, config.tensor_parallel_size)
    device = device_of(share)
    cpu = _settle(config, device)
    ours = trunk_knows(folder)
    source = TrunkSource(folder, share) if ours else TransformersSource(folder, share)
    spec = source.spec
    torch.set_num_threads(config.threads or allowed_threads())
    native = open_library(config, device, spec.architecture, known=ours)
    dtype = _dtype(config, spec, cpu, native)
    if config.load_format == "dummy" and not (folder / "tokenizer.json").is_file():
        tokenizer: Tokenizer = ByteTokenizer(spec.vocab)
    else:
        tokenizer = HfTokenizer(folder)
    eos, sampling = read_generation(folder)
    eos |= {one for one in tokenizer.eos_token_ids if one < spec.vocab}
    isa = cpu.isa if cpu else ""
    rows = graph_rows(config)
    if ranks is None:
        run = beside_largest_graph(_execute, rows)
        loaded = load_model(config, source, dtype, device, native, gauge=gauge, run=run)
        trunk: AnyTrunk | LeadingTrunk = loaded.trunk
    else:
        decided = replace(config, dtype=_name(dtype))  # type: ignore[arg-type]
        loaded, trunk = _load_with(ranks, decided, source, device, isa)
    runner = TorchRunner(
        trunk,
        loaded.pool,
        name=config.served_name,
        max_model_len=loaded.max_model_len,
        grammars=tokenizer.grammars(spec.vocab, eos),
        eos_token_ids=eos,
        sampling_defaults=sampling,
        graph_rows=rows,
    )
    if native:
        isa = f"native {native.name}" + " int8" * native.int8
    runner.facts = {"cpu_isa": isa, "dtype": _name(dtype)}
    return runner, tokenizer


def _load_with(
    ranks: Ranks, config: EngineConfig, source: Source, device: torch.device, isa: str
) -> tuple[Loaded, LeadingTrunk]:
    """As `load_model`, in all ranks at once; `config` has the type that all of them take."""
    listener = listen()
    port = listener.getsockname()[1]
    ranks.greet(config, port=port, isa="" if isa == "DEFAULT" else isa)
    try:
        group = RankGroup(0, ranks.size, device, port=port, listener=listener)
        dtype = getattr(torch, config.dtype)
        run = beside_largest_graph(_execute_once, graph_rows(config))
        loaded = load_model(config, source, dtype, device, None, group, run=run)
    except RuntimeError as error:
        ranks.fail(error)
    assert isinstance(loaded.trunk, Trunk)
    assert isinstance(source, TrunkSource)
    return loaded, LeadingTrunk(loaded.trunk, source.whole, ranks, group)


class TorchRunner:
    """A `Runner` on torch."""

    def __init__(
        self,
        trunk: AnyTrunk | LeadingTrunk,
        pool: PagedPool,
        *,
        name: str,
        max_model_len: int,
        grammars: Grammars | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        sampling_defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
        graph_rows: int = 0,
        capture: Capture | None = None,
    ) -> None:
        """`graph_rows`: graphs compute steps of up to so many decodes; 0: none do. `capture` makes
        them in place of the GPU; with it a CPU launches steps, too."""
        self.trunk = trunk
        self._pool = pool
        self._host = HostKv(pool)
        self._ranks = trunk.ranks if isinstance(trunk, LeadingTrunk) else None
        self.eos_token_ids = eos_token_ids
        self.vocab_size = trunk.spec.vocab
        self.knows_likely = True
        self.on_cpu = pool.device.type == "cpu"
        self.launcher: TorchLauncher | None = None
        self._graph_rows, self._capture = graph_rows, capture
        if isinstance(trunk, Trunk) and (capture is not None or not self.on_cpu):
            self.launcher = TorchLauncher(trunk, pool, self.execute)
        self.grammars = grammars
        self._masks = Masks(grammars)
        self._exclusions = Exclusions(self.eos_token_ids)
        self._penalties = Penalties()
        self._top_p = TopP() if isinstance(pool, TritonPool) else None
        self.sampling_defaults = sampling_defaults
        self.max_model_len = max_model_len
        self.facts = {"cpu_isa": "", "dtype": _name(pool.memory.dtype)}
        self._carrier: Carrier = carrier_of(pool.memory.view(torch.uint8))
        if isinstance(trunk, LeadingTrunk):
            self._carrier = JoinedCarrier(self._carrier, trunk.ranks, pool, trunk.spec)
        self._layout = _layout(
            trunk.spec, pool, name, 1 if self._ranks is None else self._ranks.size
        )

    def kv_layout(self) -> KvLayout:
        return self._layout

    def warm_up(self) -> None:
        """Run a prompt and a decode in the null block: chooses kernels and touches pages."""
        size = self._pool.shape.block_size
        count = min(_WARM_UP_TOKENS, self.max_model_len - 1)
        table = to_table([NULL_BLOCK] * (count // size + 2))
        for start, tokens in ((0, count), (count, 1)):
            chunk = Chunk(
                request_id="warm-up",
                tokens=[0] * (count + 1),
                block_table=table,
                start=start,
                count=tokens,
                samples=True,
                decode=tokens == 1,
                sampling=SamplingParams(max_tokens=1, temperature=0.0),
            )
            self._run(_single_chunk_plan(chunk, size))
        self.capture_graphs()

    def capture_graphs(self) -> None:
        """Have graphs compute steps of decodes from now on, where kernels of our own attend. A
        warning says if the device cannot."""
        launcher, trunk, pool = self.launcher, self.trunk, self._pool
        if not self._graph_rows or not isinstance(pool, TritonPool):
            return
        capture = self._capture or cuda_graphs(pool.device)
        if isinstance(trunk, LeadingTrunk):
            trunk.capture(pool, self._graph_rows, capture)
        if launcher is None:
            return
        assert isinstance(trunk, Trunk)
        launcher.graphs = capture_decodes(trunk, pool, self._graph_rows, capture)

    def execute(self, plan: StepPlan) -> StepOutput:
        began = time.perf_counter()
        try:
            out = self._run(plan)
            if not self.on_cpu:
                # A step that draws nothing is still running. Its blocks may leave from now on, and
                # the carrier's stream does not wait for this one.
                torch.cuda.current_stream(self._pool.device).synchronize()
        finally:
            self._finish()
        return replace(out, busy_s=time.perf_counter() - began)

    def _run(self, plan: StepPlan) -> StepOutput:
        plan, prompts = split(plan)
        told = self._rank_prompts(prompts, plan.block_size)
        flat = flatten(plan)
        if not plan.chunks:
            return StepOutput(token_ids=[], busy_s=0.0, prompt_likely=told)
        making = self._masks.begin(flat)
        with torch.inference_mode():
            logits = self.trunk.logits(flat, self._pool)
            drawn = Drawn(logits, flat.sampling)
            masks, failed = making.result() if making is not None else ({}, {})
            if not all(params.plain for params in flat.sampling):
                if logits.dtype is torch.float16:  # a penalty may go beyond its 65,504
                    logits = logits.float()
                sampling = may_end(flat.sampling, masks, self.eos_token_ids)
                self._exclusions.apply_(logits, sampling, flat.histories, flat.n_prompts)
                self._penalties.apply_(
                    logits, flat.sampling, flat.histories, flat.n_prompts, flat.request_ids
                )
            mask_(logits, masks)
            ids, rows = self._draw(logits, flat)
            lost = _find_lost(logits, flat.sampling, rows)
            excluded = [row for row, why in lost.items() if why is _ALL_EXCLUDED] + list(failed)
            failed = lost | failed
            return StepOutput(
                token_ids=ids,
                busy_s=0.0,
                likely=drawn.rank(ids, flat.request_ids),
                prompt_likely=told,
                failed={flat.request_ids[row]: why for row, why in failed.items()},
                excluded=frozenset(flat.request_ids[row] for row in excluded),
            )

    def _draw(self, logits: torch.Tensor, flat: FlatBatch) -> tuple[list[int], list[int]]:
        """An id for each row, and the rows in which no token can follow; their ids are of any."""
        if self._top_p is not None:  # as the launcher draws, to the last bit
            ids = sample_there(logits, flat.sampling, flat.sample_positions, self._top_p)
            drawn: list[int] = ids.tolist()
            return drawn, lost_rows(logits)
        if not isinstance(self.trunk, NativeTrunk):
            return sample(logits, flat.sampling, flat.sample_positions), lost_rows(logits)
        drawn = self.trunk.draw(logits, columns(flat.sampling, flat.sample_positions))
        lost = [row for row, token in enumerate(drawn) if token < 0]
        for row in lost:
            drawn[row] = 0
        return drawn, lost

    def _rank_prompts(self, prompts: list[Chunk], block_size: int) -> dict[str, dict[int, Likely]]:
        """What is told of the prompts' tokens, by request; computes their KV."""
        found: dict[str, dict[int, Likely]] = {}
        for chunk in prompts:
            flat = flatten(_single_chunk_plan(chunk, block_size))
            rows = replace(flat, sample_rows=list(range(chunk.count)))
            with torch.inference_mode():
                of_it = rank_prompt(self.trunk.logits(rows, self._pool), chunk)
            found.setdefault(chunk.request_id, {}).update(of_it)
        return found

    def reserve_host(self, slots: int) -> None:
        if self._ranks is not None:
            self._ranks.send(Kind.RESERVE, np.array([slots], np.int32))
        self._host.reserve(slots)

    def to_host(self, copies: Copies) -> None:
        if self._ranks is not None:
            self._ranks.send(Kind.TO_HOST, pack_copies(copies))
        self._host.take(copies)
        self._finish()

    def from_host(self, copies: Copies) -> None:
        if self._ranks is not None:
            self._ranks.send(Kind.FROM_HOST, pack_copies(copies))
        self._host.give(copies)
        self._finish()

    def _finish(self) -> None:
        """This rank has done its part of what all were sent."""
        if self._ranks is not None:
            self._ranks.finish()

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:
        return self._carrier.outgoing(block_ids)

    def incoming(self, block_ids: Sequence[int]) -> HostBlocks:
        return self._carrier.incoming(block_ids)

    def close(self) -> None:
        """End the threads; the end of the process frees everything else."""
        self._masks.close()
        if isinstance(self._carrier, JoinedCarrier):
            self._carrier.close()
        if isinstance(self.trunk, NativeTrunk | LeadingTrunk):
            self.trunk.close()


def _find_lost(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], rows: Sequence[int]
) -> dict[int, str]:
    """Why each of the `rows` has no token: minus infinity is what exclusion makes of a logit."""
    return {
        row: NO_NUMBER
        if sampling[row].plain or float(logits[row].amax()) != float("-inf")
        else _ALL_EXCLUDED
        for row in rows
    }


def _execute_once(trunk: AnyTrunk, pool: PagedPool, plan: StepPlan) -> StepOutput:
    """As `_execute`, where the other ranks compute the step once, and none is launched."""
    runner = TorchRunner(trunk, pool, name="", max_model_len=trunk.spec.max_positions)
    try:
        return runner.execute(plan)
    finally:
        runner.close()


def _execute(trunk: AnyTrunk, pool: PagedPool, plan: StepPlan) -> StepOutput:
    """A step with its sampling, by `trunk`; its threads end with it.

    Where steps are launched, it is launched as well: draws that stay on the device take other
    memory.
    """
    runner = TorchRunner(trunk, pool, name="", max_model_len=trunk.spec.max_positions)
    try:
        if runner.launcher is not None:
            chunks = [
                replace(chunk, sampling=replace(chunk.sampling, logprobs=None))
                for chunk in plan.chunks
            ]
            runner.launcher.launch(replace(plan, chunks=tuple(chunks)), None).result()
        return runner.execute(plan)
    finally:
        runner.close()


def _single_chunk_plan(chunk: Chunk, block_size: int) -> StepPlan:
    return StepPlan(
        index=1,
        chunks=(chunk,),
        block_size=block_size,
        prefill_tokens=0 if chunk.decode else chunk.count,
        prefill_sequences=int(not chunk.decode),
        decode_sequences=int(chunk.decode),
        decode_context_tokens=chunk.start + 1 if chunk.decode else 0,
        after_idle=True,
    )


def _layout(spec: DecoderSpec, pool: PagedPool, name: str, ranks: int) -> KvLayout:
    shape = pool.shape
    size = shape.block_elements // shape.kv_heads * spec.kv_heads * pool.memory.element_size()
    dtype = _name(pool.memory.dtype)
    return KvLayout(
        fingerprint=(
            f"{name} {spec.architecture} layers={spec.layers} kv_heads={spec.kv_heads} "
            f"head_dim={spec.head_dim} dtype={dtype} block={shape.block_size} v{_LAYOUT_VERSION}"
        ),
        block_size=shape.block_size,
        num_blocks=shape.blocks - 1,
        block_bytes=size,
        wire_block_bytes=size,
        dtype=dtype,
        tp=ranks,
        copies=max(1, ranks // spec.kv_heads),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _settle(config: EngineConfig, device: torch.device) -> Cpu | None:
    """What this CPU can compute, before its first product; None if an accelerator computes."""
    if device.type == "cpu":
        begin(config)
        return settle()
    abandon()
    return None


def _dtype(
    config: EngineConfig, spec: DecoderSpec, cpu: Cpu | None, native: Native | None
) -> torch.dtype:
    """auto: the checkpoint's type, on a CPU float32 or, where that is faster, bfloat16.

    A CPU has no float16 of its own accord: few multiply it, and the native step does not. float32
    holds its numbers, and bfloat16 is what vLLM takes for them there, too.
    """
    if native:
        cpu = Cpu(native.name, bfloat16_faster=native.multiplies_bfloat16)
    if config.dtype == "bfloat16" and cpu and not cpu.bfloat16_works:
        raise LoadError("BadArgument", "bfloat16 does not work on this CPU: set --dtype float32")
    if config.dtype != "auto":
        return _TORCH[config.dtype]
    if spec.dtype == "float32" or (cpu and not cpu.bfloat16_faster):
        return torch.float32
    return torch.float16 if spec.dtype == "float16" and cpu is None else torch.bfloat16
