"""The options of `argosy engine serve` as one frozen value. Made by `cli.py`, read everywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["colocated", "prefill", "decode"]
"""colocated: computes prompts and outputs. prefill: computes prompts for decode engines and serves
no clients. decode: serves clients and pulls their prompts' KV from prefill engines."""

CapacityPolicyName = Literal["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "PAST_FUTURE"]
"""The policies of `core/capacity.py`."""

PreemptionModeName = Literal["recompute", "swap", "auto"]
"""What becomes of a preempted request's KV; `core/preemption.py` says what each means."""

BatchingName = Literal["chunked", "chunked_equal", "mixed", "prefill_first", "static"]
"""The policies of `core/batching.py`."""

Compute = Literal["auto", "native", "torch"]
"""What computes the steps on a CPU. native: one call of the engine's own library a step; the engine
does not start where no library works. torch: PyTorch's operators alone. auto: native on a CPU where
a library works, else torch, on a GPU with the Triton kernels where they work."""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Type of the numbers in computation and of the KV. auto: the checkpoint's type on a GPU. On a CPU
bfloat16 where that is the faster type and the checkpoint is not float32, else float32."""

KvCacheDtype = Literal["auto", "fp8"]
"""auto: KV has the type of the computation. fp8: it is rounded to float8_e4m3fn, with a scale of 1,
and takes half the memory of bfloat16; torch or the Triton kernels widen it. vLLM's name."""

Quantization = Literal["none", "int8"]
"""int8: the native step holds the matrices as 8-bit integers, rounded when they are loaded, and
rounds what they are multiplied with at each step. Embedding, norms and KV keep their type."""

OnKvFailure = Literal["recompute", "fail", "colocated"]
"""What becomes of a request when no prefill engine handed its prompt over. recompute: decode
computes the prompt beside its decodes. fail: the request is answered 503. colocated: decode
computes the prompt while no prefill engine can be reached, and answers 503 when one was there and
failed."""

KvTransport = Literal["auto", "tcp", "nixl"]
"""auto: NIXL between engines that both have it and an RDMA adapter, TCP otherwise: without an
adapter TCP is faster. tcp: never NIXL. nixl: the engine does not start without it, also without an
adapter. Whatever NIXL fails to move goes over TCP."""

CudaGraphs = Literal["auto", "off"]
"""auto: where GPUs compute with the Triton kernels, graphs that are captured at the start launch
all kernels of a step that only decodes; on a single GPU only if it launches steps ahead. off: each
kernel is launched by a call of its own, as in all other steps."""


MOST_AUTO_TOKENS = 2048
"""Tokens of a step whose size the engine chooses."""
STEP_TOKENS = 2048
"""Tokens of a step where neither the user nor the engine chooses: a GPU computes so many in a tenth
of a second, and with the timing model they are part of what is modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every option of the command line (designs/0001-seams.md §2)."""

    model: str
    """A folder with safetensors, or "sim:PRESET"."""

    served_name: str
    """The name that clients write in `model`."""

    other_names: tuple[str, ...] = ()
    """Names that they may write as well."""

    role: Role = "colocated"

    role_file: str | None = None
    """A file with the word prefill or decode, which then counts instead of `role`. When it changes,
    the engine finishes what it does and takes the other role, without a restart."""

    load_format: Literal["auto", "dummy", "sim"] = "auto"
    """dummy: random weights of the model's shape. sim: no model, a timing profile."""

    dtype: Dtype = "auto"

    kv_cache_dtype: KvCacheDtype = "auto"

    compute: Compute = "auto"

    quantization: Quantization = "none"

    max_model_len: int | None = None
    """Tokens of prompt plus output; None: as long as the model and the KV pool allow."""

    tensor_parallel_size: int = 1
    """Processes that share each step's matrices and KV heads; each has a GPU of its own, or a share
    of the CPU's threads. A simulated engine has one process and only says the number."""

    max_num_seqs: int = 256
    """Sequences in a step."""

    max_num_batched_tokens: int | Literal["auto"] | None = None
    """Tokens in a step. A larger step computes prompts faster and delays its decodes longer. auto:
    as many prompt tokens as this machine computes within most of the TPOT limit, or as saturate it;
    at most MOST_AUTO_TOKENS. None: auto where a CPU computes, on which STEP_TOKENS stop every
    stream for seconds; STEP_TOKENS elsewhere."""

    long_prefill_token_threshold: int = 0
    """Tokens of one prompt in a step, so that prompts share it; 0: as many as it has left."""

    async_scheduling: bool | None = None
    """Launch a step before the tokens of the last one are read, where nothing enters the batch.
    None: where one GPU computes the model with this engine's own code, which is where it helps."""

    cuda_graphs: CudaGraphs = "auto"

    block_size: int = 32
    """Tokens of a KV block."""

    kv_cache_tokens: int | None = None
    """Size of the KV pool; None: what fits into memory."""

    gpu_memory_utilization: float | None = None
    """Share of the memory that the weights leave for the KV pool. None: on a GPU all but what the
    largest step was measured to take, and a margin; elsewhere a share of the engine's own."""

    capacity_policy: CapacityPolicyName = "MAX_UTILIZATION"

    batching: BatchingName = "chunked"

    preemption_mode: PreemptionModeName = "auto"

    swap_space: float = 0.0
    """Memory of the host for the KV of preempted requests, in GiB. 0: they are computed again."""

    sim_output_lengths: float | None = None
    """Mean tokens after which answers of a simulated engine end by themselves. None: they end with
    the request's `max_tokens`."""

    slo_ttft_ms: float | None = None
    """TTFT limit of the SLO; becomes an edge of its histogram."""

    slo_tpot_ms: float | None = None
    """TPOT limit of the SLO; becomes an edge of the per-token histograms."""

    lease_s: float = 30.0
    """How long a prefill engine holds KV that its peer neither pulls nor renews."""

    kv_timeout_s: float = 60.0
    """How long a pull may show no progress before READY, all candidates together."""

    kv_min_bytes_per_s: float = 8e6
    """KV that moves slower, on average over one range of blocks, is given up."""

    kv_on_failure: OnKvFailure = "recompute"

    kv_transport: KvTransport = "auto"

    queue_timeout_s: float = 600.0
    """From arrival to admission; later, the request fails."""

    drain_timeout_s: float = 600.0
    """From SIGTERM to the end of the process, if requests or leases last that long."""

    max_queue: int = 512
    """Requests that wait for admission; further ones get status 429."""

    max_body_bytes: int = 8 << 20
    """A larger body gets status 413. 8 MiB hold a million token ids; the gateway's limit is the
    same."""

    host: str = "0.0.0.0"
    port: int = 8000

    admin_port: int = 8001
    """Where /metrics, /health, /ready and /drain are served."""

    kv_port: int = 8002
    """Where a prefill engine's KV service listens."""

    tool_call_parser: Literal["", "hermes", "llama3_json", "mistral"] = ""
    """How calls of tools are found in a chat's text; empty: they are not."""

    reasoning_parser: Literal["", "think"] = ""
    """`think`: text in <think> stands apart from a chat's content."""

    threads: int | None = None
    """Compute threads, of all ranks together; None: the CPU limit."""

    termination_message: str | None = None
    """File for the reason of a failed start; None: /dev/termination-log in a container."""

    peers_file: Path | None = None
    """Who may call this engine (`transfer.verifier`); None: anyone who reaches its ports."""

    token_file: Path | None = None
    """This pod's own token, which a decode engine shows to prefill engines; None: it shows none."""

    tls_dir: Path | None = None
    """Folder with tls.crt, tls.key and ca.crt for ports 8000 and 8002 (`transfer.certificates`).
    With None they speak without TLS."""

    log_format: str = "auto"
    log_level: str = "info"

    pod_name: str = ""
    """POD_NAME, or the host's name; sent to clients and peers."""

    pod_uid: str = ""
    """POD_UID; "" outside a cluster. A call that means another pod is refused."""

    pod_ip: str = ""
    """POD_IP; "" outside a cluster."""

    @property
    def beyond_native(self) -> str:
        """The option for which torch computes the steps on a CPU; empty: there is none."""
        if self.dtype == "float16":
            return "--dtype float16"
        return "--kv-cache-dtype fp8" if self.kv_cache_dtype == "fp8" else ""

    def step_tokens(self, *, on_cpu: bool) -> int | None:
        """Tokens of a step as a limit; None: the engine chooses. `on_cpu`: a CPU computes them."""
        tokens = self.max_num_batched_tokens
        if tokens is None:
            tokens = "auto" if on_cpu else STEP_TOKENS
        return None if tokens == "auto" else tokens
