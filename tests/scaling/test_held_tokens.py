"""First tokens that are held: what TPOT then has left, and which answers have the time."""

from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.goals import SLO, FirstToken, Serving
from argosy_law.observe import Observations, Value
from argosy_law.size.pools import DecodeModel, PrefillModel, decode_model
from argosy_law.size.sizing import share_held
from argosy_law.size.work import Replica, Work
from argosy_law.state import ScalingState
from argosy_operator.core.steps.goals import goals_of
from tests.scaling import known
from tests.support.model import fleet

PROMPTS = PrefillModel(((0.2, 0.9), (0.8, 0.1)), 0.26, 1.5, 1.0)
"""Nine in ten take 0.2 s alone, the others 0.8 s, of the limit of 1 s."""


def answers_of(tokens: float, held: float = 0.0) -> DecodeModel:
    """Steps of 35 ms and 1 ms for each sequence, KV transfers of 30 ms, TPOT of 60 ms."""
    work = Work(1000.0, 1e6, tokens, answers=((tokens, 1.0),))
    model = decode_model(Replica(35e-3, 1e-4, 1e-3, 0.0), work, 60e-3, 30e-3)
    return replace(model, held=held)


def test_a_held_answer_has_its_whole_tpot_for_steps() -> None:
    """Two tokens: one step within 60 ms, which 25 sequences fill. At once, half of the transfers of
    30 ms last until a step of 60 ms has begun, and two steps of 36 ms are too long."""
    at_once, held = answers_of(2.0), answers_of(2.0, held=1.0)
    few = 0.2  # requests per second
    assert at_once.batch_limit == held.batch_limit == pytest.approx(25.0)
    assert at_once.attainment(1, few) == pytest.approx(0.5, abs=0.02)
    assert held.attainment(1, few) == pytest.approx(1.0, abs=1e-6)
    assert held.reachable == 1.0
    assert at_once.reachable == pytest.approx(0.5)


def test_tokens_are_held_of_prompts_that_have_time_left() -> None:
    """Long prompts take 0.8 s alone: with 0.7 s until the token must leave none of them is held."""
    idle = 0.001
    assert share_held(PROMPTS, idle, 0.9, 0.9) == pytest.approx(1.0, abs=1e-3)
    assert share_held(PROMPTS, idle, 0.9, 0.7) == pytest.approx(0.9, abs=1e-3)
    assert share_held(PROMPTS, idle, 0.9, 0.1) == 0.0
    assert share_held(PROMPTS, idle, 0.9, -1.0) == 0.0
    assert share_held(PROMPTS, idle, 0.9, 5.0) == 1.0


@pytest.mark.parametrize("field", ["AtOnce", "WithinTarget", "Auto"])
def test_the_law_knows_from_the_spec_whether_first_tokens_are_held(field: str) -> None:
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "60ms"}, "firstToken": field}
    assert goals_of(fleet(slo=slo, mode="disaggregated").spec).serving.first_token == field
    assert goals_of(fleet().spec).serving.first_token == "AtOnce"


def test_short_answers_need_less_decode_when_their_first_tokens_are_held() -> None:
    replicas = {}
    ways: tuple[FirstToken, ...] = ("AtOnce", "WithinTarget")
    for way in ways:
        goals = replace(known.goals(SLO(1.0, 0.06)), serving=Serving(first_token=way))
        seen = known.metrics(known.START, 400.0, {"prefill": 60, "decode": 4})
        seen = replace(
            seen,
            output_tokens=Value(3.0, known.START),
            kv_transfer_s=Value(0.02, known.START),
        )
        observed = Observations(seen, known.supply({"prefill": 60, "decode": 4}))
        _, decision = decide(ScalingState(), observed, goals, known.START)
        (decode,) = (t for t in decision.targets if t.role == "decode")
        replicas[way] = decode.demanded
    assert replicas["WithinTarget"] < replicas["AtOnce"]
