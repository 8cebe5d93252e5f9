"""Survivors: where they are, what they change, and why some are accepted.

The diffs come from mutmut (`workspace.py`), the lines from the source files, the reasons from
`accepted.toml`.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ACCEPTED = Path(__file__).with_name("accepted.toml")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A change that no test noticed."""

    function: str
    """Dotted name, such as `argosy_operator.core.plan.plan` or `….snapshot.Snapshot.owned`."""
    file: str
    """From the root of the repository."""
    line: int
    before: str
    """The changed line, stripped."""
    after: str

    @property
    def change(self) -> str:
        """What `Accepted.change` is matched against."""
        return f"{self.before} => {self.after}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Survivors that stay, with the reason."""

    function: str
    """Pattern of the dotted name."""
    change: str
    """Regular expression, searched in `Survivor.change`."""
    reason: str
    """It begins with `equivalent`, `speed only`, `message`, or with `cluster test` and its name."""

    def covers(self, survivor: Survivor) -> bool:
        """Whether the survivor is one of these."""
        named = fnmatchcase(survivor.function, self.function)
        return named and re.search(self.change, survivor.change) is not None


def read_accepted(path: Path = ACCEPTED) -> list[Accepted]:
    """The rows of the file. TypeError for a row with a missing or unknown key."""
    return [Accepted(**row) for row in tomllib.loads(path.read_text()).get("accepted", [])]


def reason_of(survivor: Survivor, accepted: Iterable[Accepted]) -> str | None:
    """Why the survivor is accepted; None if it is not."""
    return next((row.reason for row in accepted if row.covers(survivor)), None)


def function_of(mutant: str) -> str:
    """The dotted name of a mutant's function: `a.b.xǁFoldǁsum__mutmut_3` is `a.b.Fold.sum`."""
    module, _, name = mutant.partition("__mutmut_")[0].rpartition(".")
    plain = name.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in name else name.removeprefix("x_")
    return f"{module}.{plain}"


def survivor_of(mutant: str, diff: str, file: Path, root: Path) -> Survivor:
    """Read a mutant's diff; `file` is its source below `root`."""
    changed = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@"))]
    before = next((line[1:].strip() for line in changed if line.startswith("-")), "")
    after = next((line[1:].strip() for line in changed if line.startswith("+")), "")
    function = function_of(mutant)
    line = _line_of(file, function.rpartition(".")[2], before)
    return Survivor(function, str(file.relative_to(root)), line, before, after)


def _line_of(file: Path, function: str, changed: str) -> int:
    """The first line at or after `def function` that reads `changed`; 1 if there is none."""
    inside = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        inside = inside or re.match(rf"\s*(async )?def {re.escape(function)}\b", line) is not None
        if inside and line.strip() == changed:
            return number
    return 1
