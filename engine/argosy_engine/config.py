"""What `argosy engine serve` was told, as one frozen value. Made by `cli.py`, read everywhere."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["CapacityPolicyName", "EngineConfig", "Role"]

Role = Literal["colocated", "prefill", "decode"]
CapacityPolicyName = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every option of the command line (designs/0001-seams.md §2). None: the model decides."""

    model: str  # a folder of safetensors, or "sim:PRESET"
    served_name: str
    role: Role = "colocated"
    load_format: Literal["auto", "dummy", "sim"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 32
    kv_cache_tokens: int | None = None
    capacity_policy: CapacityPolicyName = "MAX_UTILIZATION"
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    lease_s: float = 30.0
    kv_timeout_s: float = 60.0
    queue_timeout_s: float = 600.0
    drain_timeout_s: float = 600.0
    max_queue: int = 512
    max_body_bytes: int = 8 << 20  # the gateway takes as many: a million token ids fit
    host: str = "0.0.0.0"
    port: int = 8000
    admin_port: int = 8001
    kv_port: int = 8002
    threads: int | None = None
    termination_message: str | None = None
    log_format: str = "auto"
    log_level: str = "info"
    pod_name: str = ""  # POD_NAME, or the host's name
    pod_ip: str = ""
