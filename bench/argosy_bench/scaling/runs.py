"""Plays a law on the traces of the table, with `argosy simulate`, and remembers constant fleets.

The search for the constant fleet costs more than the run of a law. What was found is kept in
`static.json` in the scratch folder, until the simulator or the trace changes.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from argosy_bench.scaling.score import Row
from argosy_bench.scaling.traces import Recording
from argosy_law.sim import cli

PROFILE, COLD_S = "llama-70b-h100-tp4", 90
_SIMULATOR = ("world/**/*.py", "hindsight.py", "traces.py", "rates.py")


@dataclass(frozen=True, slots=True)
class Asked:
    """What all runs have in common."""

    folder: Path
    """Of the traces."""
    scratch: Path
    """For results, and for the constant fleets that were found."""
    policy: str = "goodput"
    more: tuple[str, ...] = ()
    """More flags of `argosy simulate`."""
    one_search: bool = False
    """The constant fleets of the first seed are taken for all seeds: a search takes longer than the
    run of a law, and seeds change only how the copies of the requests are spread over 45 s."""


def play(asked: Asked, recordings: list[Recording], seeds: int, error: str) -> Iterator[Row]:
    """One row for each trace and seed, as soon as it is there.

    `error` is for --profile-error. SystemExit if the command refuses the trace or the flags.
    """
    asked.scratch.mkdir(parents=True, exist_ok=True)
    for recording in recordings:
        key = _key(asked, recording)
        for seed in range(seeds):
            yield _play(asked, recording, seed, error, f"{key} {0 if asked.one_search else seed}")


def _play(asked: Asked, recording: Recording, seed: int, error: str, key: str) -> Row:
    known = asked.scratch / "static.json"
    fleets = json.loads(known.read_text()) if known.exists() else {}
    out = asked.scratch / f"{recording.name}-{asked.policy.replace(':', '_')}-{error}-{seed}.json"
    flags = [
        *recording.flags(asked.folder, asked.scratch), *asked.more,
        "--profile", PROFILE, "--cold", str(COLD_S), "--policy", asked.policy,
        "--profile-error", error, "--seed", str(seed), "--out", str(out),
    ]  # fmt: skip
    if key in fleets:
        flags += ["--static", fleets[key][0], "--static-same-engine", fleets[key][1]]
    if cli.main(flags) != 0:
        raise SystemExit(2)
    result = json.loads(out.read_text())
    fleet = [result["replicas_static"], result["replicas_static_same_engine"]]
    if None in fleet:
        raise SystemExit(f"{recording.name}: no constant fleet meets the goal on this trace")
    known.write_text(json.dumps({**fleets, key: fleet}, indent=1) + "\n")
    return Row(recording, seed, error, result)


def _key(asked: Asked, recording: Recording) -> str:
    """Equal keys: the same requests in the same simulator."""
    code = Path(cli.__file__).parent
    content = [path for place in _SIMULATOR for path in sorted(code.glob(place))]
    digest = hashlib.sha256(repr((recording, COLD_S, PROFILE, asked.more)).encode())
    for path in (*content, *recording.files(asked.folder)):
        digest.update(path.read_bytes())
    return f"{recording.name} {digest.hexdigest()[:16]}"
