"""Figures files as a table in a page: `make show-figures` after the commands that measure.

    python -m argosy_bench.shown PAGE FILE…

Replaces the lines between the two marks of the page. Rows of commands that no FILE is of stay, with
the date and the machine that they were measured on.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: make show-figures -->", "<!-- end of figures -->"
_HEAD = "| command | figure | value | target | measured |\n|---|---|---|---|---|\n"


def rows_of(document: dict[str, Any]) -> list[str]:
    """One row for each figure of a figures file, in its order."""
    environment = document["environment"]
    machine = f"{environment['cores']} cores, {environment['processor']}"
    rows = []
    for name, value in document["figures"].items():
        target, unit = document["targets"].get(name), document["units"][name]
        bound = f"{target['sign']} {target['value']:g}" if target else ""
        missed = ", missed" if target and not target["met"] else ""
        shown = f"{value:g} {unit}".strip() + missed
        cells = (f"`{document['command']}`", f"`{name}`", shown, bound)
        rows.append(f"| {' | '.join(cells)} | {environment['date']}, {machine} |")
    return rows


def shown_in(page: str, documents: Iterable[dict[str, Any]]) -> str:
    """The page with the documents' rows. ValueError if it lacks the marks."""
    if BEGIN not in page or END not in page.partition(BEGIN)[2]:
        raise ValueError(f"the page has no place for figures: write the lines {BEGIN} and {END}")
    before, _, rest = page.partition(BEGIN)
    block, _, after = rest.partition(END)
    kept = {row: None for row in block.splitlines() if row.startswith("| `")}
    for document in documents:
        rows = rows_of(document)
        program = " ".join(document["command"].split()[:2])
        kept = {row: None for row in kept if not row.startswith(f"| `{program}")}
        kept |= dict.fromkeys(rows)
    table = _HEAD + "".join(f"{row}\n" for row in kept)
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def main() -> int:
    """Write the page; exit status 2 without files."""
    if len(sys.argv) < 3:
        sys.stderr.write("usage: python -m argosy_bench.shown PAGE FILE…\n")
        return 2
    page = Path(sys.argv[1])
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[2:]]
    page.write_text(shown_in(page.read_text(), documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
