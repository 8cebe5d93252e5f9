"""What a gateway was told on its command line; made by `cli`, read by everything else.

Limits follow one rule: whatever a client or an engine can make grow or wait has a number here.
"""

from dataclasses import dataclass
from pathlib import Path

from argosy_gateway.accounting.verdicts import Slo

__all__ = ["Config", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients and engines may do to this process."""

    head_bytes: int = 32_768
    """Request line and headers: a head still unfinished after so many is answered 431."""
    head_s: float = 10.0
    """From a request's first byte to the end of its headers; then the connection is closed."""
    first_byte_s: float = 5.0
    """From accept to a connection's first byte; then it is closed."""
    keep_alive_s: float = 65.0
    """Idle time of a kept connection; longer than common clients keep one, so they close first."""
    body_bytes: int = 8 << 20
    """Request body; more is answered 413. The engine takes as many."""
    body_s: float = 30.0
    """To read a request body; then 408."""
    arriving_bytes: int = 32 << 20
    """All bodies that still arrive, together, but at least one body of the largest size: beyond it
    the one that began first is answered 503."""
    held_bytes: int = 256 << 20
    """All bodies of requests in flight, but at least one of the largest size; beyond it 429."""
    send_buffer_bytes: int = 256 * 1024
    """The kernel's buffer for one client; it grows to megabytes where nothing is said."""
    write_stall_s: float = 30.0
    """A client that reads less than 16 KiB in so long, while bytes wait for it, is treated as gone:
    its connection is aborted."""
    denied_s: float = 60.0
    """The API server refuses this gateway (401, 403) for so long: it turns unready. Longer than the
    operator takes to replace gateways whose account was made anew, or to give a right back."""
    connect_s: float = 2.0
    """To connect to an engine."""
    first_token_s: float = 300.0
    """Engine's time to a stream's first byte. No retry afterwards: the work may still run."""
    whole_answer_s: float = 3600.0
    """The same for an answer in one piece: its first byte comes when its last token is drawn."""
    engine_silence_s: float = 120.0
    """Longest gap between two reads of a stream that has begun. A decode engine whose hand-over
    hangs after the first token is silent for its `--kv-timeout-s` and 5 s, and a prompt's time."""
    answer_bytes: int = 16 << 20
    """A whole (not streamed) answer of an engine."""
    failed_attempts: int = 2
    """Attempts that reached an engine and failed there: a request that breaks engines breaks two.
    Refused connections and draining pods did no work; the queue's time-out alone bounds them."""
    retry_reserve: int = 1024
    """Retries of failed attempts that may follow each other at once, over all requests: as many as
    wait here at most by default, so that the end of one pod loses none. Each request adds a fifth
    of a retry; where every attempt fails, that is all that is left."""


@dataclass(frozen=True, slots=True)
class Config:
    """One gateway process."""

    fleet: str
    namespace: str
    served_name: str
    strategy: str = "leastLoad"
    slo: Slo | None = None
    max_queue: int = 1024
    """Requests in flight, waiting ones included; the next one is answered 429."""
    queue_timeout_s: float = 30.0
    """How long a request waits for a pod that can serve it; then 503."""
    shed_ttft_factor: float = 0.0
    """Shed when the predicted TTFT exceeds this multiple of the SLO's limit; 0 never predicts."""
    drain_timeout_s: float = 60.0
    """After SIGTERM: how long streams may take to end."""
    drain_lag_s: float = 6.0
    """After SIGTERM: how long new connections are still taken, until nodes route elsewhere: two
    probes of /ready, 2 s apart, and the time in which their result reaches kube-proxy."""
    host: str = "0.0.0.0"
    port: int = 8080
    admin_port: int = 8081
    kubeconfig: Path | None = None
    endpoints_file: Path | None = None
    log_format: str = "auto"
    log_level: str = "info"
    limits: Limits = Limits()
