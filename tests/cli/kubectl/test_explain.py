"""`kubectl argosy explain` on a cluster in memory: the last decision, or the next plan."""

import json
from typing import Any

import yaml

from argosy_operator.core.snapshot.objects import rfc3339
from tests.cli.kubectl.conftest import Run
from tests.cli.kubectl.in_memory import NOW, World
from tests.cli.kubectl.test_thresholds import ACTIVE, record_of

SPEC = {"model": {"uri": "sim://opt-13b-a100"}}


def scaled(world: World) -> dict[str, Any]:
    """A fleet whose last decision has its record."""
    tick = max(ACTIVE, key=lambda tick: tick.decision.numbers["arrivals_per_s"])
    record = record_of(tick, max=1)
    last = {"time": rfc3339(NOW), "reason": "Scaled", "from": {}, "to": {}, "record": record}
    scaling = {"lastDecision": last}
    world.fleet(spec=SPEC, status={"autoscaling": scaling, "conditions": []})
    return scaling


def test_the_decision_comes_first_and_then_what_would_change_it(world: World, run: Run) -> None:
    scaled(world)
    status, out, _ = run("explain", "chat")
    assert status == 0
    assert out.index("Decided at") < out.index("\n\nWhat would change the number, at ")
    assert "raise spec.roles.prefill.replicas.max: the load asks for" in out


def test_a_plan_is_made_with_the_image_that_is_named(world: World, run: Run) -> None:
    world.fleet(spec=SPEC)
    status, text, _ = run("explain", "chat", "--plan", "--engine-image", "e:1")
    assert status == 0
    assert "Assumed: engine image e:1" in text
    plans = [
        json.loads(run("explain", "chat", "--plan", "-o", "json")[1]),
        yaml.safe_load(run("explain", "chat", "--plan", "-o", "yaml")[1]),
    ]
    assert plans[0] == plans[1]
    assert plans[0]["images"]["engine"] != "e:1"
    assert any("Deployment" in action for action in plans[0]["actions"])


def test_a_fleet_that_is_not_valid_is_a_sentence(world: World, run: Run) -> None:
    world.fleet(spec={"model": {"uri": 3}})
    status, out, said = run("explain", "chat", "--plan")
    assert (status, out) == (1, "")
    assert said.startswith("kubectl argosy explain: ")
    assert "model.uri" in said
