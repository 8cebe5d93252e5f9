"""Whether the HPA's, KEDA's and Knative's laws answer what the real Go code answers.

    python -m argosy_bench.rivals.compare --json build/bench/rivals-code.json

It builds two small programs around Kubernetes' replica calculator and Knative's autoscaler, from
their Go modules (`go/go.mod`), and asks them and our laws the same random questions. KEDA's number
is made by Kubernetes, of an external metric. Exit status 1 if one answer differs.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_operator.core.scaling.rivals import hpa, keda, kpa
from local.cluster.build import FLAGS, find_go
from local.cluster.errors import BuildError

SOURCE = Path(__file__).parent / "go"
FIGURES = tuple(
    row
    for law in ("hpa", "keda", "kpa")
    for row in (
        Figure(f"{law}_questions", digits=0),
        Figure(f"{law}_different", target=Target("==", 0), digits=0),
    )
)
ROUNDS = 40
"""Decisions of one Knative autoscaler, 15 s apart."""

Question = Mapping[str, object]
Asked = tuple[Question, int]
"""A question, and what our law answers."""


def pods(random: Random) -> Asked:
    """A metric of each pod: most are near the target, some pods have none."""
    current, target = random.randint(1, 20), random.choice([1, 7, 32, 600, 4096])
    mean = target * random.choice([0, 0.5, 0.9, 1.0, 1.1, 1.5, random.random() * 3])
    values = [
        int(1000 * mean * random.choice([1, random.random() * 2]))
        for _ in range(random.randint(1, current))
    ]
    question = {"current": current, "target": 1000 * target, "values": values}
    total = sum(values) / 1000
    return question, hpa.recommendation(current, total, len(values), target)


def external(random: Random) -> Asked:
    """One sum for all pods."""
    current, target = random.randint(1, 20), random.choice([1, 7, 32, 600, 4096])
    near = random.choice([0, 0.5, 0.9, 1.0, 1.1, 1.5, random.random() * 3])
    total = int(1000 * current * target * near)
    asked = {"current": current, "target": 1000 * target, "values": [total], "external": True}
    return asked, keda.recommendation(current, total / 1000, target)


def rounds(random: Random) -> Iterator[Asked]:
    """The life of one Knative autoscaler under a load that jumps."""
    ready, target = random.randint(0, 6), random.choice([1.0, 7.0, 30.0, 70.0])
    load, panic = random.random() * target * 6, kpa.begin(ready, 0.0)
    for number in range(ROUNDS):
        at = 15.0 * number
        load *= random.choice([0.2, 0.8, 1, 1, 1.3, 4])
        load = load if load < 1e4 else 10.0
        stable = load * random.choice([0.3, 1, 1, 1.5])
        panic, wanted = kpa.recommendation(panic, ready, stable, load, target, at)
        asked = {"begin": number == 0, "at": at, "ready": ready, "target": target}
        yield {**asked, "stable": stable, "newest": load}, wanted
        ready = random.choice([ready, ready, min(wanted, 50)])


def built(name: str, into: Path) -> Path:
    """One of the two programs. Raises BuildError."""
    go = find_go()
    if go is None:
        raise BuildError("no Go is new enough here: run python -m local.cluster build first")
    fixed = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }
    words = [go, "build", *FLAGS, "-ldflags=-s -w", "-o", str(into / name), f"./{name}"]
    done = subprocess.run(  # noqa: S603 - the compiler
        words, cwd=SOURCE, env={**os.environ, **fixed}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{name} could not be built: {done.stderr[-2000:]}")
    return into / name


def different(program: Path, asked: Sequence[Asked]) -> list[tuple[Question, int, int]]:
    """(question, our answer, theirs) of the answers that differ."""
    lines = "\n".join(json.dumps(question) for question, _ in asked)
    done = subprocess.run(  # noqa: S603 - what was built above
        [program], input=lines, capture_output=True, text=True, check=True
    )
    theirs = [int(line) for line in done.stdout.split()]
    pairs = zip(asked, theirs, strict=True)
    return [(question, ours, told) for (question, ours), told in pairs if ours != told]


def main() -> int:
    """Ask, show where answers differ, and write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.rivals.compare", description=__doc__
    )
    parser.add_argument("--questions", type=int, default=20_000, help="of each law")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    random, count = Random(asked.seed), asked.questions  # noqa: S311 (inputs, no secrets)
    questions = {
        "hpa": ("hpa", [pods(random) for _ in range(count)]),
        "keda": ("hpa", [external(random) for _ in range(count)]),
        "kpa": ("kpa", [one for _ in range(count // ROUNDS) for one in rounds(random)]),
    }
    figures = Figures(FIGURES, "python -m argosy_bench.rivals.compare")
    with TemporaryDirectory() as folder:
        programs = {name: built(name, Path(folder)) for name in ("hpa", "kpa")}
        for law, (program, of_law) in questions.items():
            found = different(programs[program], of_law)
            figures.put(f"{law}_questions", len(of_law))
            figures.put(f"{law}_different", len(found))
            figures.lists[law] = [
                {"question": dict(question), "ours": ours, "theirs": theirs}
                for question, ours, theirs in found[:20]
            ]
    return conclude(figures, asked.json)


if __name__ == "__main__":
    raise SystemExit(main())
