"""`make demo`: the product from an empty machine to a fleet that scales on its SLO.

Stages: the cluster starts (while Prometheus may still be built), helm installs the chart, real
weights answer through prefill and decode pods and colocated, the ramp plays on simulated engines, a
minute at rest is watched, the figures are printed. The demo acts as a user does, with kubectl, helm
and HTTP; it never calls the operator's code.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import httpx
from rich.markup import escape

from local.demo import answer, ramp
from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.places.existing import ExistingCluster
from local.demo.places.one_machine import OneMachine
from local.demo.places.place import Place
from local.demo.view import console, say

OUT = Path("build/demo")


def arguments() -> argparse.Namespace:
    """The options that `make demo` passes on."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--name", default="demo", help="name of the one-machine cluster")
    parser.add_argument(
        "--keep", choices=("0", "1"), default="1", help="0: stop the cluster at the end"
    )
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster instead of our own")
    parser.add_argument(
        "--registry", default="", help="registry from which that cluster pulls your images"
    )
    return parser.parse_args()


def main() -> int:
    """Run all stages; exit status 1 if one fails or a target is missed."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    OUT.mkdir(parents=True, exist_ok=True)
    began = float(os.environ.get("DEMO_STARTED", time.time()))
    place: Place
    if asked.kubeconfig:
        place = ExistingCluster(asked.kubeconfig, asked.registry)
    else:
        place = OneMachine(OUT, asked.name)
    figures = DemoFigures(began)
    try:
        place.start(figures)
        place.install(figures)
        answer.run(place, figures, then=lambda: ramp.apply(place))
        if not place.is_complete:  # Prometheus was still building
            place.complete(figures)
            ramp.apply(place)
        ramp.run(place, figures, OUT)
        figures.finish(own_cluster=place.is_ours)
        place.try_hints(figures)
    except (TimeoutError, DemoError, httpx.HTTPError) as error:
        console.print(f"[red]the demo stopped:[/red] {escape(str(error))}", soft_wrap=True)
        say(f"logs and the figures measured so far are in {OUT}/")
        place.diagnose(OUT)
        return 1
    finally:
        figures.write(OUT / "summary.json")
        place.leave(keep=asked.keep == "1")
    console.print(figures.table())
    say(f"figures: {OUT}/summary.json, picture: {OUT}/ramp.png")
    return 1 if figures.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
