"""What one refused prompt of 1 MB a second costs all others:

    python -m tests.engine_torch.measure_long_prompts FOLDER

FOLDER holds a model, such as the one that `python -m local.weights.smollm2` prints. Four clients
ask for 8 tokens each, over and over, first alone and then beside the long prompts. Prints one JSON
object: seconds, and the ratio of the two medians.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from tests.engine_torch.engines import engine

CLIENTS, TOKENS = 4, 8
LONG = ("lorem ipsum dolor sit amet " * 40_000)[: 1 << 20]


async def _shorts(client: httpx.AsyncClient, until_s: float, index: int) -> list[float]:
    took = []
    while time.monotonic() < until_s:
        body = {"model": "m", "prompt": f"{index} and {len(took)}", "max_tokens": TOKENS}
        began = time.monotonic()
        answer = await client.post("/v1/completions", json={**body, "ignore_eos": True})
        answer.raise_for_status()
        took.append(time.monotonic() - began)
    return took


async def _longs(client: httpx.AsyncClient, until_s: float) -> set[int]:
    asked = []
    while time.monotonic() < until_s:
        post = client.post("/v1/completions", json={"model": "m", "prompt": LONG})
        asked.append(asyncio.ensure_future(post))
        await asyncio.sleep(1)
    return {answer.status_code for answer in await asyncio.gather(*asked)}


async def _probes(admin: httpx.AsyncClient, until_s: float) -> list[float]:
    took = []
    while time.monotonic() < until_s:
        began = time.monotonic()
        (await admin.get("/ready")).raise_for_status()
        took.append(time.monotonic() - began)
        await asyncio.sleep(0.2)
    return took


async def _measure(api: int, admin_port: int, seconds: float) -> dict[str, object]:
    found: dict[str, object] = {}
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{api}", timeout=600) as client,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}", timeout=600) as admin,
    ):
        for name in ("alone", "beside"):
            until_s = time.monotonic() + seconds
            work = [_shorts(client, until_s, index) for index in range(CLIENTS)]
            if name == "beside":
                work.append(_longs(client, until_s))
            probes, *answers = await asyncio.gather(_probes(admin, until_s), *work)
            took = [second for each in answers[:CLIENTS] for second in each]
            found[f"p50_{name}_s"] = round(statistics.median(took), 3)
            found[f"requests_{name}"] = len(took)
            found[f"slowest_probe_{name}_s"] = round(max(probes), 3)
    found["refused"] = sorted(answers[CLIENTS])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=20, help="each of the two halves")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        engine(args.folder, "colocated", Path(place) / "log") as made,
    ):
        found = asyncio.run(_measure(made.api, made.admin, args.seconds))
    found["ratio"] = round(found["p50_beside_s"] / found["p50_alone_s"], 2)  # type: ignore
    print(json.dumps(found))


if __name__ == "__main__":
    main()
