"""A runner that computes nothing and takes as long as a real one would.

Scheduler, pool, leases, HTTP and metrics around it are the engine's own, so fleets of any size run
without weights or accelerators. Steps end at absolute deadlines: time that a busy machine loses in
one step is made up in the next. How late a step ended is in `StepOutput.late_s`.

`PROFILES` are timing models of real engines. `opt-13b-a100` is DistServe's fitted model of OPT-13B
on one A100-80GB. `llama-70b-h100-tp4` and `…-tp8` are Llama-2-70B on four and eight H100, fitted to
the table of measured times of splitwise-sim; its prompts vary by 22 % around the fit with eight,
its steps by 2 %. `smollm2-135m-cpu` is this engine (`argosy_bench.engine.fit` says what was
measured). Prefill of a prompt of L tokens takes a + b·L + c·L²; a decode step of n sequences with
Σctx tokens of context takes a + b·Σctx + c·n.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

from argosy_engine.config import EngineConfig
from argosy_engine.core.request import Chunk
from argosy_engine.core.runner import HostBlocks, InPlace, KvLayout, Launched, Launcher
from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.core.step import Copies, StepOutput, StepPlan
from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import LoadError
from argosy_engine.text.messages import Reads, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class SimProfile:
    """Constants of one model on one machine."""

    prefill_ms: float
    """a of a prefill."""

    prefill_ms_per_token: float
    """b of a prefill."""

    prefill_ms_per_token_squared: float
    """c of a prefill."""

    decode_ms: float
    """a of a decode step."""

    decode_ms_per_context_token: float
    """b of a decode step."""

    decode_ms_per_sequence: float
    """c of a decode step."""

    kv_tokens: int
    """Tokens that the KV pool holds."""

    kv_bytes_per_token: int
    transfer_bytes_per_s: float
    max_model_len: int

    def step_s(self, plan: StepPlan) -> float:
        """Duration of a step in seconds.

        A chunk takes the difference of its prompt's polynomial at its end and at its start, so that
        all chunks together take as long as the whole prompt. A mixed step reads the weights once:
        the larger of the two constants counts, and the other terms add up.
        """
        fixed = marginal = 0.0
        if plan.prefill_sequences:
            fixed = self.prefill_ms
            for chunk in plan.chunks:
                if not chunk.decode:
                    start, end = chunk.start, chunk.start + chunk.count
                    marginal += self.prefill_ms_per_token * chunk.count
                    marginal += self.prefill_ms_per_token_squared * (end * end - start * start)
        if plan.decode_sequences:
            fixed = max(fixed, self.decode_ms)
            marginal += self.decode_ms_per_context_token * plan.decode_context_tokens
            marginal += self.decode_ms_per_sequence * plan.decode_sequences
        return (fixed + marginal) / 1000.0


PROFILES: dict[str, SimProfile] = {
    "llama-70b-h100-tp4": SimProfile(
        prefill_ms=3.92,
        prefill_ms_per_token=0.1066,
        prefill_ms_per_token_squared=1e-6,
        decode_ms=28.8,
        decode_ms_per_context_token=9.4e-5,
        decode_ms_per_sequence=0.2825,
        kv_tokens=480_000,
        kv_bytes_per_token=327_680,  # 80 layers · 2 · 8 kv heads · 128 · 2 bytes
        transfer_bytes_per_s=50e9,  # one 400 Gb/s port
        max_model_len=8192,
    ),
    "llama-70b-h100-tp8": SimProfile(
        prefill_ms=3.78,
        prefill_ms_per_token=0.0899,
        prefill_ms_per_token_squared=1.49e-6,
        decode_ms=29.9,
        decode_ms_per_context_token=1.79e-4,
        decode_ms_per_sequence=0.199,
        kv_tokens=1_330_000,  # 90 % of eight times 80 GB, without 140 GB of weights
        kv_bytes_per_token=327_680,
        transfer_bytes_per_s=50e9,  # one 400 Gb/s port
        max_model_len=8192,
    ),
    "opt-13b-a100": SimProfile(
        prefill_ms=18.10,
        prefill_ms_per_token=0.1019,
        prefill_ms_per_token_squared=7.12e-6,
        decode_ms=19.93,
        decode_ms_per_context_token=6.27e-4,
        decode_ms_per_sequence=0.0385,
        kv_tokens=66_144,
        kv_bytes_per_token=819_200,  # 40 layers · 2 · 40 heads · 128 · 2 bytes
        transfer_bytes_per_s=25e9,  # PCIe 4 x16
        max_model_len=2048,
    ),
    "smollm2-135m-cpu": SimProfile(
        prefill_ms=1.61,
        prefill_ms_per_token=1.315,
        prefill_ms_per_token_squared=6.02e-4,
        decode_ms=11.28,
        decode_ms_per_context_token=4.17e-3,
        decode_ms_per_sequence=1.32,
        kv_tokens=93_184,  # 2 GiB
        kv_bytes_per_token=23_040,  # 30 layers · 2 · 3 kv heads · 64 · 2 bytes
        transfer_bytes_per_s=1.25e9,  # 10 Gb/s
        max_model_len=8192,
    ),
}


_VOCAB = 32_000
_FIRST_ID = 3
"""0, 1 and 2 are the usual special tokens. 2 ends a sequence and is never in a text otherwise."""
_EOS = 2
_TELLS_APART = 64
"""Tokens of a prompt that its answer's length depends on: prompts that begin alike differ."""
_GIVE_UP_S = 0.5
"""A step that is further behind than this does not make up for it; the time counts as busy."""


def load(config: EngineConfig) -> tuple["SimRunner", "SimTokenizer"]:
    """The runner for `--model sim:PRESET`; LoadError lists the presets."""
    scheme, _, preset = config.model.partition(":")
    profile = PROFILES.get(preset)
    if scheme != "sim" or profile is None:
        known = ", ".join(PROFILES)  # a fleet writes sim://NAME, a command line sim:NAME
        raise LoadError(
            "ModelNotFound",
            f"{config.model!r} names no preset of simulated engines; known: {known}",
        )
    return SimRunner(preset, profile, config), SimTokenizer()


class SimRunner:
    """Sleeps through the steps of a `SimProfile`; a `Runner`."""

    def __init__(
        self,
        preset: str,
        profile: SimProfile,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        tokens = config.kv_cache_tokens or profile.kv_tokens
        self._profile = profile
        self._clock = clock
        self._sleep = sleep
        self._deadline = 0.0
        self.eos_token_ids = frozenset({_EOS})
        self._mean_output = config.sim_output_lengths
        self.vocab_size = _VOCAB
        self.knows_likely = False
        self.on_cpu = False
        self.grammars: Grammars | None = None
        self.sampling_defaults = SamplingDefaults()
        self.facts = {"cpu_isa": "", "dtype": ""}
        self.max_model_len = min(config.max_model_len or profile.max_model_len, tokens)
        self._layout = KvLayout(
            fingerprint=f"sim:{preset} block={config.block_size}",
            block_size=config.block_size,
            num_blocks=max(1, tokens // config.block_size),
            block_bytes=config.block_size * profile.kv_bytes_per_token,
            wire_block_bytes=0,
            tp=config.tensor_parallel_size,
            simulated_bytes_per_s=profile.transfer_bytes_per_s,
        )

    def kv_layout(self) -> KvLayout:
        return self._layout

    def warm_up(self) -> None:
        """Nothing to warm."""

    @property
    def launcher(self) -> Launcher:
        return self

    def execute(self, plan: StepPlan) -> StepOutput:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan, after: Launched | None = None) -> "_SimStep":  # noqa: ARG002
        """Its result is there at this step's deadline; tokens depend on the prompt and the position
        only."""
        duration_s = self._profile.step_s(plan)
        now = self._clock()
        lost_s = 0.0
        if plan.after_idle:
            self._deadline = now
        elif now - self._deadline > _GIVE_UP_S:
            lost_s = now - self._deadline
            self._deadline = now
        self._deadline += duration_s
        token_ids = [self._draw(chunk) for chunk in plan.chunks if chunk.samples]
        return _SimStep(token_ids, duration_s + lost_s, self._deadline, self._clock, self._sleep)

    def _draw(self, chunk: Chunk) -> int:
        """Return the token behind a chunk. Where lengths are drawn, each token ends the text with
        the probability 1 / mean, so lengths are geometric.

        It depends on the prompt and the position only: a text that is computed again ends at the
        same token.
        """
        position = chunk.start + chunk.count
        if self._mean_output is not None:
            prompt = chunk.tokens[: min(chunk.n_prompt, _TELLS_APART)]
            drawn = blake2b(f"{prompt} {position}".encode(), digest_size=8).digest()
            if int.from_bytes(drawn) * self._mean_output < 1 << 64:
                return _EOS
        return token_at(chunk.tokens[0], position)

    def reserve_host(self, slots: int) -> None:
        """There are no bytes to keep."""

    def to_host(self, copies: Copies) -> None:
        """Takes as long as a transfer of as many bytes between two engines."""
        seconds = len(copies) * self._layout.block_bytes / self._profile.transfer_bytes_per_s
        self._sleep(seconds)
        self._deadline += seconds

    from_host = to_host

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:  # noqa: ARG002
        return InPlace()

    incoming = outgoing

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True, slots=True)
class _SimStep:
    """A `Launched`."""

    token_ids: list[int]
    busy_s: float
    deadline: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def result(self) -> StepOutput:
        left_s = self.deadline - self.clock()
        if left_s > 0:
            self.sleep(left_s)
        late_s = max(0.0, self.clock() - self.deadline)
        return StepOutput(token_ids=self.token_ids, busy_s=self.busy_s, late_s=late_s)


def token_at(seed_token: int, position: int) -> int:
    """The token at a position of a text, counted from its first token, whose id is `seed_token`."""
    return _FIRST_ID + (seed_token * 31 + position * 7919) % (_VOCAB - _FIRST_ID)


class SimTokenizer:
    """One token a word; ids are the words' checksums, so that equal texts share a prefix cache."""

    vocab_size = _VOCAB
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def info(self) -> dict[str, Any]:
        return {"tokenizer_class": "SimTokenizer", "eos_token": None, "chat_template": None}

    def fewest_tokens(self, text: str) -> int:  # noqa: ARG002
        return 0  # a word may be of any length

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return [_FIRST_ID + crc32(word) % (_VOCAB - _FIRST_ID) for word in text.encode().split()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:  # noqa: ARG002
        return "".join(f"tok{token_id} " for token_id in token_ids)

    def grammars(self, vocab_size: int, eos: Collection[int]) -> None:  # noqa: ARG002
        return None

    def chat_text(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,  # noqa: ARG002
        arguments: Mapping[str, Any] | None = None,  # noqa: ARG002
        tools: Sequence[dict[str, Any]] = (),  # noqa: ARG002
    ) -> str:
        """Each message's role and words, as a template would wrap them."""
        shown = prepare(messages, Reads())
        parts = [f"<{message['role']}> {message['content']}" for message in shown]
        return " ".join([*parts, *(["<assistant>"] if add_generation_prompt else [])])

    def new_detokenizer(
        self,
        prompt_ids: Sequence[int],  # noqa: ARG002
        *,
        skip_special_tokens: bool = True,  # noqa: ARG002
    ) -> "SimDetokenizer":
        return SimDetokenizer()


class SimDetokenizer:
    """`tok123 ` for token 123."""

    def push(self, token_id: int) -> str:
        return f"tok{token_id} "

    def flush(self) -> str:
        return ""
