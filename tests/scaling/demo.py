"""The demo's own plan in virtual time: its arrivals, its fleet's goals, its scoring.

Everything comes from where the demo takes it: `plan.py` and `score.py` in `local/demo/traffic`, and
`examples/sim-70b.yaml`, so that a change of the demo is tried here first.
"""

from pathlib import Path

import yaml

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import Goals
from argosy_operator.api.v1alpha1 import ServingDeploymentSpec
from argosy_operator.core.steps.goals import goals_of
from local.demo.traffic import plan, score
from tests.scaling.closed import Run, Setup, play

MANIFEST = Path(__file__).parents[2] / "examples" / "sim-70b.yaml"
SPEC = ServingDeploymentSpec.model_validate(yaml.safe_load(MANIFEST.read_text())["spec"])
START = 4096.0
PROCESS_START_S = 5.0
"""What a simulated engine takes to be ready and routed in the demo's cluster."""


def goals() -> Goals:
    return goals_of(SPEC)


def limits() -> score.Limits:
    slo = goals().slo
    assert slo is not None
    return score.Limits(slo.ttft_s, slo.tpot_s)


def ramp(seed: int, *, tail_s: float = 30.0, cold_s: float = PROCESS_START_S) -> Run:
    due = [(START + d.at_s, d.prompt_tokens, d.output_tokens) for d in plan.arrivals(seed=seed)]
    begun = [START + s for s in plan.steps()]
    bounds = (*begun, begun[-1] + plan.RAMP[-1].seconds)
    setup = Setup(PRESETS["llama-70b-h100-tp4"], goals(), cold_s)
    return play(setup, due, bounds, tail_s=tail_s)


def seen(run: Run) -> list[score.Seen]:
    """The finished requests as the demo's client would have written them."""
    begun = plan.steps()
    return [
        score.Seen(
            due_s=r.arrived - START,
            phase=max(n for n, s in enumerate(begun) if s <= r.arrived - START),
            outcome="ok",
            ttft_s=r.first - r.arrived,
            tpot_s=(r.last - r.first) / (r.output - 1) if r.output > 1 else None,
            tokens=r.output,
            ended_s=r.last - START,
        )
        for r, _ in run.requests
    ]
