"""What was measured last of each area, and at which commit: `measured.json`.

A run of all areas takes hours. So `suites.mutants` replaces the areas that it measured, and the
page is written from the whole file.
"""

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path

from argosy_bench.mutation.page import Outcome
from argosy_bench.mutation.survivors import Survivor

RECORD = Path(__file__).with_name("measured.json")


def read_record(path: Path = RECORD) -> dict[str, Outcome]:
    """Outcomes by area."""
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {
        area: Outcome(**{**row, "survivors": [Survivor(*values) for values in row["survivors"]]})
        for area, row in rows.items()
    }


def write_record(outcomes: Mapping[str, Outcome], path: Path = RECORD) -> None:
    """One line for each survivor, so that a change shows which ones came and went."""
    areas = []
    for area, outcome in outcomes.items():
        keys = {"made": outcome.made, "ran": outcome.ran, "at": outcome.at}
        keys |= {"least": True} if outcome.least else {}
        survivors = ",\n".join(json.dumps(astuple(s)) for s in outcome.survivors)
        head = json.dumps(keys)[:-1]
        areas.append(f'{json.dumps(area)}: {head}, "survivors": [\n{survivors}\n]}}')
    path.write_text("{\n" + ",\n".join(areas) + "\n}\n")
