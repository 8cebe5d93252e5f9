"""Measure the product, write what was measured, and fail if a target is missed.

    python -m argosy_bench {engine,gpu,gateway,scaling,cluster,goodput} [--only PART …] [--json F]

Each command is a package with a module `parts`: the parts that it measures, and its own options.
Where `why_not` of a module gives a sentence, it is printed and nothing is measured.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from local.figures import Figures, conclude

COMMANDS = ("engine", "gpu", "gateway", "scaling", "cluster", "goodput")


def main(words: list[str]) -> int:
    """Run a command; exit status 1 if a target is missed."""
    if not words or words[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m argosy_bench {{{','.join(COMMANDS)}}} [--help]\n")
        return 2
    command, *rest = words
    parts = import_module(f"argosy_bench.{command}.parts")
    parser = argparse.ArgumentParser(
        prog=f"python -m argosy_bench {command}",
        description=parts.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures file here")
    usual = list(parts.PARTS)
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=list(parts.PARTS), default=usual,
        help=f"measure these alone: {', '.join(parts.PARTS)}",
    )  # fmt: skip
    parts.add_options(parser)
    asked = parser.parse_args(rest)
    if why := getattr(parts, "why_not", lambda _: "")(asked):
        sys.stdout.write(f"{why}\n")
        return 0
    whole = asked.only == usual
    figures = Figures((), " ".join([f"make bench-{command}", *([] if whole else asked.only)]))
    for part in asked.only:
        parts.PARTS[part](figures, asked)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
