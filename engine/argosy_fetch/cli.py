"""`argosy fetch run …`: fetch one model into the claim, and say what came of it.

What came of it is the container's termination message, which the operator reads: the commit and the
folder, or reason and message of the failure.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from argosy_fetch.errors import FetchError
from argosy_fetch.fill import Filled, fill
from argosy_fetch.progress import PORT, serving
from argosy_fetch.source import Source, hub_address, s3_address

__all__ = ["main"]

_TERMINATION_LOG = "/dev/termination-log"  # the kubelet mounts it into every container
_LONGEST = 3000
"""Characters of a message."""
_MOST = 4096
"""Bytes of a result that the kubelet keeps."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="argosy fetch", description="Fetch a fleet's model.")
    run = parser.add_subparsers(dest="command", required=True).add_parser(
        "run", help="fetch, and end", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    run.add_argument("--uri", required=True, help="hf://<org>/<name>@<revision>, s3://<bucket>/…")
    run.add_argument("--root", required=True, type=Path, help="where the claim is mounted")
    run.add_argument("--fleet", required=True, help="the ServingDeployment's name")
    run.add_argument(
        "--any-architecture",
        action="store_true",
        help="for an engine image that runs more than ours does",
    )
    run.add_argument("--progress-port", type=int, default=PORT, help="for GET /progress")
    run.add_argument("--termination-message", default=_TERMINATION_LOG, help="file for the result")
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit status 0: the model is there. 1: it is not, and the result says why."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for client in ("httpx", "httpx2"):  # they log URLs whole, with passwords and signatures
        logging.getLogger(client).setLevel(logging.WARNING)
    try:
        filled = _fill(options)
    except FetchError as error:
        sys.stderr.write(f"{error}\n")
        _say(options.termination_message, _refusal(error))
        return 1
    _say(
        options.termination_message,
        {
            "commit": filled.commit,
            "path": filled.folder,
            "files": filled.files,
            "bytes": filled.size,
        },
    )
    return 0


def _refusal(error: FetchError) -> dict[str, Any]:
    """Shortened until the kubelet keeps it whole. In JSON one character has up to twelve bytes."""
    message = error.message[:_LONGEST]
    while len(json.dumps(refusal := {"reason": error.reason, "message": message})) > _MOST:
        message = message[: len(message) * 9 // 10]
    return refusal


def _fill(options: argparse.Namespace) -> Filled:
    with serving(options.progress_port) as (progress, _):
        return fill(
            _source_of(options.uri),
            options.root,
            options.fleet,
            any_architecture=options.any_architecture,
            begins=progress.begin,
        )


def _source_of(uri: str) -> Source:
    """The source that a model's URI names. FetchError(BadArgument) for another URI."""
    if hub := hub_address(uri):
        from argosy_fetch.hub import Hub

        return Hub(*hub)
    if bucket := s3_address(uri):
        from argosy_fetch.s3 import Bucket

        return Bucket(*bucket)
    raise FetchError(
        "BadArgument", f"{uri} is not hf://<org>/<name>@<revision> or s3://<bucket>/<prefix>"
    )


def _say(path: str, result: dict[str, Any]) -> None:
    text = json.dumps(result)
    sys.stdout.write(f"{text}\n")
    if path != _TERMINATION_LOG or os.path.exists(path):
        Path(path).write_text(text)
