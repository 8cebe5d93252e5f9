"""The options of `argosy gateway run` that may change while it runs, and the object that has them.

They are the same words on the command line and in the ConfigMap that `--settings` names: its key
`flags.json` is a list of arguments. So both mean the same and are checked alike. Options that the
words leave out have their defaults again.
"""

import argparse
import hashlib
import json
import logging
import re
from dataclasses import replace
from typing import Any, NoReturn

from argosy_gateway.config import (
    DEFAULT_CLASS,
    DRAIN_MODES,
    QUEUES,
    Canary,
    Config,
    SettingsRead,
    Slo,
    SloClass,
)
from argosy_gateway.errors import SettingsError
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.routing.strategies import STRATEGIES

__all__ = ["KEY", "Settings", "add_settings", "find_error", "not_negative", "read_settings"]

log = logging.getLogger(__name__)

KEY = "flags.json"
"""Of the ConfigMap's data."""
_LONGEST_REASON = 300
"""Characters of a reason that the operator is told; the log has it whole."""
_AT_ONCE, _WITHIN_TARGET = "at-once", "within-target"


class Settings:
    """Brings what the ConfigMap says into a fleet that serves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._seen: object = self
        """What was looked at last; nothing yet."""

    def __call__(self, data: object) -> None:
        """`data` of the ConfigMap as it is now; None if there is no such object. What cannot be
        used leaves the settings as they are: a log line, a metric and the answer of /load say
        so."""
        if data == self._seen:
            return
        self._seen = data
        try:
            config = _read(data, self._gateway.config)
        except SettingsError as error:
            log.error("the settings stay as they are: %s", error)
            self._gateway.metrics.set_settings_stale(True)
            reason = str(error)[:_LONGEST_REASON]
            self._gateway.settings_read = SettingsRead(_digest(data), refused=reason)
            return
        if config != self._gateway.config:
            log.info("new settings are in use")
            self._gateway.reconfigure(config)
        self._gateway.metrics.set_settings_stale(False)
        self._gateway.settings_read = SettingsRead(_digest(data))


def _text(data: object) -> str | None:
    """The list of words as the object has it; None if it has none."""
    text = data.get(KEY) if isinstance(data, dict) else None
    return text if isinstance(text, str) else None


def _digest(data: object) -> str:
    """By this the operator knows whether the settings are those that it wrote (designs/0028)."""
    text = _text(data)
    return "" if text is None else hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _read(data: object, now: Config) -> Config:
    """The settings of the ConfigMap, over what the command line says of this process alone. Raises
    SettingsError."""
    if data is None:
        raise SettingsError(f"there is no ConfigMap {now.settings_name}")
    text = _text(data)
    if text is None:
        raise SettingsError(f"ConfigMap {now.settings_name} has no {KEY}")
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{KEY} is not JSON: {error}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingsError(f"{KEY} is not a list of strings")
    parser = _Parser(prog=KEY, add_help=False, allow_abbrev=False)
    add_settings(parser)
    args, others = parser.parse_known_args(words)
    if others:  # of a newer operator
        log.warning("settings that this gateway does not know: %s", " ".join(others))
    if wrong := find_error(args):
        raise SettingsError(wrong)
    if not args.served_name:
        raise SettingsError("--served-name is missing")
    found = read_settings(args)
    limits = replace(now.limits, body_bytes=args.max_body_bytes)
    return replace(now, **found, limits=limits)


class _Parser(argparse.ArgumentParser):
    """Raises where a command line ends the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--served-name",
        action="append",
        default=[],
        help="the model's name in requests; give it again for each further name",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        help="the name of a LoRA adapter of the engines; give it again for each further one",
    )
    parser.add_argument(
        "--pass-other-paths",
        action="store_true",
        help="paths below /v1 that the gateway does not know go to colocated pods of other engines",
    )
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default="leastLoad")
    parser.add_argument(
        "--canary",
        type=_canary,
        metavar="REVISION:PERCENT",
        help="pods of this revision get that share of the requests",
    )
    parser.add_argument("--slo-ttft-ms", type=_positive, help="needs --slo-tpot-ms; no SLO without")
    parser.add_argument("--slo-tpot-ms", type=_positive)
    parser.add_argument(
        "--slo-class",
        type=_slo_class,
        action="append",
        default=[],
        metavar="NAME:TTFT_MS:TPOT_MS:PRIORITY",
        help="limits of requests that name it in x-argosy-class; a lower priority goes first",
    )
    _add_queue_options(parser)
    parser.add_argument(
        "--max-body-bytes", type=int, default=8 << 20, help="longest request body; beyond it 413"
    )
    parser.add_argument(
        "--drain-timeout-s",
        type=_positive,
        default=60.0,
        help="from SIGTERM until the last stream is cut",
    )
    parser.add_argument(
        "--drain-mode",
        choices=DRAIN_MODES,
        default="finish",
        help="whether requests of an engine that drains end there or go on elsewhere",
    )


def _add_queue_options(parser: argparse.ArgumentParser) -> None:
    """What waits, for how long, and what is refused."""
    parser.add_argument(
        "--max-queue", type=int, default=1024, help="most requests in flight; then 429"
    )
    parser.add_argument(
        "--queue-timeout-s",
        type=_positive,
        default=30.0,
        help="longest wait of a request for a pod; then 503",
    )
    parser.add_argument(
        "--wake-timeout-s",
        type=_positive,
        help="longest wait while no pod can serve, of a fleet that goes to zero pods; then 503",
    )
    parser.add_argument(
        "--queue",
        choices=QUEUES,
        default="none",
        help="deadline: what would miss its TTFT limit on every pod waits; needs an SLO",
    )
    parser.add_argument(
        "--first-token",
        choices=(_AT_ONCE, _WITHIN_TARGET),
        default=_AT_ONCE,
        help="within-target: engines may hold the first token until its sequence joins a batch, as "
        "long as the TTFT limit allows; needs an SLO",
    )
    parser.add_argument(
        "--engine-max-num-seqs", type=int, help="sequences that an engine runs at once"
    )
    parser.add_argument(
        "--shed-ttft-factor",
        type=not_negative,
        default=0.0,
        help="shed if the predicted TTFT exceeds this multiple of the limit; 0 is off",
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def not_negative(text: str) -> float:
    """The type of an option that is 0 or more."""
    return 0.0 if float(text) == 0 else _positive(text)


def _canary(text: str) -> Canary:
    found = re.fullmatch(r"([a-z0-9]{1,63}):([1-9]|[1-4]\d|50)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not REVISION:PERCENT with 1 to 50 percent")
    return Canary(found[1], int(found[2]))


def _slo_class(text: str) -> SloClass:
    found = re.fullmatch(r"([a-z0-9-]{1,63}):([^:]+):([^:]+):(-?\d{1,3})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not NAME:TTFT_MS:TPOT_MS:PRIORITY")
    name, ttft_ms, tpot_ms, priority = found.groups()
    slo = Slo(_positive(ttft_ms) / 1000, _positive(tpot_ms) / 1000)
    return SloClass(name, slo, int(priority))


def find_error(args: argparse.Namespace) -> str | None:
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


def read_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a Config, but `limits.body_bytes`."""
    slo = Slo(args.slo_ttft_ms / 1000, args.slo_tpot_ms / 1000) if args.slo_ttft_ms else None
    return {
        "served_names": tuple(dict.fromkeys(args.served_name)),
        "adapters": tuple(dict.fromkeys(args.adapter)),
        "pass_other_paths": args.pass_other_paths,
        "strategy": args.strategy,
        "canary": args.canary,
        "slo": slo,
        "slo_classes": tuple(args.slo_class),
        "max_queue": args.max_queue,
        "queue_timeout_s": args.queue_timeout_s,
        "wake_timeout_s": args.wake_timeout_s,
        "queue": args.queue,
        "hold_first_token": args.first_token == _WITHIN_TARGET,
        "engine_places": args.engine_max_num_seqs,
        "shed_ttft_factor": args.shed_ttft_factor,
        "drain_timeout_s": args.drain_timeout_s,
        "drain_mode": args.drain_mode,
    }
