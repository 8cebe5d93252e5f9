"""Engines of others that serve the OpenAI API on one port: one row for each, `VLLM` and `SGLANG`.

They have no admin port, name no pod in their answers and ask for no token. What stands in for it:
the pod's uid is their API key, so that an engine that got a pod's address refuses its requests; and
gateways count the streams of pods that leave (designs/0030-other-engines.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy_law.signals.others import SGLANG_SERIES, VLLM_SERIES
from argosy_operator.api.v1alpha1.engine import EngineType
from argosy_operator.core.snapshot import names
from argosy_operator.render.common import command_line
from argosy_operator.render.engines.kind import EnginePod, HttpEndpoint

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
    series: Mapping[str, str]

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": names.API_PORT}

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
        return [*model, *called, *command_line(flags), *self.also]


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
        }
    ),
    series=VLLM_SERIES,
)
"""vLLM's OpenAI server. Flags are those of 0.32."""


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
    env=MappingProxyType({"HF_HUB_OFFLINE": "1"}),
    series=SGLANG_SERIES,
)
"""SGLang's server, as its documentation has it; untried."""
