"""The picture of a ramp: demand, replicas and attainment over time.

Every curve looks back: a second shows what was known then. `python -m local.demo.traffic.picture
build/demo` draws the records of the last run again.
"""

import json
import sys
from pathlib import Path

import matplotlib
import yaml

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from local.demo.traffic import score
from local.demo.traffic.plan import RAMP, steps
from local.demo.traffic.score import SETTLING_CUT_S, Limits, Seen
from local.demo.traffic.watch import Reading, Records

WINDOW_S = 6.0
"""Width of the window before each point of the curves of demand and attainment."""


def draw(path: Path, readings: list[Reading], records: list[Seen], limits: Limits) -> None:
    """Write a PNG of three panels over one time axis."""
    figure = panels(readings, records, limits)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def panels(readings: list[Reading], records: list[Seen], limits: Limits) -> Figure:
    """Demand, replicas and attainment, in this order."""
    end = steps()[-1] + RAMP[-1].seconds
    figure, (demand, replicas, share) = pyplot.subplots(
        3, 1, sharex=True, figsize=(10, 6.4), height_ratios=(1, 1.3, 1), layout="constrained"
    )
    seconds = range(int(end) + 1)
    sent = [score.sent_per_s(records, s, WINDOW_S) for s in seconds]
    demand.fill_between(seconds, sent, step="post", color="#8fb3d9")
    demand.set_ylabel(f"requests/s\n(last {WINDOW_S:.0f} s)")
    _replicas(replicas, readings)
    met = [score.attainment_at(records, limits, s, WINDOW_S) for s in seconds]
    percent = [float("nan") if m is None else 100 * m for m in met]
    share.step(seconds, percent, where="post", color="#3b7d3b")
    share.axhline(90, color="gray", lw=0.8, ls="--")
    share.set_ylabel(f"SLO met, %\n(ended in last {WINDOW_S:.0f} s)")
    share.set_ylim(-5, 105)
    share.set_xlabel("seconds")
    share.set_xlim(0, max([end, *(r.at_s for r in readings)]))
    for panel in (demand, replicas, share):
        panel.spines[["top", "right"]].set_visible(False)
        for begin in steps():
            panel.axvline(begin, color="black", lw=0.6)
            panel.axvspan(begin, begin + SETTLING_CUT_S, color="black", alpha=0.05, lw=0)
    for phase, begin in zip(RAMP, steps(), strict=True):
        label = f"{phase.name}: {phase.prompt_tokens} in / {phase.output_tokens} out"
        demand.text(begin + 1, demand.get_ylim()[1] * 1.02, label, fontsize=8)
    figure.suptitle(
        f"Simulated Llama-70B on 4×H100 per replica, SLO TTFT {limits.ttft_s * 1e3:.0f} ms and "
        f"TPOT {limits.tpot_s * 1e3:.0f} ms for 90 %; grey: settling after a step",
        fontsize=9,
    )
    return figure


def _replicas(panel: Axes, readings: list[Reading]) -> None:
    at = [r.at_s for r in readings]
    for name, color, counts in (
        ("prefill", "#c2452d", [r.prefill for r in readings]),
        ("decode", "#2d6fc2", [r.decode for r in readings]),
    ):
        ready, desired = [count[0] for count in counts], [count[1] for count in counts]
        panel.step(at, desired, where="post", color=color, ls=":")
        panel.step(at, ready, where="post", color=color, label=f"{name} ready")
    panel.plot([], [], color="gray", ls=":", label="desired")
    panel.set_ylabel("replicas")
    panel.set_ylim(0, 1.25 * panel.get_ylim()[1])  # room for the legend
    panel.legend(loc="upper left", ncols=3, frameon=False)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    spec = yaml.safe_load(Path("examples/sim-70b.yaml").read_text())["spec"]
    lines = (folder / "readings.jsonl").read_text().splitlines()
    draw(
        folder / "ramp.png",
        [Reading(**json.loads(line)) for line in lines],
        Records(folder / "requests.jsonl").read(),
        score.limits_of(spec["slo"]),
    )
