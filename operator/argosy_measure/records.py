"""Records of requests: written as the answers come, and read again, also those of other clients.

Our own file has a JSON object a line: first the limits of the load, then one row a request.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from argosy_measure.score import Limits, Row


class RecordError(Exception):
    """A file that has no records of requests. The message says what to give instead."""


KNOWN = (
    "the file of `argosy bench --records`, benchmarks.json of guidellm, profile_export.jsonl of "
    "aiperf, or the file of `vllm bench serve --save-result --save-detailed`"
)
_FIRST = "argosy_bench"
"""Key of the first line, with the version of the format."""


def begin(file: TextIO, limits: Limits, **about: object) -> None:
    """Write the first line: the limits, and what else is worth knowing."""
    _write(file, {_FIRST: 1, **asdict(limits), **about})


def append(file: TextIO, row: Row) -> None:
    """Write one row at once, so that a crash of the client loses nothing."""
    _write(file, {name: value for name, value in asdict(row).items() if value not in (None, "")})


def _write(file: TextIO, row: Mapping[str, object]) -> None:
    file.write(json.dumps(row, separators=(",", ":")) + "\n")
    file.flush()


def read(path: Path) -> tuple[list[Row], Limits | None]:
    """Read the rows of a file, and the limits if it has them. RecordError, OSError."""
    text = path.read_text(errors="replace")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    try:
        if isinstance(whole, dict) and "benchmarks" in whole:
            rows, limits = _of_guidellm(whole), None
        elif isinstance(whole, dict) and "ttfts" in whole:
            rows, limits = _of_vllm(whole), None
        else:
            rows, limits = _of_lines(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path} is none that can be read ({type(error).__name__}: {error}): give {KNOWN}"
        ) from None
    if not rows:
        raise RecordError(f"{path} has no request: give {KNOWN}")
    first = min(row.at_s for row in rows)
    if limits is None:  # Clocks of other clients begin anywhere.
        rows = [_shift(row, first) for row in rows]
    return sorted(rows, key=lambda row: row.at_s), limits


def _shift(row: Row, by_s: float) -> Row:
    return Row(**{**asdict(row), "at_s": row.at_s - by_s, "ended_s": row.ended_s - by_s})


def _of_lines(text: str) -> tuple[list[Row], Limits | None]:
    """Read lines of ours or of aiperf. A last line without its end was cut, and is left out."""
    lines = [line for line in text[: text.rfind("\n") + 1].splitlines() if line.strip()]
    objects = [json.loads(line) for line in lines]
    if objects and _FIRST in objects[0]:
        names = {field.name for field in fields(Row)}
        rows = [
            Row(**{"ttft_s": None, "tpot_s": None, **{k: v for k, v in row.items() if k in names}})
            for row in objects[1:]
        ]
        return rows, Limits(*(float(objects[0][name]) for name in ("ttft_s", "tpot_s", "goal")))
    counted = [one for one in objects if one["metadata"]["benchmark_phase"] == "profiling"]
    return [_of_aiperf(one) for one in counted], None


def _of_aiperf(one: Mapping[str, Any]) -> Row:
    """Read a line of `profile_export.jsonl` (aiperf's `MetricRecordInfo`)."""
    about, error = one["metadata"], one.get("error")

    def of(name: str) -> float | None:
        metric = (one["metrics"] or {}).get(name)
        if metric is None:
            return None
        return float(metric["value"]) * (1e-3 if metric["unit"] == "ms" else 1)

    # Its own tokeniser may be another one than the server's: the server's count goes first.
    tokens = of("usage_completion_tokens") or of("output_sequence_length") or 0
    prompt = of("usage_prompt_tokens") or of("input_sequence_length")
    ttft, whole = of("time_to_first_token"), of("request_latency")
    decode_s = None if ttft is None or whole is None else whole - ttft
    return Row(
        at_s=about["request_start_ns"] / 1e9,
        ended_s=about["request_end_ns"] / 1e9,
        ttft_s=ttft,
        tpot_s=decode_s / (tokens - 1) if decode_s is not None and tokens > 1 else None,
        tokens=int(tokens),
        prompt_tokens=None if prompt is None else int(prompt),
        error=None if error is None else str(error["message"]),
        id=str(about.get("x_request_id") or ""),
    )


def _of_guidellm(whole: Mapping[str, Any]) -> list[Row]:
    """Read `benchmarks.json` of guidellm, which has all requests of one or more benchmarks.

    Requests that it cut off at the end of a benchmark (`incomplete`) are left out.
    """
    if len(whole["benchmarks"]) != 1:
        raise ValueError(
            f"it has {len(whole['benchmarks'])} benchmarks at different rates; record one a file"
        )
    requests = whole["benchmarks"][0]["requests"]
    ok = [_of_guidellms(one, None) for one in requests["successful"] or ()]
    return ok + [
        _of_guidellms(one, (one["info"]["error"] or "failed").splitlines()[0])
        for one in requests["errored"] or ()
    ]


def _of_guidellms(one: Mapping[str, Any], error: str | None) -> Row:
    ttft, itl = one["time_to_first_token_ms"], one["inter_token_latency_ms"]
    due = one["info"]["timings"].get("targeted_start")
    # Its time_per_output_token_ms counts the first token as well; ours is its inter-token latency.
    return Row(
        at_s=one["request_start_time"],
        ended_s=one["request_end_time"],
        ttft_s=None if ttft is None else ttft / 1e3,
        tpot_s=None if itl is None else itl / 1e3,
        tokens=one["output_tokens"] or 0,
        prompt_tokens=one["prompt_tokens"],
        late_s=0.0 if due is None else max(0.0, one["request_start_time"] - due),
        error=error,
        id=one["request_id"],
    )


def _of_vllm(whole: Mapping[str, Any]) -> list[Row]:
    """Read what `vllm bench serve` saves with its details: a list a column, in equal order."""
    names = ("start_times", "ttfts", "itls", "output_lens", "input_lens", "errors")
    columns, rows = [whole[name] for name in names], []
    for start, ttft, gaps, tokens, prompt, error in zip(*columns, strict=True):
        decode_s = sum(gaps)
        # Of a request that fails before its first token, ttft is 0; its error is a traceback.
        failed = str(error).strip().splitlines()[-1:] or ([] if tokens else ["it has no token"])
        rows.append(
            Row(
                at_s=start,
                ended_s=start + ttft + decode_s,
                ttft_s=ttft or None,
                tpot_s=decode_s / (tokens - 1) if tokens > 1 else None,
                tokens=tokens,
                prompt_tokens=prompt,
                error=failed[0] if failed else None,
            )
        )
    return rows
