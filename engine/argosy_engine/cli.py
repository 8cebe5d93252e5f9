"""`argosy engine serve …`: options become an `EngineConfig`, load errors a termination message."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Literal, NoReturn, get_args

from argosy import logs
from argosy_engine.config import (
    BatchingName,
    CapacityPolicyName,
    CudaGraphs,
    Dtype,
    EngineConfig,
    KvCacheDtype,
    PreemptionModeName,
)
from argosy_engine.errors import EngineError, LoadError

log = logging.getLogger(__name__)

_TERMINATION_LOG = "/dev/termination-log"  # kubelet mounts it into every container


def main(argv: list[str]) -> int:
    """Exit status: 0 after a drain, 1 when the engine could not start, 2 for a wrong command."""
    logs.configure()
    path = _termination_path(argv)
    if argv[:1] != ["serve"]:
        sys.stderr.write("usage: argosy engine serve --model … --served-name … (see --help)\n")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    try:
        config = parse(argv[1:])
        logs.configure(config.log_format, config.log_level)
        _leave_on_signals()
        import asyncio

        from argosy_engine.server.serve import serve

        return asyncio.run(serve(config, lambda error: _end_now(error, path)))
    except LoadError as error:
        _report(error, path)
        return 1


def _end_now(error: EngineError, path: str | None) -> NoReturn:
    """A rank is lost: the thread that waits for it cannot be ended in any other way."""
    if isinstance(error, LoadError):
        _report(error, path)
    else:
        log.critical("the engine ends: %s", error)
        _write_termination("RankLost", str(error), path)
    os._exit(1)


def _leave_on_signals() -> None:
    """End at once on a signal while the model loads: there is nothing to drain yet.

    The first process of a container has no default action for SIGTERM. Without a handler the kernel
    drops the signal, and a deleted pod that still loads would hold its accelerator until the grace
    period is over.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def parse(arguments: list[str]) -> EngineConfig:
    """Arguments after `serve`; LoadError("BadArgument") names the wrong one and what to write."""
    options = vars(_parser().parse_args(arguments))
    if options["load_format"] == "auto" and options["model"].startswith("sim:"):
        options["load_format"] = "sim"
    if (stages := options.pop("pipeline_parallel_size")) != 1:
        raise LoadError(
            "BadArgument",
            f"--pipeline-parallel-size {stages}: one process computes all layers of the model; "
            "leave the option out, and use --tensor-parallel-size, more replicas or a larger GPU",
        )
    if options["load_format"] == "sim" and options["quantization"] != "none":
        raise LoadError(
            "BadArgument", "--quantization: a simulated engine has no weights; leave it out"
        )
    if options["load_format"] == "sim" and options["kv_cache_dtype"] != "auto":
        raise LoadError(
            "BadArgument", "--kv-cache-dtype: a simulated engine has no KV; leave it out"
        )
    if options["load_format"] != "sim" and options["sim_output_lengths"] is not None:
        raise LoadError(
            "BadArgument",
            "--sim-output-lengths: a model's answers end where the model ends them; leave it out, "
            "or write --model sim:PRESET",
        )
    first, *others = options.pop("served_name")
    config = EngineConfig(
        **options,
        served_name=first,
        other_names=tuple(others),
        pod_name=os.environ.get("POD_NAME") or socket.gethostname(),
        pod_uid=os.environ.get("POD_UID", ""),
        pod_ip=os.environ.get("POD_IP", ""),
    )
    for name in _POSITIVE:
        value = getattr(config, name)
        if value not in (None, "auto") and value <= 0:
            flag = "--" + name.replace("_", "-")
            raise LoadError("BadArgument", f"{flag} must be greater than 0, got {value}")
    if config.swap_space < 0 or (config.preemption_mode == "swap" and not config.swap_space):
        raise LoadError(
            "BadArgument",
            f"--swap-space {config.swap_space:g}: write the GiB of host memory for the KV of "
            "preempted requests, such as 4, or --preemption-mode recompute",
        )
    if config.long_prefill_token_threshold < 0:
        raise LoadError(
            "BadArgument",
            f"--long-prefill-token-threshold {config.long_prefill_token_threshold}: write how many "
            "tokens of one prompt a step may have, or 0 for no bound",
        )
    share = config.gpu_memory_utilization
    if share is not None and share > 1:
        raise LoadError(
            "BadArgument",
            f"--gpu-memory-utilization: write a share above 0 and at most 1, not {share:g}",
        )
    return config


def _tokens_of_a_step(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"write a whole number or auto, not {text!r}") from None


_POSITIVE = (
    "max_model_len",
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "kv_cache_tokens",
    "gpu_memory_utilization",
    "sim_output_lengths",
    "slo_ttft_ms",
    "slo_tpot_ms",
    "lease_s",
    "kv_timeout_s",
    "kv_min_bytes_per_s",
    "queue_timeout_s",
    "max_queue",
    "max_body_bytes",
    "threads",
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LoadError("BadArgument", f"{message} (see argosy engine serve --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="argosy engine serve", allow_abbrev=False)
    _add_handover(parser)
    option = parser.add_argument
    option("--model", required=True, help="folder with safetensors, or sim:PRESET")
    option(
        "--served-name",
        required=True,
        nargs="+",
        help="the name that clients write in `model`; further ones may follow",
    )
    option("--role", default="colocated", choices=("colocated", "prefill", "decode"))
    option("--role-file", help="file that says prefill or decode; it may change while serving")
    option("--load-format", default="auto", choices=("auto", "dummy", "sim"))
    option("--dtype", default="auto", choices=get_args(Dtype))
    option(
        "--kv-cache-dtype",
        default="auto",
        choices=get_args(KvCacheDtype),
        help="fp8: half the memory of bfloat16 for KV, and coarser numbers",
    )
    option(
        "--compute",
        default="auto",
        choices=("auto", "native", "torch"),
        help="what computes the steps; torch: on a GPU without Triton kernels",
    )
    option(
        "--quantization",
        default="none",
        choices=("none", "int8"),
        help="int8: hold the matrices as 8-bit integers, on a CPU with the native step",
    )
    option(
        "--max-model-len",
        "--max-seq-len",
        type=int,
        help="tokens of prompt plus output (default: the model's)",
    )
    option("--tensor-parallel-size", type=int, default=1, help="GPUs, or processes on a CPU")
    option(
        "--sim-output-lengths",
        type=float,
        metavar="MEAN",
        help="mean tokens after which answers of a simulated engine end by themselves "
        "(default: they have max_tokens)",
    )
    option("--slo-ttft-ms", type=float, help="TTFT limit of the SLO, for the histogram")
    option("--slo-tpot-ms", type=float, help="TPOT limit of the SLO, for the histograms")
    option("--queue-timeout-s", type=float, default=600.0, help="longest wait for admission")
    option("--drain-timeout-s", type=float, default=600.0, help="longest wait after SIGTERM")
    option("--max-queue", type=int, default=512, help="waiting requests before 429")
    option("--max-body-bytes", type=int, default=8 << 20, help="longest request body before 413")
    _batch_options(parser)
    _add_chats(parser)
    _process_options(parser)
    return parser


def _batch_options(parser: argparse.ArgumentParser) -> None:
    """What bounds a step and the KV pool, and how both are shared."""
    option = parser.add_argument
    option("--max-num-seqs", "--max-batch-size", type=int, default=256)
    option(
        "--max-num-batched-tokens",
        "--max-num-tokens",
        type=_tokens_of_a_step,
        help="tokens of a step, or auto: as many as the TPOT limit affords "
        "(default: auto on a CPU, 2048 on a GPU and simulated)",
    )
    option(
        "--long-prefill-token-threshold",
        type=int,
        default=0,
        help="tokens of one prompt in a step, so that prompts share it (default 0: no bound)",
    )
    option("--block-size", type=int, default=32, help="tokens a KV block")
    option("--kv-cache-tokens", type=int, help="size of the KV pool (default: what fits)")
    option(
        "--gpu-memory-utilization",
        type=float,
        help="share of the memory that the weights leave for the KV pool, on any device",
    )
    option("--pipeline-parallel-size", type=int, default=1, help="only 1")
    option(
        "--capacity-policy",
        default="MAX_UTILIZATION",
        choices=get_args(CapacityPolicyName),
        help="when a request enters the batch: when it fits now, or when its end fits, too",
    )
    option(
        "--batching",
        default="chunked",
        choices=get_args(BatchingName),
        help="how decodes and prompts share a step",
    )
    option(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="launch a step before the tokens of the last one are read "
        "(default: on a single GPU, but not for models that transformers runs)",
    )
    option(
        "--cuda-graphs",
        default="auto",
        choices=get_args(CudaGraphs),
        help="off: launch the kernels of decodes one by one, as where there is no GPU",
    )
    option(
        "--preemption-mode",
        default="auto",
        choices=get_args(PreemptionModeName),
        help="auto: swap a preempted request's KV to the host where that takes less time",
    )
    option("--swap-space", type=float, default=0.0, help="GiB of the host for that KV")


def _add_chats(parser: argparse.ArgumentParser) -> None:
    """How a chat's text becomes a message."""
    option = parser.add_argument
    option(
        "--tool-call-parser",
        default="",
        choices=("", "hermes", "llama3_json", "mistral"),
        help="how calls of tools are found in a chat's text (default: they are not)",
    )
    option(
        "--reasoning-parser",
        default="",
        choices=("", "think"),
        help="think: send text in <think> apart from the content (default: no)",
    )


def _process_options(parser: argparse.ArgumentParser) -> None:
    """Ports, threads, callers and the log: what any server has."""
    option = parser.add_argument
    option("--host", default="0.0.0.0")
    option("--port", type=int, default=8000)
    option("--admin-port", type=int, default=8001)
    option("--kv-port", type=int, default=8002)
    option("--threads", type=int, help="compute threads (default: the CPU limit)")
    option("--peers-file", type=Path, help="who may call this engine (default: anyone)")
    option("--token-file", type=Path, help="token to show to prefill engines (default: none)")
    option("--tls-dir", type=Path, help="tls.crt, tls.key, ca.crt: TLS on both ports of the engine")
    option(
        "--log-format",
        default="auto",
        choices=logs.FORMATS,
        help="auto: text on a terminal, else JSON",
    )
    option("--log-level", default="info", choices=logs.LEVELS, help="debug: also each request")
    option("--termination-message", help=f"file for a load failure (default: {_TERMINATION_LOG})")


def _add_handover(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--lease-s", type=float, default=30.0, help="how long prefill holds KV for a peer")
    option("--kv-timeout-s", type=float, default=60.0, help="longest wait of a pull for progress")
    option("--kv-min-bytes-per-s", type=float, default=8e6, help="slower KV is given up")
    option(
        "--kv-on-failure",
        default="recompute",
        choices=("recompute", "fail", "colocated"),
        help="a prompt that no prefill engine handed over: compute it here, answer 503, or compute "
        "it here only while no prefill engine can be reached",
    )
    option(
        "--kv-transport",
        default="auto",
        choices=("auto", "tcp", "nixl"),
        help="auto: NIXL between engines that both have it and an RDMA adapter, else TCP",
    )


def _termination_path(argv: list[str]) -> str | None:
    """Searched for without the parser: the error may be that the options cannot be parsed."""
    for index, argument in enumerate(argv):
        if argument == "--termination-message" and index + 1 < len(argv):
            return argv[index + 1]
        if argument.startswith("--termination-message="):
            return argument.partition("=")[2]
    return _TERMINATION_LOG if os.path.exists(_TERMINATION_LOG) else None


def _report(error: LoadError, path: str | None) -> None:
    log.error("the engine cannot start: %s", error)
    _write_termination(error.reason, error.message, path)


def _write_termination(reason: str, message: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps({"reason": reason, "message": message}))
    except OSError as write_error:
        log.error("cannot write %s: %s", path, write_error.strerror)
