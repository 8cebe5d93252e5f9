"""What a running engine says of itself: its context, its KV capacity, the limits of its steps.

Ours answers on its admin port, vLLM and SGLang on the port that serves. What an engine does not
say is None.
"""

import argparse
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from argosy_measure.client import find_model, read_url
from argosy_measure.command import read_as, read_header

ADMIN_PORT = 8001
"""Of our engine; its default."""
_TOKENS = range(100, 250)
"""Ids that every vocabulary has and that few models give a meaning of their own. Sixteen of them
in a row, the shortest block of a prefix cache, do not come twice."""


@dataclass(frozen=True, slots=True)
class About:
    """What an engine says of itself."""

    model: str
    max_model_len: int | None = None
    """Most tokens of prompt and answer together."""
    kv_tokens: int | None = None
    """Tokens that its KV pool holds."""
    max_num_seqs: int | None = None
    step_tokens: int | None = None
    """Most tokens of one step."""


def draw_prompt(random: Random, tokens: int) -> tuple[int, ...]:
    """Draw a prompt that no prefix cache holds."""
    return tuple(random.choices(_TOKENS, k=tokens))


async def read_about(
    http: httpx.AsyncClient, url: str, admin: str, model: str | None = None
) -> About:
    """Ask the engine. ServerError if it does not answer."""
    model = model or await find_model(http, url)
    models = await _json(http, f"{url}/v1/models")
    rows = models.get("data")
    cards = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    card = next((row for row in cards if row.get("id") == model), cards[0] if cards else {})
    limits = await _json(http, f"{admin}/limits")
    sglang = {} if limits else await _json(http, f"{url}/get_server_info")
    kv_tokens = None
    for page in (f"{url}/metrics", f"{admin}/metrics"):
        with contextlib.suppress(httpx.HTTPError):
            kv_tokens = kv_tokens or find_kv_tokens((await http.get(page)).text)
    return About(
        model,
        _whole(card.get("max_model_len")),
        kv_tokens or _whole(sglang.get("max_total_num_tokens")),
        _whole(limits.get("max_num_seqs")) or _whole(sglang.get("max_running_requests")),
        _whole(limits.get("step_tokens")) or _whole(sglang.get("chunked_prefill_size")),
    )


def find_kv_tokens(metrics: str) -> int | None:
    """Return the KV tokens in a page of Prometheus metrics, of vLLM's or SGLang's names."""
    info = re.search(r"^vllm:cache_config_info\{([^}]*)\}", metrics, re.MULTILINE)
    if info:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', info[1]))
        size, blocks = _whole(labels.get("block_size")), _whole(labels.get("num_gpu_blocks"))
        return size * blocks if size and blocks else None
    tokens = re.search(r"^sglang:max_total_num_tokens(?:\{[^}]*\})? (\S+)", metrics, re.MULTILINE)
    return _whole(tokens[1]) if tokens else None


async def _json(http: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
    """Return the object at an address; an empty one if there is none."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        response = await http.get(url)
        found = response.json() if response.status_code == 200 else {}
        return found if isinstance(found, Mapping) else {}
    return {}


def _whole(value: object) -> int | None:
    """Return a whole number above 0; None for anything else, such as -1 for no limit."""
    try:
        number = int(float(str(value)))
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None


def admin_of(url: str) -> str:
    """Return where the admin port of our engine is by default."""
    return str(httpx.URL(url).copy_with(port=ADMIN_PORT, path="/")).rstrip("/")


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which engine is measured."""
    option = parser.add_argument
    option(
        "url", type=read_as(read_url), metavar="URL", help="an engine that serves nothing else now"
    )
    option("--model", help="default: the first that it lists")
    option(
        "--admin",
        type=read_as(read_url),
        metavar="URL",
        help=f"of Argosy's engine (default: port {ADMIN_PORT} of the same host)",
    )
    option(
        "--header", type=read_as(read_header), action="append", default=[], help="such as a token"
    )
