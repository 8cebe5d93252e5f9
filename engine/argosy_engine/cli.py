"""`argosy engine serve …`: options to `EngineConfig`, load failures to a termination message."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
from typing import NoReturn

from argosy_engine import logs
from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError

__all__ = ["main", "parse"]

log = logging.getLogger(__name__)

_TERMINATION_LOG = "/dev/termination-log"  # kubelet mounts it into every container


def main(argv: list[str]) -> int:
    """Exit status: 0 after a drain, 1 when the engine could not start, 2 for a wrong word."""
    logs.configure()
    if argv[:1] != ["serve"]:
        sys.stderr.write("usage: argosy engine serve --model … --served-name … (see --help)\n")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    try:
        config = parse(argv[1:])
        logs.configure(config.log_format, config.log_level)
        _leave_on_signals()
        import asyncio

        from argosy_engine.server.serve import serve

        return asyncio.run(serve(config))
    except LoadError as failure:
        _report(failure, _termination_path(argv))
        return 1


def _leave_on_signals() -> None:
    """Until the engine serves there is nothing to drain: end at once, also in the midst of a load.

    The first process of a container has no default for SIGTERM: without a handler the kernel drops
    it, and a pod removed while it loads would hold its accelerator until the grace period is over.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def parse(words: list[str]) -> EngineConfig:
    """Words after `serve`; LoadError("BadArgument") says which one is wrong and what to write."""
    options = vars(_parser().parse_args(words))
    if options["load_format"] == "auto" and options["model"].startswith("sim:"):
        options["load_format"] = "sim"
    config = EngineConfig(
        **options,
        pod_name=os.environ.get("POD_NAME") or socket.gethostname(),
        pod_ip=os.environ.get("POD_IP", ""),
    )
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and value <= 0:
            flag = "--" + name.replace("_", "-")
            raise LoadError("BadArgument", f"{flag} must be greater than 0, got {value}")
    return config


_POSITIVE = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_tokens",
    "slo_ttft_ms", "slo_tpot_ms", "lease_s", "kv_timeout_s", "queue_timeout_s", "max_queue",
    "max_body_bytes", "threads",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LoadError("BadArgument", f"{message} (see argosy engine serve --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="argosy engine serve", allow_abbrev=False)
    option = parser.add_argument
    option("--model", required=True, help="folder with safetensors, or sim:PRESET")
    option("--served-name", required=True, help="the name that clients write in `model`")
    option("--role", default="colocated", choices=("colocated", "prefill", "decode"))
    option("--load-format", default="auto", choices=("auto", "dummy", "sim"))
    option("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    option("--max-model-len", type=int, help="tokens of prompt plus output (default: the model's)")
    option("--max-num-seqs", "--max-batch-size", type=int, default=256)
    option("--max-num-batched-tokens", "--max-num-tokens", type=int, default=2048)
    option("--block-size", type=int, default=32, help="tokens a KV block")
    option("--kv-cache-tokens", type=int, help="size of the KV pool (default: what fits)")
    option(
        "--capacity-policy",
        default="MAX_UTILIZATION",
        choices=("MAX_UTILIZATION", "GUARANTEED_NO_EVICT"),
        help="admit what fits now and preempt if that was too much, or reserve max_tokens",
    )
    option("--slo-ttft-ms", type=float, help="becomes an edge of the TTFT histogram")
    option("--slo-tpot-ms", type=float, help="becomes an edge of the per-token histograms")
    option("--lease-s", type=float, default=30.0, help="how long prefill holds KV unrenewed")
    option("--kv-timeout-s", type=float, default=60.0, help="longest pull, all candidates")
    option("--queue-timeout-s", type=float, default=600.0, help="longest wait for admission")
    option("--drain-timeout-s", type=float, default=600.0, help="longest wait after SIGTERM")
    option("--max-queue", type=int, default=512, help="waiting requests before 429")
    option("--max-body-bytes", type=int, default=8 << 20, help="longest request body before 413")
    option("--host", default="0.0.0.0")
    option("--port", type=int, default=8000)
    option("--admin-port", type=int, default=8001)
    option("--kv-port", type=int, default=8002)
    option("--threads", type=int, help="compute threads (default: the CPU limit)")
    option(
        "--log-format", default="auto", choices=logs.FORMATS, help="auto: JSON but for terminals"
    )
    option("--log-level", default="info", choices=logs.LEVELS, help="debug: each request, too")
    option("--termination-message", help=f"file for a load failure (default: {_TERMINATION_LOG})")
    return parser


def _termination_path(argv: list[str]) -> str | None:
    """Found by hand: the failure may be that the options could not be parsed."""
    for index, word in enumerate(argv):
        if word == "--termination-message" and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith("--termination-message="):
            return word.partition("=")[2]
    return _TERMINATION_LOG if os.path.exists(_TERMINATION_LOG) else None


def _report(failure: LoadError, path: str | None) -> None:
    text = json.dumps({"reason": failure.reason, "message": failure.message})
    log.error("the engine cannot start: %s", failure)
    if path is None:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as fault:
        log.error("cannot write %s: %s", path, fault.strerror)
