"""Real weights behind a router for vLLM: the KV that is claimed is the prompt's own."""

import json
import urllib.request

import pytest

from local.weights.tiny import write_tiny
from tests.engine.processes import eventually
from tests.engine_torch.engines import Engine, engine

pytestmark = pytest.mark.torch

PROMPT = "once upon a time " * 9
WAYS = ({"temperature": 0}, {"temperature": 1.0, "seed": 7})
ASK_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}


def prefilled(prefill: Engine, **body: object) -> dict[str, object]:
    """As vLLM's example proxy asks for the prompt."""
    first = {"model": "m", **body, "max_tokens": 1, "kv_transfer_params": ASK_PREFILL}
    url = f"http://127.0.0.1:{prefill.api}/v1/completions"
    request = urllib.request.Request(
        url, json.dumps(first).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=100) as answer:
        params: dict[str, object] = json.load(answer)["kv_transfer_params"]
    return params


def test_the_text_is_that_of_an_engine_alone(tmp_path):
    model = write_tiny(tmp_path / "tiny")
    on = "--external-routers"
    with (
        engine(model, "prefill", tmp_path / "p.log", on) as prefill,
        engine(model, "decode", tmp_path / "d.log", on) as decode,
        engine(model, "colocated", tmp_path / "c.log") as colocated,
    ):
        for count, way in enumerate(WAYS, 1):
            prompt = f"{count} {PROMPT}"
            params = prefilled(prefill, prompt=prompt, ignore_eos=True, **way)
            claimed = decode.complete(prompt, 24, **way, kv_transfer_params=params)
            assert claimed == colocated.complete(prompt, 24, **way)
            assert decode.metric("argosy_kv_exposed_seconds_count") == count
        eventually(lambda: prefill.metric("argosy_kv_leases_active") == 0)
