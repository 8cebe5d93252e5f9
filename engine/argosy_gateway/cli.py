"""`argosy gateway run …`: reads the command line (designs/0001-seams.md, section 2) and serves."""

import argparse
import asyncio
import logging
import os
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from argosy_gateway import logs
from argosy_gateway.accounting.classes import DEFAULT_CLASS, SloClass
from argosy_gateway.accounting.verdicts import Slo
from argosy_gateway.config import DRAIN_MODES, QUEUES, Config, Limits
from argosy_gateway.errors import CredentialsError
from argosy_gateway.pods.credentials import from_kubeconfig, in_cluster
from argosy_gateway.pods.watch import WatchTimes, follow_api_server, follow_file
from argosy_gateway.relay.fleet import Fleet
from argosy_gateway.routing.strategies.registry import STRATEGIES
from argosy_gateway.server.serve import serve

__all__ = ["main", "parse"]


log = logging.getLogger(__name__)

_LOG_FORMAT = "auto: text on a terminal, JSON elsewhere"
_LOG_LEVEL = "debug: lines about each request, too"
_AT_ONCE, _WITHIN_TARGET = "at-once", "within-target"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="argosy gateway", description="A fleet's gateway.")
    run = parser.add_subparsers(dest="command", required=True).add_parser(
        "run", help="serve until SIGTERM", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    run.add_argument("--fleet", required=True, help="the ServingDeployment's name")
    run.add_argument("--namespace", required=True, help="its namespace")
    run.add_argument("--served-name", required=True, help="the model's name in requests")
    run.add_argument("--strategy", choices=sorted(STRATEGIES), default="leastLoad")
    run.add_argument("--slo-ttft-ms", type=_positive, help="needs --slo-tpot-ms; no SLO without")
    run.add_argument("--slo-tpot-ms", type=_positive)
    run.add_argument(
        "--slo-class",
        type=_slo_class,
        action="append",
        default=[],
        metavar="NAME:TTFT_MS:TPOT_MS:PRIORITY",
        help="limits of requests that name it in x-argosy-class; a lower priority goes first",
    )
    _add_queue_options(run)
    _add_drain(run)
    run.add_argument(
        "--max-body-bytes", type=int, default=8 << 20, help="longest request body; beyond it 413"
    )
    run.add_argument("--host", default="0.0.0.0")
    run.add_argument("--port", type=int, default=8080)
    run.add_argument("--admin-port", type=int, default=8081)
    run.add_argument("--token-file", type=Path, help="token to show to engines")
    run.add_argument("--tls-dir", type=Path, help="tls.crt, tls.key, ca.crt for engines with TLS")
    run.add_argument("--log-format", choices=logs.FORMATS, default="auto", help=_LOG_FORMAT)
    run.add_argument("--log-level", choices=logs.LEVELS, default="info", help=_LOG_LEVEL)
    source = run.add_mutually_exclusive_group()
    source.add_argument("--kubeconfig", type=Path, help="outside a cluster")
    source.add_argument("--endpoints", type=Path, help="a JSON file instead of the API server")
    return parser


def _add_queue_options(run: argparse.ArgumentParser) -> None:
    """What waits, for how long, and what is refused."""
    run.add_argument(
        "--max-queue", type=int, default=1024, help="most requests in flight; then 429"
    )
    run.add_argument(
        "--queue-timeout-s",
        type=_positive,
        default=30.0,
        help="longest wait of a request for a pod; then 503",
    )
    run.add_argument(
        "--wake-timeout-s",
        type=_positive,
        help="longest wait while no pod can serve, of a fleet that goes to zero pods; then 503",
    )
    run.add_argument(
        "--queue",
        choices=QUEUES,
        default="none",
        help="deadline: what would miss its TTFT limit on every pod waits; needs an SLO",
    )
    run.add_argument(
        "--first-token",
        choices=(_AT_ONCE, _WITHIN_TARGET),
        default=_AT_ONCE,
        help="within-target: engines may hold the first token until its sequence joins a batch, as "
        "long as the TTFT limit allows; needs an SLO",
    )
    run.add_argument(
        "--engine-max-num-seqs", type=int, help="sequences that an engine runs at once"
    )
    run.add_argument(
        "--shed-ttft-factor",
        type=_not_negative,
        default=0.0,
        help="shed if the predicted TTFT exceeds this multiple of the limit; 0 is off",
    )


def _add_drain(run: argparse.ArgumentParser) -> None:
    """How this gateway's pod leaves, and what requests of an engine do that leaves."""
    run.add_argument("--drain-timeout-s", type=_positive, default=60.0)
    run.add_argument(
        "--drain-lag-s",
        type=_not_negative,
        default=6.0,
        help="after SIGTERM, how long new connections are still taken",
    )
    run.add_argument(
        "--drain-mode",
        choices=DRAIN_MODES,
        default="finish",
        help="whether requests of an engine that drains end there or go on elsewhere",
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _slo_class(text: str) -> SloClass:
    found = re.fullmatch(r"([a-z0-9-]{1,63}):([^:]+):([^:]+):(-?\d{1,3})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not NAME:TTFT_MS:TPOT_MS:PRIORITY")
    name, ttft_ms, tpot_ms, priority = found.groups()
    slo = Slo(_positive(ttft_ms) / 1000, _positive(tpot_ms) / 1000)
    return SloClass(name, slo, int(priority))


def _not_negative(text: str) -> float:
    return 0.0 if float(text) == 0 else _positive(text)


def _wrong(args: argparse.Namespace) -> str | None:
    """What is wrong with flags together, or with a number; None if nothing is."""
    if (args.slo_ttft_ms is None) != (args.slo_tpot_ms is None):
        return "an SLO needs both --slo-ttft-ms and --slo-tpot-ms"
    if args.max_queue < 1:
        return "--max-queue must be at least 1"
    if args.max_body_bytes < 1:
        return "--max-body-bytes must be at least 1"
    if args.engine_max_num_seqs is not None and args.engine_max_num_seqs < 1:
        return "--engine-max-num-seqs must be at least 1"
    names = [one.name for one in args.slo_class]
    if len({DEFAULT_CLASS, *names}) != len(names) + 1:
        return f"each --slo-class needs a name of its own, and not '{DEFAULT_CLASS}'"
    if args.slo_ttft_ms is None:
        needing = (
            (f"--queue {args.queue}", args.queue != "none"),
            (f"--first-token {args.first_token}", args.first_token != _AT_ONCE),
            ("--slo-class", names),
        )
        for flag, given in needing:
            if given:
                return f"{flag} needs --slo-ttft-ms and --slo-tpot-ms"
    return None


def parse(argv: Sequence[str]) -> Config:
    """The command line as a Config. Exits with status 2 and a message if it is wrong."""
    parser = _parser()
    args = parser.parse_args(argv)
    if wrong := _wrong(args):
        parser.error(wrong)
    slo = Slo(args.slo_ttft_ms / 1000, args.slo_tpot_ms / 1000) if args.slo_ttft_ms else None
    return Config(
        fleet=args.fleet,
        namespace=args.namespace,
        served_name=args.served_name,
        strategy=args.strategy,
        slo=slo,
        slo_classes=tuple(args.slo_class),
        max_queue=args.max_queue,
        queue_timeout_s=args.queue_timeout_s,
        wake_timeout_s=args.wake_timeout_s,
        queue=args.queue,
        hold_first_token=args.first_token == _WITHIN_TARGET,
        engine_places=args.engine_max_num_seqs,
        shed_ttft_factor=args.shed_ttft_factor,
        drain_timeout_s=args.drain_timeout_s,
        drain_lag_s=args.drain_lag_s,
        drain_mode=args.drain_mode,
        host=args.host,
        port=args.port,
        admin_port=args.admin_port,
        kubeconfig=args.kubeconfig,
        endpoints_file=args.endpoints,
        pod_name=os.environ.get("POD_NAME", ""),
        token_file=args.token_file,
        tls_dir=args.tls_dir,
        log_format=args.log_format,
        log_level=args.log_level,
        limits=Limits(body_bytes=args.max_body_bytes),
    )


async def _run(config: Config) -> None:
    fleet = Fleet(config, asyncio.get_running_loop().time)
    await serve(fleet, _source(fleet))


def _source(fleet: Fleet) -> Coroutine[Any, Any, None]:
    config = fleet.config
    if config.endpoints_file is not None:
        return follow_file(config.endpoints_file, into=fleet.directory)
    server = from_kubeconfig(config.kubeconfig) if config.kubeconfig else in_cluster()
    return follow_api_server(
        server,
        namespace=config.namespace,
        fleet=config.fleet,
        into=fleet.directory,
        times=WatchTimes(),
    )


def main(argv: list[str]) -> int:
    """Run `argosy gateway <argv>` and return the exit status: 0 after a drain, 1 on an error."""
    config = parse(argv)
    logs.configure(config.log_format, config.log_level, quiet=("uvicorn",))
    logs.bind(namespace=config.namespace, fleet=config.fleet)
    try:
        uvloop.run(_run(config))
    except (CredentialsError, OSError) as error:
        log.error("the gateway ends: %s", error)
        return 1
    return 0
