"""Our own engine: `argosy engine serve` (designs/0001-seams.md §2)."""

from collections.abc import Mapping
from types import MappingProxyType

from argosy_law.signals import samples
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.revision import whole_seconds
from argosy_operator.render import peers
from argosy_operator.render.common import TLS_DIR, TOKEN_FILE, command_line
from argosy_operator.render.engines.kind import ROLE_FILE, EnginePod, HttpEndpoint


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
            "--peers-file": peers.PATH if pod.verifies else None,
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
