"""What every engine pod runs: the model, the engine that serves it, and how KV caches travel."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from argosy_operator.api.bounds import within
from argosy_operator.api.fields import (
    AdapterUri,
    Duration,
    EnvName,
    ImageName,
    LocalName,
    ModelUri,
    PositiveDurationText,
    Quantity,
    ServedName,
)
from argosy_operator.api.model import (
    ApiModel,
    PodTemplate,
    ValidationRule,
    cel_literals,
    cel_matches,
)

RENDERED_ENV = ("POD_NAME", "POD_UID", "POD_IP", "POD_NAMESPACE")
"""Environment variables that the operator writes."""

RENDERED_FLAGS = (
    "--model",
    "--served-name",
    "--role",
    "--role-file",
    "--load-format",
    "--dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--max-batch-size",  # the engine's other name for --max-num-seqs
    "--max-num-batched-tokens",
    "--max-num-tokens",  # the engine's other name for --max-num-batched-tokens
    "--max-body-bytes",
    "--tensor-parallel-size",
    "--lease-s",
    "--kv-timeout-s",
    "--kv-on-failure",
    "--kv-transport",
    "--drain-timeout-s",
    "--host",
    "--port",
    "--admin-port",
    "--kv-port",
    "--termination-message",
    "--peers-file",
    "--token-file",
    "--tls-dir",
)
"""Flags that the operator writes. A second one in engine.args would contradict the first."""

EngineType = Literal["argosy", "vllm", "sglang"]


def _spelt(flags: Iterable[str]) -> tuple[str, ...]:
    """The flags with both spellings of those that have hyphens inside: vLLM reads _ as -."""
    both = ((flag, f"--{flag[2:].replace('-', '_')}") for flag in flags)
    return tuple(dict.fromkeys(name for pair in both for name in pair))


VLLM_FLAGS = (
    *_spelt(
        (
            "--model",
            "--served-model-name",
            "--dtype",
            "--max-model-len",
            "--max-num-seqs",
            "--max-num-batched-tokens",
            "--tensor-parallel-size",
            "--port",
            "--api-key",
            "--shutdown-timeout",
            "--kv-transfer-config",
            # These change where the server listens, or take its metrics away.
            "--uds",
            "--root-path",
            "--ssl-keyfile",
            "--ssl-certfile",
            "--disable-log-stats",
        )
    ),
    "-tp",
)
SGLANG_FLAGS = (
    "--model-path",
    "--model",
    "--served-model-name",
    "--dtype",
    "--context-length",
    "--max-running-requests",
    "--chunked-prefill-size",
    "--tensor-parallel-size",
    "--tp-size",
    "--tp",
    "--host",
    "--port",
    "--api-key",
    "--enable-metrics",
    "--disaggregation-mode",
    "--disaggregation-transfer-backend",
    "--disaggregation-bootstrap-port",
    "--ssl-keyfile",
    "--ssl-certfile",
)
OWN_FLAGS = MappingProxyType[EngineType, tuple[str, ...]](
    {"argosy": RENDERED_FLAGS, "vllm": VLLM_FLAGS, "sglang": SGLANG_FLAGS}
)
"""Flags that only the operator may set, by type of engine."""


def _repeats(flags: Iterable[str]) -> str:
    """CEL: one of the arguments is one of the flags."""
    return f"self.args.exists(a, {cel_matches('a', '^(' + '|'.join(flags) + ')(=|$)')})"


class Fetch(ApiModel):
    """A Job of the fleet fetches the model into a claim, under an account and with variables that
    you name. The operator never reads the Secrets, and engine pods never download."""

    claim_name: LocalName | None = None
    """An existing PersistentVolumeClaim of this namespace. It stays when the fleet is deleted."""
    size: Quantity | None = None
    """Size of the claim that the operator makes, <fleet>-model, such as 40Gi. It holds every commit
    that was fetched, and goes with the fleet."""
    storage_class_name: LocalName | None = None
    """The storage class of that claim. Default: the cluster's."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """The access mode of that claim. ReadWriteOnce is enough where all pods run on one node."""
    service_account_name: LocalName | None = None
    """The ServiceAccount of the Job, such as one with a cloud's identity. Default: the namespace's
    default. Its token is not mounted."""
    template: PodTemplate | None = None
    """A PodTemplateSpec that is merged over the Job's pod, and over spec.template: variables of the
    container fetch, such as HF_TOKEN from a Secret, HF_ENDPOINT, AWS_ENDPOINT_URL or
    HTTPS_PROXY."""

    def has_one_claim(self) -> bool:
        return (self.claim_name is None) != (self.size is None)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".size",
            cel="has(self.claimName) != has(self.size)",
            holds=has_one_claim,
            message="write model.fetch.size for a claim that the operator makes, or "
            "model.fetch.claimName for one that exists",
        ),
    )


class Adapter(ApiModel):
    """One LoRA adapter of the model."""

    list_key: ClassVar[str | None] = "name"

    name: ServedName
    """The name that clients write in the "model" field, beside those of model.servedNames."""
    uri: AdapterUri
    """Where it is: pvc://<claim>/<path> is a directory with adapter_config.json on a
    PersistentVolumeClaim of this namespace, that of the model or another one, mounted read-only."""

    @property
    def claim(self) -> str:
        return self.uri.removeprefix("pvc://").partition("/")[0]

    @property
    def path(self) -> str:
        """Below the claim's root."""
        return self.uri.removeprefix("pvc://").partition("/")[2]


class Model(ApiModel):
    """The weights to serve and the name that clients ask for."""

    uri: ModelUri
    """Where the weights are. pvc://<claim>/<path> is a directory on a PersistentVolumeClaim of this
    namespace, mounted read-only. hf://<org>/<name>@<revision> and s3://<bucket>/<prefix> are
    fetched once into a claim, before engine pods start; without @<revision>: main.
    oci://<registry>/<repository>:<tag> is an image volume, which the nodes pull. sim://<preset>
    starts simulated engines, which need neither weights nor GPUs."""
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = ()
    """The names that clients write in the "model" field of the OpenAI API. Each answer has the name
    that was asked for. A change restarts no pod. To rename a model under traffic, add the new name,
    have clients use it, then remove the old one. Default: the name of the ServingDeployment."""
    fetch: Fetch | None = None
    """How a model of hf:// or s3:// is fetched."""
    adapters: Annotated[tuple[Adapter, ...], Field(max_length=32)] = ()
    """LoRA adapters that every engine pod serves beside the model (engine.type vllm). A change
    makes a new revision. vLLM takes ranks up to 16 and one adapter in a step: for more, write
    --max-lora-rank and --max-loras in engine.args."""

    def is_fetched_or_there(self) -> bool:
        return self.uri.startswith(("hf://", "s3://")) == (self.fetch is not None)

    def names_differ(self) -> bool:
        return not {adapter.name for adapter in self.adapters} & set(self.served_names)

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".adapters",
            cel="!has(self.adapters) || !has(self.servedNames) || "
            "self.adapters.all(a, !(a.name in self.servedNames))",
            holds=names_differ,
            message="one name cannot be the model's and an adapter's: choose another one in "
            "model.adapters, or take it out of model.servedNames",
        ),
        ValidationRule(
            field=".fetch",
            cel="(self.uri.startsWith('hf://') || self.uri.startsWith('s3://')) == has(self.fetch)",
            holds=is_fetched_or_there,
            message="model.fetch says into which claim hf:// and s3:// are fetched: write it with "
            "these, such as {size: 40Gi}, and leave it out with others",
        ),
    )


class EnvVar(ApiModel):
    """One environment variable of the engine's container."""

    list_key: ClassVar[str | None] = "name"

    name: EnvName
    """The variable's name."""
    value: Annotated[str, StringConstraints(max_length=4096)] = ""
    """The variable's value in plain text. Do not put secrets here: everyone who may read the object
    can read them. Default: an empty text."""

    def is_free(self) -> bool:
        return self.name not in RENDERED_ENV

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".name",
            cel=f"!(self.name in {cel_literals(RENDERED_ENV)})",
            holds=is_free,
            message="POD_NAME, POD_IP and POD_NAMESPACE are set by Argosy: choose another name",
        ),
    )


Arg = Annotated[str, StringConstraints(max_length=256)]


class Engine(ApiModel):
    """How the engine runs. A change makes a new revision: new pods replace the old ones."""

    type: EngineType = "argosy"
    """The program that serves the model. argosy: this project's own engine. vllm: `vllm serve`.
    sglang: `python3 -m sglang.launch_server`. docs/how-to/vllm.md says which fields another type
    does not take, and what was tried."""
    image: ImageName | None = None
    """The engine's image. Default: the image that the operator was installed with. The types vllm
    and sglang have no default: write the release that you run."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the model's numbers in computation: float32, bfloat16, float16, or auto. Default
    auto: the type that the weights are stored in; on a CPU float32 or bfloat16, the faster one."""
    max_model_len: Annotated[int, within("engine.maxModelLen")] | None = None
    """Most tokens of one request, prompt and answer together. Default: the limit in the model's
    config."""
    max_num_seqs: Annotated[int, within("engine.maxNumSeqs")] | None = None
    """Most sequences in one step of the engine. Default: the engine's own."""
    max_num_batched_tokens: (
        Annotated[int | Literal["auto"], within("engine.maxNumBatchedTokens")] | None
    ) = None
    """Most tokens in one step of the engine. Longer prompts are prefilled in chunks. With "auto"
    the engine gives each step as many prompt tokens as the TPOT limit affords on its machine, at
    most 2048. Default: auto on a CPU; 2048 on a GPU and for simulated engines."""
    max_body_bytes: Annotated[int, within("engine.maxBodyBytes")] | None = None
    """Largest request body in bytes, at the gateway and at the engine. A larger one is answered
    with 413. Default: 8388608 (8 MiB), which holds a prompt of a million token ids."""
    args: Annotated[tuple[Arg, ...], Field(max_length=32)] = ()
    """More arguments of the engine's program, one per item, such as --block-size=32."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=32)] = ()
    """More environment variables of the engine's container."""

    def args_repeat_no_rendered_flag(self) -> bool:
        return not any(
            arg == flag or arg.startswith(flag + "=")
            for arg in self.args
            for flag in OWN_FLAGS[self.type]
        )

    def args_have_no_adapters(self) -> bool:
        return self.type != "vllm" or not any(
            arg.startswith(("--lora-m", "--lora_m")) for arg in self.args
        )

    def other_types_name_their_image(self) -> bool:
        return self.type == "argosy" or self.image is not None

    def only_ours_sizes_its_steps(self) -> bool:
        return self.type == "argosy" or self.max_num_batched_tokens != "auto"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            field=".args",
            cel="!has(self.args) || !("
            f"self.type == 'vllm' ? {_repeats(VLLM_FLAGS)} : "
            f"self.type == 'sglang' ? {_repeats(SGLANG_FLAGS)} : {_repeats(RENDERED_FLAGS)})",
            holds=args_repeat_no_rendered_flag,
            message="engine.args repeats a flag that Argosy writes itself (model, role, ports, "
            "lengths, time-outs): use the field of the spec instead",
        ),
        ValidationRule(
            field=".args",
            cel="self.type != 'vllm' || !has(self.args) || "
            "!self.args.exists(a, a.startsWith('--lora-m') || a.startsWith('--lora_m'))",
            holds=args_have_no_adapters,
            message="the gateway does not know adapters of engine.args, and the model would answer "
            "in their name: write --lora-modules as model.adapters, such as "
            "[{name: sql, uri: pvc://adapters/sql}]",
        ),
        ValidationRule(
            field=".image",
            cel="self.type == 'argosy' || has(self.image)",
            holds=other_types_name_their_image,
            message="engine.type vllm and sglang have no default image: write engine.image, the "
            "release that you run, such as vllm/vllm-openai:v0.32.0",
        ),
        ValidationRule(
            field=".maxNumBatchedTokens",
            cel="self.type == 'argosy' || !has(self.maxNumBatchedTokens) || "
            "self.maxNumBatchedTokens != 'auto'",
            holds=only_ours_sizes_its_steps,
            message="only Argosy's own engine chooses the tokens of each step itself: with "
            "engine.type vllm or sglang write a number for maxNumBatchedTokens, or leave it out",
        ),
    )


def _ours(spec: Any) -> bool:
    engine: Engine = spec.engine
    return engine.type == "argosy"


_OURS = "self.engine.type == 'argosy'"

TYPE_RULES = (
    ValidationRule(
        field=".model.adapters",
        cel="self.engine.type == 'vllm' || !has(self.model.adapters) || "
        "size(self.model.adapters) == 0",
        holds=lambda spec: spec.engine.type == "vllm" or not spec.model.adapters,
        message="model.adapters are served by vLLM alone: write engine.type vllm, or merge the "
        "adapter into the weights and serve them as a fleet",
    ),
    ValidationRule(
        field=".model.uri",
        cel=f"{_OURS} || !self.model.uri.startsWith('sim://')",
        holds=lambda spec: _ours(spec) or not spec.model.uri.startswith("sim://"),
        message="only Argosy's own engine simulates: leave engine.type out, or write the uri of "
        "weights, such as pvc://models/Qwen3-8B",
    ),
    ValidationRule(
        field=".security.tls",
        cel=f"{_OURS} || !has(self.security.tls)",
        holds=lambda spec: _ours(spec) or spec.security.tls is None,
        message="security.tls works only with Argosy's own engine: with engine.type vllm or sglang "
        "leave it out, and let a service mesh encrypt",
    ),
    ValidationRule(
        field=".drain.mode",
        cel=f"{_OURS} || self.drain.mode == 'finish'",
        holds=lambda spec: _ours(spec) or spec.drain.mode == "finish",
        message="drain.mode migrate moves streams by their token ids, which only Argosy's own "
        "engine sends: with engine.type vllm or sglang write finish",
    ),
    ValidationRule(
        field=".autoscaling.roleFlip",
        cel=f"{_OURS} || !self.autoscaling.roleFlip",
        holds=lambda spec: _ours(spec) or not spec.autoscaling.role_flip,
        message="only Argosy's own engine changes its role while it runs: with engine.type vllm or "
        "sglang leave autoscaling.roleFlip out",
    ),
)
"""What fleets of other engines cannot have. Rules of the spec."""


class KvTransfer(ApiModel):
    """How decode pods pull the KV cache of a prompt from prefill pods."""

    timeout: Annotated[PositiveDurationText, within("kvTransfer.timeout")] = Duration("10s")
    """How long a decode pod waits without a sign that one of the prefill pods it asks makes
    progress with the prompt. What happens after that is onFailure. A prefill pod keeps a prompt's
    KV cache three times as long for a decode pod that does not renew its lease."""
    on_failure: Literal["recompute", "fail", "colocated"] = "recompute"
    """What a decode pod does with a prompt that no prefill pod handed over. recompute: it computes
    the prompt beside its decodes. fail: it answers 503, and the gateway tries another decode pod.
    colocated: it computes the prompt while no prefill pod can be reached, and answers 503 when one
    was there and failed. A request whose first token has left is always recomputed."""
    transport: Literal["auto", "tcp", "nixl"] = "auto"
    """What carries the KV cache. auto: NIXL between pods that both have its package and an RDMA
    adapter, otherwise TCP, which is faster without an adapter. tcp: never NIXL. nixl: also without
    an adapter; an engine without the package does not start. What NIXL fails to move goes over
    TCP."""

    @property
    def lease_s(self) -> float:
        """Seconds that a prefill pod keeps a KV cache for a decode pod that is silent."""
        return 3 * self.timeout.seconds
