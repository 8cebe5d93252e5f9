"""What the operator must know about an engine to run it: `ArgosyEngine`, and a row for each other.

`workload.py` renders the pod around it: labels, security, volumes, resources, drain and rollout are
the same for every kind. A kind says how the container is started and where it answers
(designs/0004-engine-kinds.md). Engines of others have no admin port, name no pod in their answers
and ask for no token. What stands in for it: the pod's uid is their API key, so that an engine that
got a pod's address refuses its requests; and gateways count the streams of pods that leave
(designs/0030-other-engines.md).
"""

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy_law.signals import samples
from argosy_law.signals.others import SGLANG_SERIES, VLLM_SERIES
from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.api.v1alpha1.engine import EngineType
from argosy_operator.api.v1alpha1.roles import NVIDIA, GpuType
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.snapshot import drain_timeout_s, whole_seconds
from argosy_operator.render.common import (
    PEERS_PATH,
    TLS_DIR,
    TOKEN_FILE,
    Images,
    command_line,
    installed_with,
)

WEIGHTS = "/models"
"""Where the claim of spec.model.uri is mounted, read-only."""

ADAPTERS = "/etc/argosy/adapters"
"""Below it the claims of spec.model.adapters are mounted that are not the model's, read-only."""

ROLE_FILE = "/etc/argosy/role/role"
"""In pods that may change their role: the kubelet writes the pod's label there, and writes it anew
within seconds of a change."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A page of the engine: port of the pod, and path."""

    port: int
    path: str


@dataclass(frozen=True, slots=True)
class EnginePod:
    """One role's engine pod in one revision: what its workload is rendered from."""

    fleet: ServingDeployment
    role: RoleName
    revision: str
    image: str
    drain_s: int
    """Seconds that the engine has to finish its answers when its pod leaves."""
    installed: PodTemplate
    """The template of the operator's installation, as it was when the Deployment was made."""

    @classmethod
    def of(
        cls,
        fleet: ServingDeployment,
        role: RoleName,
        revision: str,
        images: Images,
        live: Object | None = None,
    ) -> "EnginePod":
        """`live` is the Deployment as it exists, whose drain time-out and installed template
        stay; None for a new one."""
        image = fleet.spec.engine.image or images.engine
        installed, drain_s = installed_with(live, images.template), drain_timeout_s(fleet, live)
        return cls(fleet, role, revision, image, drain_s, installed)

    @property
    def disaggregated(self) -> bool:
        return self.fleet.spec.mode == "disaggregated"

    @property
    def verifies(self) -> bool:
        """It asks its callers for a token."""
        return self.fleet.spec.verifies_peers

    @property
    def shows_token(self) -> bool:
        """It may call other engines of its fleet, and these ask for a token. Prefill engines have
        one too: they may become decode engines."""
        return self.verifies and self.disaggregated

    @property
    def certificate(self) -> str | None:
        """The Secret for TLS of its ports; None: they speak without."""
        tls = self.fleet.spec.security.tls
        return None if tls is None else tls.secret_name

    @property
    def gpus(self) -> int:
        return self.fleet.spec.role(self.role).resources.gpu

    @property
    def gpu_type(self) -> GpuType | None:
        """The GPU type that it runs on; None: any."""
        return self.fleet.spec.type_of(self.role)

    @property
    def gpu_resource(self) -> str:
        """The resource by which it asks for GPUs."""
        return self.fleet.spec.role(self.role).resources.gpu_resource or NVIDIA

    @property
    def claims_gpus(self) -> bool:
        """Its GPUs come with claims."""
        return self.fleet.spec.role(self.role).resources.gpu_from == "Claims"

    @property
    def flips(self) -> bool:
        """It may change its role while it runs."""
        return self.fleet.spec.flips_roles

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim with the model; None for a model without one."""
        uri, fetched = self.fleet.spec.model.uri, self.fleet.fetched_model
        if fetched is not None:
            return fetched.claim_name
        return uri.removeprefix("pvc://").partition("/")[0] if uri.startswith("pvc://") else None

    @property
    def model_image(self) -> str | None:
        """The image that is the model; None for another model."""
        return self.fleet.model_image

    @property
    def weights(self) -> str:
        """The model's folder inside the container."""
        if self.model_image is not None:
            return WEIGHTS
        fetched = self.fleet.fetched_model
        if fetched is not None:
            return f"{WEIGHTS}/{fetched.path}"
        path = self.fleet.spec.model.uri.removeprefix("pvc://").partition("/")[2]
        return f"{WEIGHTS}/{path}" if path else WEIGHTS

    @property
    def adapters(self) -> dict[str, str]:
        """The folder inside the container of each adapter, by its name."""
        found = {}
        for adapter in self.fleet.spec.model.adapters:
            root = WEIGHTS if adapter.claim == self.claim else f"{ADAPTERS}/{adapter.claim}"
            found[adapter.name] = posixpath.join(root, adapter.path).rstrip("/")
        return found

    @property
    def adapter_claims(self) -> tuple[str, ...]:
        """The claims with adapters, but the model's."""
        claims = (adapter.claim for adapter in self.fleet.spec.model.adapters)
        return tuple(dict.fromkeys(claim for claim in claims if claim != self.claim))


class ArgosyEngine:
    """An `EngineKind`. The SLO is not among its flags: a new target must not replace pods."""

    command = ("argosy",)
    ports = MappingProxyType(
        {"http": names.API_PORT, "admin": names.ADMIN_PORT, "kv": names.KV_PORT}
    )
    ready = HttpEndpoint(names.ADMIN_PORT, "/ready")
    live = HttpEndpoint(names.ADMIN_PORT, "/health")
    metrics = HttpEndpoint(names.ADMIN_PORT, "/metrics")
    series = MappingProxyType({n: n for n in (*samples.STEP_COUNTERS, *samples.GAUGES)})
    keyed = False
    handover_port: tuple[str, int] | None = None
    env: Mapping[str, str] = MappingProxyType({})

    def args(self, pod: EnginePod) -> list[str]:
        spec = pod.fleet.spec
        flags: dict[str, object] = {"--role": pod.role}
        if spec.model.uri.startswith("sim://"):
            preset = spec.model.uri.removeprefix("sim://")
            flags |= {"--model": f"sim:{preset}", "--load-format": "sim"}
        else:
            flags |= {"--model": pod.weights}
        flags |= {
            "--dtype": spec.engine.dtype,
            "--max-model-len": spec.engine.max_model_len,
            "--max-num-seqs": spec.engine.max_num_seqs,
            "--max-num-batched-tokens": spec.engine.max_num_batched_tokens,
            "--max-body-bytes": spec.engine.max_body_bytes,
            "--drain-timeout-s": pod.drain_s,
            "--peers-file": PEERS_PATH if pod.verifies else None,
            "--token-file": TOKEN_FILE if pod.shows_token else None,
            "--tls-dir": TLS_DIR if pod.certificate else None,
        }
        tensor = spec.role(pod.role).parallelism.tensor
        if tensor != 1:  # the engine's default: an older one has no flag
            flags["--tensor-parallel-size"] = tensor
        if pod.disaggregated:
            flags |= self._handover(pod)
        return ["engine", "serve", "--served-name", pod.fleet.name, *command_line(flags)]

    def _handover(self, pod: EnginePod) -> dict[str, object]:
        kv_transfer = pod.fleet.spec.kv_transfer
        flags: dict[str, object] = {
            "--lease-s": f"{kv_transfer.lease_s:g}",
            "--kv-timeout-s": whole_seconds(kv_transfer.timeout.seconds),
            "--role-file": ROLE_FILE if pod.flips else None,
        }
        if kv_transfer.on_failure != "recompute":  # the engine's default: an older one has no flag
            flags["--kv-on-failure"] = kv_transfer.on_failure
        if kv_transfer.transport != "auto":  # likewise
            flags["--kv-transport"] = kv_transfer.transport
        return flags


ARGOSY = ArgosyEngine()


UID = "$(POD_UID)"
"""The kubelet fills it in: in arguments it replaces names of the container's variables."""


@dataclass(frozen=True, slots=True)
class OpenAiServer:
    """An `EngineKind`, as a row of names."""

    type: EngineType
    command: tuple[str, ...]
    model: str | None
    """The flag before the model's folder; None: it stands alone."""
    sizes: Mapping[str, str]
    """Flag by the field of spec.engine that it takes."""
    tensor: str
    """The flag for the number of GPUs."""
    also: tuple[str, ...]
    """Arguments of every pod."""
    drain: str | None
    """The flag for the seconds that answers have after SIGTERM; None: it waits for them anyway."""
    env: Mapping[str, str]
    """Variables of every pod, unless the user sets them."""
    handover: Callable[[RoleName], tuple[str, ...]]
    """Arguments of a role in mode disaggregated."""
    handover_port: tuple[str, int]
    """Name and number of the port at which engines of the fleet agree on a transfer."""
    series: Mapping[str, str]

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": names.API_PORT}

    def kv_args(self, pod: EnginePod) -> list[str]:
        """Return the arguments of a role in mode disaggregated; none where one engine does both."""
        return [] if pod.role == "colocated" else list(self.handover(pod.role))

    @property
    def ready(self) -> HttpEndpoint:
        return HttpEndpoint(names.API_PORT, "/health")

    @property
    def live(self) -> HttpEndpoint:
        return self.ready

    @property
    def keyed(self) -> bool:
        return True

    @property
    def metrics(self) -> HttpEndpoint:
        return HttpEndpoint(names.API_PORT, "/metrics")

    def args(self, pod: EnginePod) -> list[str]:
        engine = pod.fleet.spec.engine
        flags: dict[str, object] = {
            "--port": names.API_PORT,
            "--dtype": engine.dtype,
        }
        flags |= {flag: getattr(engine, field) for field, flag in self.sizes.items()}
        tensor = pod.fleet.spec.role(pod.role).parallelism.tensor
        if tensor != 1:
            flags[self.tensor] = tensor
        if self.drain is not None:
            flags[self.drain] = pod.drain_s
        flags["--api-key"] = UID
        model = [pod.weights] if self.model is None else [self.model, pod.weights]
        called = ["--served-model-name", pod.fleet.name]
        if pod.adapters:
            modules = (f"{name}={folder}" for name, folder in pod.adapters.items())
            called += ["--enable-lora", "--lora-modules", *modules]
        return [*model, *called, *command_line(flags), *self.also, *self.kv_args(pod)]


LEASE_S = 60
"""How long vLLM's prefill pods keep KV that no decode pod pulls. The gateway knows the same number
(`argosy_gateway.relay.handover.nixl`), and drops the KV after a third of it."""
_KV_ROLES = MappingProxyType({"prefill": "kv_producer", "decode": "kv_consumer"})
_UCX_PORTS = MappingProxyType({"UCX_TCP_PORT_RANGE": "{}-{}".format(*names.PEER_UCX_PORTS)})
"""UCX listens on random ports otherwise, and the fleet's NetworkPolicy would stop it."""


def _nixl(role: RoleName) -> tuple[str, ...]:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLES[role],
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    return ("--kv-transfer-config", json.dumps(config))


def _by_mode(role: RoleName) -> tuple[str, ...]:
    return ("--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl")


VLLM = OpenAiServer(
    type="vllm",
    command=("vllm", "serve"),
    model=None,
    sizes=MappingProxyType(
        {
            "max_model_len": "--max-model-len",
            "max_num_seqs": "--max-num-seqs",
            "max_num_batched_tokens": "--max-num-batched-tokens",
        }
    ),
    tensor="--tensor-parallel-size",
    also=(),
    drain="--shutdown-timeout",
    env=MappingProxyType(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "$(POD_IP)",
            **_UCX_PORTS,
        }
    ),
    handover=_nixl,
    handover_port=("nixl", 5600),
    series=VLLM_SERIES,
)
"""vLLM's OpenAI server. Flags are those of 0.32; `--kv-transfer-config` as in its NixlConnector
guide."""


SGLANG = OpenAiServer(
    type="sglang",
    command=("python3", "-m", "sglang.launch_server"),
    model="--model-path",
    sizes=MappingProxyType(
        {
            "max_model_len": "--context-length",
            "max_num_seqs": "--max-running-requests",
            "max_num_batched_tokens": "--chunked-prefill-size",
        }
    ),
    tensor="--tp-size",
    also=("--host", "0.0.0.0", "--enable-metrics"),
    drain=None,
    env=MappingProxyType({"HF_HUB_OFFLINE": "1", **_UCX_PORTS}),
    handover=_by_mode,
    handover_port=("bootstrap", 8998),
    series=SGLANG_SERIES,
)
"""SGLang's server, as its documentation has it; untried."""


EngineKind = ArgosyEngine | OpenAiServer
"""An engine program: how its container is started, and where it answers."""
KINDS: Mapping[EngineType, EngineKind] = MappingProxyType(
    {"argosy": ARGOSY, "vllm": VLLM, "sglang": SGLANG}
)


def kind_of(fleet: ServingDeployment) -> EngineKind:
    """The engine that the fleet's pods run."""
    return KINDS[fleet.spec.engine.type]
