"""`argosy gateway run …`: reads the command line (designs/0001-seams.md, section 2) and serves."""

import argparse
import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from argosy import logs
from argosy_gateway.config import Config, Limits
from argosy_gateway.errors import CredentialsError
from argosy_gateway.options import (
    Settings,
    add_settings,
    find_error,
    not_negative,
    read_settings,
)
from argosy_gateway.pods.credentials import ApiServer, from_kubeconfig, in_cluster
from argosy_gateway.pods.watch import WatchTimes, follow_api_server, follow_file, follow_settings
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server.serve import serve

__all__ = ["main", "parse"]


log = logging.getLogger(__name__)

_LOG_FORMAT = "auto: text on a terminal, JSON elsewhere"
_LOG_LEVEL = "debug: lines about each request, too"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="argosy gateway", description="A fleet's gateway.")
    run = parser.add_subparsers(dest="command", required=True).add_parser(
        "run", help="serve until SIGTERM", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    run.add_argument("--fleet", required=True, help="the ServingDeployment's name")
    run.add_argument("--namespace", required=True, help="its namespace")
    add_settings(run)
    run.add_argument(
        "--settings",
        metavar="NAME",
        help="a ConfigMap of the namespace that has the options before this one, and is followed "
        "while it changes",
    )
    run.add_argument(
        "--drain-lag-s",
        type=not_negative,
        default=6.0,
        help="after SIGTERM, how long new connections are still taken",
    )
    run.add_argument(
        "--cors-origin",
        action="append",
        default=_cors_origins(os.environ.get("ARGOSY_CORS_ORIGINS", "")),
        help="an origin whose pages may read answers, such as https://app.example, or *; give it "
        "again for each further one. Default: those of $ARGOSY_CORS_ORIGINS, parted by commas",
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


def _cors_origins(text: str) -> list[str]:
    return [origin for part in text.split(",") if (origin := part.strip())]


def _find_error(args: argparse.Namespace) -> str | None:
    """What is wrong with flags together; None if nothing is."""
    if args.settings is None and not args.served_name:
        return "name the model with --served-name, or the ConfigMap that does with --settings"
    if args.settings is not None and args.endpoints is not None:
        return "--settings is read from the API server, which --endpoints does without"
    return find_error(args)


def parse(argv: Sequence[str]) -> Config:
    """The command line as a Config. Exits with status 2 and a message if it is wrong."""
    parser = _parser()
    args = parser.parse_args(argv)
    if wrong := _find_error(args):
        parser.error(wrong)
    return Config(
        fleet=args.fleet,
        namespace=args.namespace,
        settings_name=args.settings or "",
        **read_settings(args),
        drain_lag_s=args.drain_lag_s,
        cors_origins=tuple(args.cors_origin),
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
    gateway = Gateway(config, asyncio.get_running_loop().time)
    await serve(gateway, _source(gateway))


def _source(gateway: Gateway) -> Coroutine[Any, Any, None]:
    config = gateway.config
    if config.endpoints_file is not None:
        return follow_file(config.endpoints_file, into=gateway.directory)
    server = from_kubeconfig(config.kubeconfig) if config.kubeconfig else in_cluster()
    return _follow(server, gateway)


async def _follow(server: ApiServer, gateway: Gateway) -> None:
    """Keep pods and settings current until cancelled."""
    config, times, into = gateway.config, WatchTimes(), gateway.directory
    follows = [
        follow_api_server(
            server, namespace=config.namespace, fleet=config.fleet, into=into, times=times
        )
    ]
    if config.settings_name:
        target = f"/api/v1/namespaces/{config.namespace}/configmaps/{config.settings_name}"
        follows.append(follow_settings(server, target, Settings(gateway), times=times))
    await asyncio.gather(*follows)


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
