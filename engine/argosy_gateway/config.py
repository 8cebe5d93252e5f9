"""The settings of one gateway process: made by `cli` from the command line, read by all others.

`Gateway.config` is replaced as a whole when the fleet's settings change (`options`), so it is read
anew wherever it counts.

Everything that a client or an engine can make grow or wait has a limit here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from argosy.http_server import Bounds

__all__ = [
    "DEFAULT_CLASS",
    "DRAIN_MODES",
    "QUEUES",
    "Canary",
    "Config",
    "Limits",
    "SettingsRead",
    "Slo",
    "SloClass",
    "classes_of",
]

QUEUES = ("none", "deadline")
"""What becomes of a request that no pod can serve within its limit."""
DRAIN_MODES = ("finish", "migrate")
"""What becomes of the requests of an engine pod that drains."""


@dataclass(frozen=True, slots=True)
class Slo:
    """The limits, in seconds."""

    ttft_s: float
    tpot_s: float


DEFAULT_CLASS = "default"
"""Of requests that name none: the SLO itself, with priority 0."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """One class of requests."""

    name: str
    slo: Slo | None
    """None only for DEFAULT_CLASS of a fleet without an SLO."""
    priority: int = 0
    """Lower goes first."""


def classes_of(slo: Slo | None, more: Iterable[SloClass] = ()) -> Mapping[str, SloClass]:
    """All classes by name, DEFAULT_CLASS first."""
    return {one.name: one for one in (SloClass(DEFAULT_CLASS, slo), *more)}


@dataclass(frozen=True, slots=True)
class Canary:
    """A revision that gets a fixed share of the requests."""

    revision: str
    percent: int
    """Of the accepted requests, from 1 to 50."""


@dataclass(frozen=True, slots=True)
class Limits(Bounds):
    """Bounds on what clients and engines may do to this process. Only `body_bytes` is an option."""

    body_bytes: int = 8 << 20
    """Longest request body; beyond it 413. The engine's default is the same."""
    body_s: float = 30.0
    """To read a request body; then 408."""
    arriving_bytes: int = 32 << 20
    """Sum of all bodies that still arrive, but at least `body_bytes`. Beyond it the body that began
    first is answered 503."""
    held_bytes: int = 256 << 20
    """Sum of the bodies of all requests in flight, but at least `body_bytes`; beyond it 429."""
    settings_s: float = 5.0
    """How long a request waits for the first settings of a process that has just begun; then 503.
    They are read about each second."""
    denied_s: float = 60.0
    """The gateway turns unready if the API server denies access (401, 403) for this time. The
    operator needs less to replace gateways after their account was recreated, or to restore a
    Role."""
    connect_s: float = 2.0
    """To connect to an engine."""
    kept_s: float = 4.0
    """How long a connection to an engine is kept between requests. Engines must keep it for longer:
    vLLM closes after 5 s, ours after 75 s."""
    kept_per_engine: int = 64
    """Most connections that are kept to one engine."""
    kept_connections: int = 1024
    """The same to all engines; fewer where descriptors are few."""
    kept_body_bytes: int = 32 << 10
    """A request with a longer body has a connection of its own. TCP's first window is about twice
    as large, so a shorter one is received whether the engine reads or not."""
    first_token_s: float = 300.0
    """Engine's time to a stream's first byte. No retry follows, as the work may still run."""
    whole_answer_s: float = 3600.0
    """The same for an answer in one piece, whose first byte comes after its last token."""
    engine_silence_s: float = 120.0
    """Longest gap in a stream that has begun. A decode engine whose handover hangs after the first
    token is silent for its `--kv-timeout-s` (60 s) and 5 s, and then computes the prompt."""
    wait_s: float = 3.0
    """A request that waits so long for an engine's next byte, and twenty times as long as between
    its tokens so far, has the pod asked whether it is there (`pods.probes`)."""
    silent_s: float = 6.0
    """A pod that gives no sign for so long after it was asked is left, if another one can serve."""
    answer_bytes: int = 16 << 20
    """Longest answer in one piece; beyond it 400, as the client asks for so much."""
    failed_attempts: int = 2
    """Attempts of a request that may fail after an engine began the work: a request that breaks
    engines breaks two. Refused connections and draining pods did no work; only
    `queue_timeout_s` bounds those."""
    retry_reserve: int = 1024
    """Retries that all requests together may make at once. It equals the default of `max_queue`, so
    that the sudden end of one pod loses no request. Each request adds a tenth of a retry; if
    every attempt fails, only that share is left (`RetryBudget`)."""
    resume_ids_bytes: int = 1 << 20
    """Token ids that are kept of one stream, so that another engine can go on with it. A stream
    with more ends with its engine. The engine takes no longer ones."""
    kept_ids_bytes: int = 64 << 20
    """The same of all streams."""


@dataclass(frozen=True, slots=True)
class SettingsRead:
    """What came of the settings object when this gateway looked at it last."""

    digest: str = ""
    """The first 16 hexadecimal digits of the SHA-256 of its text; "" before the first look, and
    where there is no such object or text."""
    refused: str = ""
    """Why these settings cannot be used, and older ones go on; "": they are in use."""


@dataclass(frozen=True, slots=True)
class Config:
    """One gateway process. The defaults are those of the command line."""

    fleet: str
    """Name of the ServingDeployment."""
    namespace: str
    """Its namespace."""
    served_names: tuple[str, ...]
    """The model's names in requests; another one is answered 404. Empty until the settings of
    `settings_name` were read."""
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters, which engines are asked for as they stand."""
    pass_other_paths: bool = False
    """Paths below /v1 that this gateway does not know go to colocated pods of other engines."""
    settings_name: str = ""
    """The ConfigMap of the namespace that has the settings; "": the command line has them all."""
    strategy: str = "leastLoad"
    """A key of `routing.strategies.STRATEGIES`."""
    slo: Slo | None = None
    """None: no verdicts are counted, and no request is shed by its predicted TTFT."""
    slo_classes: tuple[SloClass, ...] = ()
    """Classes besides the default one; they need an SLO."""
    max_queue: int = 1024
    """Most requests in flight, waiting ones included; the next one is answered 429."""
    queue_timeout_s: float = 30.0
    """How long a request waits for a pod that can serve it; then 503."""
    wake_timeout_s: float | None = None
    """How long a request waits while no pod can serve, because the fleet starts from zero pods;
    then 503. None: the fleet never goes to zero, and `queue_timeout_s` counts."""
    queue: str = "none"
    """One of QUEUES. none: every request is dispatched at once. deadline: a request that would miss
    its TTFT limit on every pod waits (`routing.dispatch`); it needs an SLO."""
    hold_first_token: bool = False
    """A decode engine may hold the first token of an answer until its sequence joins a batch, as
    long as the TTFT limit allows; it needs an SLO."""
    canary: Canary | None = None
    """None: requests go to pods of all revisions alike."""
    engine_places: int | None = None
    """Sequences that an engine runs at once (its `--max-num-seqs`); a queue gives it no more."""
    shed_ttft_factor: float = 0.0
    """Shed if the predicted TTFT exceeds this multiple of the SLO's limit; 0 turns it off."""
    drain_timeout_s: float = 60.0
    """From SIGTERM until the last stream is cut. Includes `drain_lag_s`."""
    drain_lag_s: float = 6.0
    """After SIGTERM, how long new connections are still taken, until nodes route elsewhere: two
    probes of /ready, 2 s apart, and the time in which their result reaches kube-proxy."""
    drain_mode: str = "finish"
    """What the requests of an engine pod that drains do: `finish` there, or `migrate` elsewhere."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages browsers let read answers, as in the header `origin`; `*` is any. Empty:
    none, and answers have no header of CORS."""
    host: str = "0.0.0.0"
    port: int = 8080
    """For clients."""
    admin_port: int = 8081
    """For probes and Prometheus."""
    kubeconfig: Path | None = None
    """How to log in to the API server; None uses the pod's service account."""
    endpoints_file: Path | None = None
    """A JSON file of endpoints, read instead of the API server; see `pods.watch.follow_file`."""
    pod_name: str = ""
    """POD_NAME; "" outside a cluster. `GatewayShares` finds this gateway's pods by it."""
    token_file: Path | None = None
    """This gateway's token for engines (`pods.proof`); None shows none."""
    tls_dir: Path | None = None
    """Folder with tls.crt, tls.key and ca.crt (`pods.proof`); None: engines that ask for TLS
    are not called."""
    log_format: str = "auto"
    """One of `logs.FORMATS`."""
    log_level: str = "info"
    """One of `logs.LEVELS`."""
    limits: Limits = Limits()
