"""The demo's own plan in virtual time: its arrivals and its fleet's goals.

Everything comes from where the demo takes it: `local/demo/traffic/plan.py` and
`examples/sim-70b.yaml`.
"""

from functools import cache
from pathlib import Path

import yaml

from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import Goals
from argosy_operator.api.v1alpha1 import ServingDeploymentSpec
from argosy_operator.core.steps.goals import goals_of
from local.demo.traffic import plan
from tests.scaling.closed import Run, Setup, play

MANIFEST = Path(__file__).parents[2] / "examples" / "sim-70b.yaml"
SPEC = ServingDeploymentSpec.model_validate(yaml.safe_load(MANIFEST.read_text())["spec"])
START = 4096.0
PROCESS_START_S = 5.0
"""What a simulated engine takes to be ready and routed in the demo's cluster."""


def goals() -> Goals:
    return goals_of(SPEC)


@cache
def ramp(seed: int, *, tail_s: float = 30.0, cold_s: float = PROCESS_START_S) -> Run:
    due = [(START + d.at_s, d.prompt_tokens, d.output_tokens) for d in plan.arrivals(seed=seed)]
    begun = [START + s for s in plan.steps()]
    bounds = (*begun, begun[-1] + plan.RAMP[-1].seconds)
    setup = Setup(PRESETS["llama-70b-h100-tp4"], goals(), cold_s)
    return play(setup, due, bounds, tail_s=tail_s)
