"""docs/measured/mutants.md: the figures of one run, and every survivor with its reason.

`suites/mutants.py` gives the outcomes. Lines are cut at 100 columns; the figures file has them
whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from argosy_bench.mutation.survivors import Accepted, Survivor, reason_of

_OTHERS = "In areas with a bound. These have no reason to stay: each waits for a test."

_HEAD = """# Mutants: what the tests notice

`make mutants` changes the code in one place at a time with
[mutmut](https://mutmut.readthedocs.io): an operator, a number, a text, a missing argument. It then
runs the tests that enter the changed function. A mutant that no test notices survives: the same
mistake in a commit would land.

The bound is 0.85 for each area that has one; of the others a fixed sample of at most 300 mutants is
run. Where fewer mutants were run than made, the share is that of a sample: with 200 mutants it is
known to 5 points, with 100 to 7, with 30 to 13. Accepted survivors count as survivors in every
share. An area of which the time left mutants unrun keeps its older row: those with the fastest
tests run first, so its share would not be that of the sample.

A share with ≥ was measured with the tests of those modules alone, which is quicker. Other tests may
notice more.

This page is written by `make mutants MUTANTS="--write --sample 300"`, or area by area with `--area
NAME`: a row says on which day and at which commit its area was measured.
"""


@dataclass(slots=True)
class Outcome:
    """What was run of an area."""

    made: int = 0
    """Mutants that there are; a sample is fewer."""
    ran: int = 0
    survivors: list[Survivor] = field(default_factory=list)
    at: str = ""
    """Day and commit of the measurement."""
    least: bool = False
    """Only some of the program's tests were run: with all of them the share may be larger."""

    @property
    def share(self) -> float:
        """Of the mutants that were run, how many a test noticed."""
        return 1 - len(self.survivors) / self.ran


def page(
    outcomes: Mapping[str, Outcome],
    bounds: Mapping[str, float],
    accepted: list[Accepted],
    environment: Mapping[str, object],
) -> str:
    """The whole page. `bounds` has the areas with a bound."""
    machine = f"{environment['processor']}, {environment['cores']} cores"
    lines = [
        _HEAD,
        f"Written on {environment['date']} ({machine}, Python {environment['python']}).",
        "",
        "| area | made | run | killed | share | bound | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    bound = {name: outcome for name, outcome in outcomes.items() if name in bounds}
    for name, outcome in outcomes.items():
        limit = f"{bounds[name]:g}" if name in bounds else ""
        lines.append(f"{_row(name, [outcome], limit)} {outcome.at} |")
    if bound:
        whole = _row("**all with a bound**", bound.values(), f"{max(bounds.values()):g}")
        lines.append(f"{whole}  |")
    lines += ["", "## Accepted survivors", "", *_accepted(outcomes, accepted)]
    lines += ["## Other survivors", "", _OTHERS, "", *_open(bound, accepted)]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, outcomes: Iterable[Outcome], bound: str) -> str:
    together = list(outcomes)
    made, ran = sum(o.made for o in together), sum(o.ran for o in together)
    survived = sum(len(o.survivors) for o in together)
    share = f"{'≥ ' * any(o.least for o in together)}{1 - survived / ran:.3f}"
    return f"| {name} | {made} | {ran} | {ran - survived} | {share} | {bound} |"


def _accepted(outcomes: Mapping[str, Outcome], accepted: list[Accepted]) -> Iterator[str]:
    by_reason: dict[str, list[Survivor]] = {}
    for survivor in (s for o in outcomes.values() for s in o.survivors):
        if (reason := reason_of(survivor, accepted)) is not None:
            by_reason.setdefault(reason, []).append(survivor)
    if not by_reason:
        yield from ("None.", "")
    for reason, survivors in sorted(by_reason.items()):
        functions = sorted({s.function.partition(".")[2] for s in survivors})
        yield _cut(f"- {reason} ({len(survivors)})")
        yield from (_cut(f"  - `{function}`") for function in functions)
        yield ""


def _open(outcomes: Mapping[str, Outcome], accepted: list[Accepted]) -> Iterator[str]:
    """By file, in the areas with a bound."""
    by_file: dict[str, list[Survivor]] = {}
    for survivor in (s for o in outcomes.values() for s in o.survivors):
        if reason_of(survivor, accepted) is None:
            by_file.setdefault(survivor.file, []).append(survivor)
    for file, survivors in sorted(by_file.items()):
        yield from (f"### {file}", "", "```text")
        for survivor in sorted(survivors, key=lambda s: (s.line, s.after)):
            yield _cut(f"{survivor.line}: {survivor.after or '(removed)'}")
        yield from ("```", "")


def _cut(line: str) -> str:
    return line if len(line) <= 100 else line[:99] + "…"
