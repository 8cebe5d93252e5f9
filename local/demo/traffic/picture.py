"""The picture of a ramp: demand, replicas and attainment over time."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from local.demo.traffic.plan import RAMP, steps
from local.demo.traffic.score import SETTLING_CUT_S, Limits, Seen, attainment
from local.demo.traffic.watch import Reading

WINDOW_S = 6.0
"""Width of the sliding window of the attainment curve."""


def draw(path: Path, readings: list[Reading], records: list[Seen], limits: Limits) -> None:
    """Write a PNG of three panels over one time axis."""
    end = steps()[-1] + RAMP[-1].seconds
    at = [r.at_s for r in readings]
    figure, (demand, replicas, share) = pyplot.subplots(
        3, 1, sharex=True, figsize=(10, 6.4), height_ratios=(1, 1.3, 1), layout="constrained"
    )
    seconds = range(int(end))
    sent = [sum(1 for r in records if s - 2.5 <= r.due_s < s + 2.5) / 5 for s in seconds]
    demand.fill_between(seconds, sent, step="mid", color="#8fb3d9")
    demand.set_ylabel("requests/s\n(5 s mean)")
    for name, color, counts in (
        ("prefill", "#c2452d", [r.prefill for r in readings]),
        ("decode", "#2d6fc2", [r.decode for r in readings]),
    ):
        ready, desired = [count[0] for count in counts], [count[1] for count in counts]
        replicas.step(at, desired, where="post", color=color, ls=":")
        replicas.step(at, ready, where="post", color=color, label=f"{name} ready")
    replicas.plot([], [], color="gray", ls=":", label="desired")
    replicas.set_ylabel("replicas")
    replicas.set_ylim(0, 1.25 * replicas.get_ylim()[1])  # room for the legend
    replicas.legend(loc="upper left", ncols=3, frameon=False)
    met = [
        attainment([r for r in records if abs(r.due_s - s) <= WINDOW_S / 2], limits)
        for s in seconds
    ]
    share.plot(seconds, [float("nan") if m is None else 100 * m for m in met], color="#3b7d3b")
    share.axhline(90, color="gray", lw=0.8, ls="--")
    share.set_ylabel("SLO met, %\n(6 s window)")
    share.set_ylim(-5, 105)
    share.set_xlabel("seconds")
    share.set_xlim(0, max([end, *at]))
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
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
