"""How long a step takes, and how much KV a pod holds.

Nothing here is chosen to fit the texts. Two presets of `argosy_law.estimate.capacity` are fits to
what others measured: OPT-13B on one A100-80GB (DistServe) and Llama-2-70B on four H100
(splitwise-sim). Llama-3.3-70B has the shape of Llama-2-70B, and keeps its constants. Llama-3.1-8B
on one A100 is the first preset by the ratio of the two models:

    weights     8.03e9 / 12.85e9 = 0.625     a step reads them, a token multiplies by them
    KV          131,072 / 819,200 = 0.16     a decode reads it for each token of its context
    attention   32·4096 / 40·5120 = 0.64     products of a prompt's token with those before it

So its decode takes 19.93·0.625 = 12.5 ms at least, 0.1 ms for each 1,000 tokens of context, and a
prompt token 0.0637 ms: 252 Tflop/s and 1.3 TB/s, 81 and 64 % of what the GPU could do.
"""

from dataclasses import dataclass

from argosy_engine.core.step import StepPlan
from argosy_law.estimate.capacity import MACHINES, PRESETS
from argosy_law.goals import Profile

MEMORY_BYTES = 80e9
"""Of an A100 and of an H100."""
USED_SHARE = 0.9
"""Of the memory: the default of vLLM and of TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder with 16-bit weights; from its `config.json`."""

    parameters: float
    layers: int
    width: int
    """Of the residual stream, and of all queries together."""
    inner: int
    """Width of the MLP."""
    kv_width: int
    """Of all keys together."""
    vocabulary: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_width * 2


OPT_13B = Model(12.85e9, 40, 5120, 20480, 5120, 50272)
LLAMA_8B = Model(8.03e9, 32, 4096, 14336, 1024, 128256)
LLAMA_70B = Model(70.55e9, 80, 8192, 28672, 1024, 128256)


@dataclass(frozen=True, slots=True)
class Pod:
    """A model on its GPUs."""

    model: Model
    gpus: int
    profile: Profile
    """Times of steps."""
    copy_bytes_per_s: float
    """Between GPU and host, in one direction."""

    @classmethod
    def preset(cls, name: str, model: Model) -> "Pod":
        """Return the pod of a preset. KeyError for a name that is none."""
        machine = MACHINES[name]
        return cls(model, machine.gpus, PRESETS[name], machine.transfer_bytes_per_s)

    def step_s(self, plan: StepPlan) -> float:
        """Return the seconds of a step.

        The weights are read once, also for prompts and decodes together. A chunk takes what its
        tokens add to its prompt, and reads the KV of the chunks before it from memory, as a decode
        reads that of its context.
        """
        of, fixed, rest = self.profile, 0.0, 0.0
        if plan.prefill_sequences:
            fixed = of.prefill_base_s
            for chunk in plan.chunks:
                if not chunk.decode:
                    start, end = chunk.start, chunk.start + chunk.count
                    rest += of.per_prompt_token_s * chunk.count + of.per_context_token_s * start
                    rest += of.per_prompt_token_squared_s * (end * end - start * start)
        if plan.decode_sequences:
            fixed = max(fixed, of.decode_base_s)
            rest += of.per_sequence_s * plan.decode_sequences
            rest += of.per_context_token_s * plan.decode_context_tokens
        return fixed + rest

    def kv_tokens(self, max_num_seqs: int, max_num_batched_tokens: int) -> int:
        """Return how many tokens of KV fit beside the weights and the largest step.

        Each token of a step needs the residual stream and its norm on every GPU, and one share of
        queries, keys, values and the MLP's two inner vectors; each sequence needs its logits.
        For Llama-3.1-8B with 256 sequences and 16,384 tokens: 72 GB - 16.06 GB of weights - 1.41 GB
        - 0.13 GB = 54.4 GB, which are 415,000 tokens.
        """
        of = self.model
        each = 2 * self.gpus * of.width + of.width + 2 * of.kv_width + 2 * of.inner
        step = 2 * each * max_num_batched_tokens + 4 * of.vocabulary * max_num_seqs
        free = USED_SHARE * MEMORY_BYTES * self.gpus - 2 * of.parameters - step
        return int(free / of.kv_bytes_per_token)


def scale(pod: Pod, model: Model) -> Pod:
    """Return a pod with another model on the same GPUs: weights, KV and attention in proportion."""
    weights = model.parameters / pod.model.parameters
    kv = model.kv_bytes_per_token / pod.model.kv_bytes_per_token
    attention = model.layers * model.width / (pod.model.layers * pod.model.width)
    of = pod.profile
    profile = Profile(
        prefill_base_s=of.prefill_base_s * weights,
        per_prompt_token_s=of.per_prompt_token_s * weights,
        per_prompt_token_squared_s=of.per_prompt_token_squared_s * attention,
        decode_base_s=of.decode_base_s * weights,
        per_sequence_s=of.per_sequence_s * weights,
        per_context_token_s=of.per_context_token_s * kv,
        kv_tokens=of.kv_tokens,
    )
    return Pod(model, pod.gpus, profile, pod.copy_bytes_per_s)


OPT_13B_A100 = Pod.preset("opt-13b-a100", OPT_13B)
LLAMA_8B_A100 = scale(OPT_13B_A100, LLAMA_8B)
LLAMA_70B_H100 = Pod.preset("llama-70b-h100-tp4", LLAMA_70B)
