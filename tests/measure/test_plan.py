"""`argosy plan`: what it finds, what it says where nothing is found, and what it refuses."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.goals import SLO
from argosy_measure import candidates, predict
from argosy_measure.plan import Question, answer, fragment, main
from argosy_measure.predict import CLOSE, Fleet, Formulas, Predictor, highest
from argosy_measure.profiles import PodProfile, read, write
from argosy_measure.workloads import Workload
from argosy_operator.api.v1alpha1 import ServingDeploymentSpec

(OPT,) = read("opt-13b-a100")
SHORT = Workload(300, 20, 0.3)
"""Short answers: a play takes a tenth of a second."""
LIMITS = SLO(0.3, 0.08, 0.9)
BASE = [
    "--profile",
    "opt-13b-a100",
    "--workload",
    "300,20,0.3",
    "--ttft",
    "300ms",
    "--tpot",
    "80ms",
]


@pytest.fixture(autouse=True)
def _short_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "COUNTED", 300)


@cache
def planned(limits: SLO, rate: float | None, gpus: int | None) -> list[candidates.Option]:
    return answer(Question([OPT], limits, SHORT, rate, gpus, seeds=1)).options


def test_the_fleet_for_a_rate_meets_the_goal_and_a_smaller_one_does_not() -> None:
    predictor = Predictor(LIMITS, SHORT, 1)
    for option in planned(LIMITS, 20.0, None):
        assert option.attainment.median >= 0.9
        for role in range(len(option.fleet.replicas)):
            fewer = list(option.fleet.replicas)
            fewer[role] -= 1
            if fewer[role]:
                assert not predictor.meets(Fleet(option.fleet.types, tuple(fewer)), 20.0)


def test_the_split_is_the_best_of_all_splits_and_the_best_kind_is_first() -> None:
    options = planned(LIMITS, None, 5)
    predictor, formulas = Predictor(LIMITS, SHORT, 1), Formulas(LIMITS, SHORT)
    apart = next(option for option in options if len(option.fleet.types) == 2)
    most = max(
        predictor.goodput(fleet, formulas.goodput(fleet))
        for fleet in (Fleet((OPT, OPT), (n, 5 - n)) for n in range(1, 5))
    )
    assert apart.goodput.median >= most / CLOSE**2
    assert [option.goodput.median for option in options] == sorted(
        (option.goodput.median for option in options), reverse=True
    )
    assert {len(option.fleet.types) for option in options} == {1, 2}


@settings(max_examples=4, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3))
def test_more_gpus_never_plan_a_lower_rate(gpus: int, more: int) -> None:
    few, many = planned(LIMITS, None, gpus), planned(LIMITS, None, gpus + more)
    assert many[0].goodput.median >= few[0].goodput.median / CLOSE**2


@settings(max_examples=4, deadline=None)
@given(st.floats(1, 1.5), st.floats(1, 1.5), st.sampled_from([5.0, 20.0]))
def test_a_looser_slo_never_needs_clearly_more_gpus(
    first: float, other: float, rate: float
) -> None:
    loose = SLO(LIMITS.ttft_s * first, LIMITS.tpot_s * other, 0.9)
    tight, loose_found = planned(LIMITS, rate, None), planned(loose, rate, None)
    assert loose_found[0].fleet.gpus <= tight[0].fleet.gpus + 1  # the queue's own choices


@given(st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_the_highest_rate_is_found_from_anywhere(true: float, near: float) -> None:
    found = highest(lambda rate: rate <= true, near)
    assert true / CLOSE <= found <= true


def test_no_rate_is_found_where_none_is_met() -> None:
    assert highest(lambda _: False, 5.0) == 0.0


@pytest.mark.parametrize(
    ("change", "limits", "binds"),
    [
        ({"per_prompt_token_s": 1e-3}, SLO(0.5, 1.0, 0.9), "TTFT: prefill compute"),
        ({"per_sequence_s": 5e-3}, SLO(9.0, 0.06, 0.9), "decode step"),
        ({"kv_tokens": 1500.0}, SLO(1.0, 1.0, 0.9), "KV memory"),
    ],
)
def test_what_binds_is_what_there_is_little_of(
    change: dict[str, float], limits: SLO, binds: str
) -> None:
    profile = replace(OPT.replica.profile, **change)
    pod = replace(OPT, replica=replace(OPT.replica, profile=profile))
    predictor, fleet = Predictor(limits, SHORT, 1), Fleet((pod, pod), (1, 1))
    if "per_sequence_s" in change:
        fleet = Fleet((pod, pod), (4, 1))
    goodput = predictor.goodput(fleet, 1.0)
    assert binds in str(predictor.binding(fleet, candidates.OVER * goodput))


def test_a_small_batch_limit_binds() -> None:
    pod = replace(OPT, replica=replace(OPT.replica, max_num_seqs=2))
    predictor, fleet = Predictor(SLO(1.0, 1.0, 0.9), SHORT, 1), Fleet((pod, pod), (3, 1))
    goodput = predictor.goodput(fleet, 1.0)
    assert "batch limit" in str(predictor.binding(fleet, candidates.OVER * goodput))


def test_the_cheaper_type_is_chosen_where_prices_are_known() -> None:
    dear, cheap = replace(OPT, name="dear", price=4.0), replace(OPT, name="cheap", price=1.0)
    options = answer(Question([dear, cheap], LIMITS, SHORT, 5.0, None, seeds=1)).options
    assert {pod.name for pod in options[0].fleet.types} == {"cheap"}
    assert options[0].fleet.price == options[0].fleet.gpus


@pytest.mark.parametrize("replicas", [(3,), (2, 4)])
@pytest.mark.parametrize("price", [None, 1.5])
@pytest.mark.parametrize("gpus", [1, 4])
def test_the_fragment_is_a_valid_part_of_a_fleet(
    replicas: tuple[int, ...], price: float | None, gpus: int
) -> None:
    machine = replace(OPT.replica.machine, gpus=gpus)
    pod = PodProfile("a100", replace(OPT.replica, machine=machine), price)
    text = fragment(Fleet((pod,) * len(replicas), replicas), SLO(0.25, 0.1, 0.95))
    spec = yaml.safe_load(text)["spec"] | {"model": {"uri": "sim://opt-13b-a100"}}
    fleet = ServingDeploymentSpec.model_validate(spec)
    assert fleet.mode == ("colocated" if len(replicas) == 1 else "disaggregated")
    roles = (
        [fleet.roles.colocated] if len(replicas) == 1 else [fleet.roles.prefill, fleet.roles.decode]
    )
    assert [role.replicas.min for role in roles] == list(replicas)
    assert fleet.slo is not None
    assert fleet.slo.ttft.target.seconds == pytest.approx(0.25)
    assert [of.name for of in fleet.gpu_types] == ([] if price is None else ["a100"])


def test_the_command_prints_a_plan_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(write([OPT]))
    out = tmp_path / "plan.json"
    argv = ["--profile", str(file), *BASE[2:], "--rate", "5", "--seeds", "2", "--json", str(out)]
    assert main(argv) == 0
    found = json.loads(out.read_text())
    best = found["options"][0]
    assert best["attainment"]["low"] <= best["attainment"]["median"] <= best["attainment"]["high"]
    assert best["goodput"]["median"] >= 5 / CLOSE
    printed = capsys.readouterr().out
    assert best["mode"] in printed or "prefill" in printed
    assert main([*argv, "--fragment"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["mode"] == best["mode"]


@pytest.mark.parametrize(
    ("flags", "limit"),
    [(["--ttft", "20ms"], "TTFT"), (["--tpot", "15ms"], "TPOT")],
)
def test_a_goal_that_no_fleet_meets_says_which_limit_and_ends_with_1(
    flags: list[str], limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, "--rate", "5", *flags]) == 1
    said = capsys.readouterr().err
    assert f"{limit}: " in said
    assert "allow more" in said


def status(argv: list[str]) -> int:
    """Run the command; argparse ends a process itself."""
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], "--rate"),
        (["--rate", "5", "--gpus", "4"], "--gpus"),
        (["--rate", "0"], "--rate"),
        (["--rate", "1e9"], "--rate"),
        (["--rate", "many"], "--rate"),
        (["--gpus", "1.5"], "--gpus"),
        (["--gpus", "0"], "--gpus"),
        (["--rate", "5", "--goal", "1"], "--goal"),
        (["--rate", "5", "--ttft", "soon"], "--ttft"),
        (["--rate", "5", "--tpot", "0s"], "--tpot"),
        (["--rate", "5", "--seeds", "0"], "--seeds"),
        (["--rate", "5", "--workload", "poems"], "poems"),
        (["--rate", "5", "--profile", "h200"], "h200"),
        (["--rate", "5", "--profile", "opt-13b-a100"], "opt-13b-a100"),
        (["--rate", "5", "--json", "/nowhere/plan.json"], "--json"),
    ],
)
def test_wrong_flags_are_refused_with_what_to_write(
    flags: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status([*BASE, *flags]) == 2
    assert names in capsys.readouterr().err


def test_gpus_for_which_a_pod_is_too_large_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "llama-70b-h100-tp4", *BASE[2:], "--gpus", "3"]) == 2
    assert "4" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--profile", "--workload", "--ttft"])
def test_a_missing_flag_is_named(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = BASE.index(missing)
    assert status([*BASE[:at], *BASE[at + 2 :], "--rate", "5"]) == 2
    assert missing in capsys.readouterr().err
