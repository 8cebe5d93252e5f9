"""The fleet of vLLM alone, without the rest of `make bench-first-day`.

python -m argosy_bench.others --peer .venv-peer --json build/bench/vllm-fleet.json
"""

import argparse
from pathlib import Path

from argosy_bench.figures import Figures, conclude
from argosy_bench.others import ROWS, measure


def main() -> int:
    """Run; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.others",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", type=Path, required=True, help="environment with vLLM")
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(ROWS, "python -m argosy_bench.others")
    measure(asked.peer, figures)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    raise SystemExit(main())
